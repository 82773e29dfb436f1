//! Power cuts of a store.
//!
//! Each test records the file operations of a store. Then it rebuilds the disk that a power cut at some point would
//! leave, opens it with the real store, and compares it with the writes acknowledged before that point. Some rebuilt
//! disks serve as the start of further runs and further cuts, also while the store opens.
//!
//! `TENURE_POWER_CUTS` sets the number of cuts (default 100), and `TENURE_POWER_SEED` the first seed. In a short run, each
//! event has one cut for each hundred. A long run:
//!
//! ```text
//! TENURE_POWER_CUTS=2000 cargo test --release --test powercut -- --nocapture
//! ```

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod disk;
mod failing;
mod fence;
mod history;
mod migration;
mod recorder;
mod restore;
mod vote_lease;
mod workload;

use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tenure::storage::{DiskStorage, Opened, Storage};

use crate::disk::{Disk, HonoredSyncs, Image};
use crate::history::{View, allows_committed};
use crate::recorder::{Event, Recorder};
use crate::workload::{
    DATA_DIR, Recording, identity, record, record_flood, record_lone_entries, record_segments, record_truncation,
};

/// Cuts of one recorded run.
const CUTS_PER_RUN: usize = 25;

/// Maximum cuts of a control that has found no loss yet.
const CONTROL_CUTS: usize = 1000;

/// Tests measured commits up to a third of a sled segment (8 MiB) as safe; larger ones lost data.
const SAFE_COMMIT_BYTES: usize = (8 << 20) / 3;

/// The limit is on the bytes in the file: sled writes whole pages for a few small changes.
#[test]
fn commit_stays_below_a_third_of_a_sled_segment() {
    let recording = record_flood(scratch().path());
    let (largest, written) = (recording.largest_sled_commit(), recording.written_bytes());
    println!("at most {} KiB between two syncs, of {} MiB written", largest >> 10, written >> 20);
    assert!(largest <= SAFE_COMMIT_BYTES, "a commit has {largest} bytes: at most {SAFE_COMMIT_BYTES} are safe");
}

/// An entry of 16 commands has about 464 bytes.
#[test]
fn lone_entry_takes_one_sync_and_less_than_twice_its_bytes() {
    const ENTRIES: usize = 1_000;
    const BYTES: usize = 464;
    let recording = record_lone_entries(scratch().path(), ENTRIES as u64, BYTES);
    let (syncs, written) = recording.cost_after_the_first();
    println!(
        "{ENTRIES} entries: {syncs} syncs, {:.2} bytes for each byte",
        written as f64 / ((ENTRIES - 1) * BYTES) as f64
    );
    assert_eq!(syncs, ENTRIES - 1);
    assert!(written < 2 * (ENTRIES - 1) * BYTES, "{written} bytes");
}

#[test]
fn acknowledged_writes_survive_a_power_cut() {
    let tally = cut_many(cuts(), HonoredSyncs::All);
    println!("power cuts survived: {tally}");
    assert!(tally.largest_commit <= SAFE_COMMIT_BYTES, "a commit has {} bytes", tally.largest_commit);
    assert!(tally.failures.is_empty(), "{} of {} cuts lost data:\n{}", tally.lost(), tally.cuts, tally.first());
}

/// The store overwrites a torn group while it opens, and repairs sled's files. This test cuts the power at each event of
/// an open, on disks that cuts along a run have left.
#[test]
fn power_cut_while_opening_loses_nothing() {
    const DISKS: usize = 24;
    let mut tally = Tally::default();
    let mut torn = 0;
    let run = record(scratch().path(), first_seed() + 3, Image::default(), View::default(), 400);
    let points = run.points_in_large_groups();
    for disk in 0..DISKS {
        let point = points[points.len() * disk / DISKS];
        // Each run of cuts begins with the same random numbers. So this disk is the last of a run of another length.
        let cuts = vec![point; disk % 8 + 1];
        let Some((base, before)) = cut_run(&run, HonoredSyncs::All, cuts, &mut tally) else { continue };
        let opening = record(scratch().path(), disk as u64, base, before, 0);
        // Opens with a torn group are the risky ones. A sample of the others is enough.
        let is_torn = opening.overwrites_a_torn_group();
        torn += usize::from(is_torn);
        if !is_torn && disk % 8 != 0 {
            continue;
        }
        let points = (0..=opening.opened).flat_map(|point| std::iter::repeat_n(point, cuts_per_event()));
        cut_run(&opening, HonoredSyncs::All, points.collect(), &mut tally);
    }
    println!("cuts survived: {} of {}, opens with a torn group: {torn}", tally.cuts - tally.lost(), tally.cuts);
    assert!(tally.failures.is_empty(), "{} of {} cuts lost data:\n{}", tally.lost(), tally.cuts, tally.first());
    assert!(torn > 0, "no open found a torn group: the test proves nothing");
}

/// The first start can end at any event: by a power cut, or by a kill that keeps the cached writes. The next start succeeds.
#[test]
fn first_start_can_end_at_each_event() {
    let first = record(scratch().path(), first_seed() + 4, Image::default(), View::default(), 0);
    assert!(first.opened >= 20, "the first start has {} events", first.opened);
    let mut tally = Tally::default();
    let points = (0..=first.opened).flat_map(|point| std::iter::repeat_n(point, cuts_per_event()));
    cut_run(&first, HonoredSyncs::All, points.collect(), &mut tally);
    let mut disk = Disk::new(&first.base, HonoredSyncs::All);
    for (n, event) in first.events[..first.opened].iter().enumerate() {
        disk.apply(event);
        tally.cuts += 1;
        if let Err(what) = check(&first, n + 1, &disk.cached()) {
            tally.failures.push(format!("kill after event {n}: {what}"));
        }
    }
    println!("ends survived: {} of {}", tally.cuts - tally.lost(), tally.cuts);
    assert!(tally.failures.is_empty(), "{} of {} ends lost data:\n{}", tally.lost(), tally.cuts, tally.first());
}

/// The first start creates all directories of this path, or a killed start before it has created them.
#[test]
fn opened_store_in_new_directories_survives_a_power_cut() {
    let node = Path::new("several/directories").join(DATA_DIR);
    for has_killed_start in [false, true] {
        let root = scratch();
        let recorder = Recorder::new(root.path(), []);
        if has_killed_start {
            std::fs::create_dir_all(root.path().join(&node)).expect("writable");
        }
        let storage = DiskStorage::open(root.path().join(&node), identity()).unwrap_or_else(|error| panic!("{error}"));
        let events = recorder.events();
        storage.close();
        let mut disk = Disk::new(&Image::default(), HonoredSyncs::All);
        events.iter().for_each(|event| disk.apply(event));
        let mut rng = StdRng::seed_from_u64(first_seed());
        for cut in 0..CUTS_PER_RUN {
            let image = disk.cut(&mut rng);
            let found: Vec<_> = image.files.keys().collect();
            assert!(image.files.contains_key(&node.join("TENURE")), "cut {cut} leaves only {found:?} of the store");
        }
    }
}

/// The store renames the files of the log. A killed process can leave a new name that is not durable. The next process
/// finds the name, and the power fails after it has written acknowledged groups to this file. sled writes, syncs and
/// renames its page table. A process that is killed before that sync leaves a whole table that only the cache has.
#[test]
fn power_cut_after_a_kill_loses_nothing() {
    const OPS_AFTER_KILL: usize = 20;
    const CUTS: usize = 3;
    let (mut cuts, mut failures) = (0, Vec::new());
    let run = record_segments(scratch().path());
    let mut disk = Disk::new(&run.base, HonoredSyncs::All);
    run.events.iter().for_each(|event| disk.apply(event));
    let cached = disk.cached();
    let before = check(&run, run.events.len(), &cached).unwrap_or_else(|error| panic!("{error}"));
    let second_start = record(scratch().path(), first_seed(), cached, before, 0);
    let (log_names, tables) = (run.log_renames(), second_start.whole_page_tables());
    assert!(log_names.len() >= 10 && !tables.is_empty(), "kills before a sync: {log_names:?}, {tables:?}");
    let kills =
        log_names.into_iter().map(|kill| (&run, kill)).chain(tables.into_iter().map(|kill| (&second_start, kill)));
    let kills: Vec<_> = kills.collect();
    for &(run, kill) in &kills {
        let mut disk = Disk::new(&run.base, HonoredSyncs::All);
        run.events[..=kill].iter().for_each(|event| disk.apply(event));
        let cached = disk.cached();
        let before = check(run, kill + 1, &cached).unwrap_or_else(|error| panic!("kill after event {kill}: {error}"));
        let next = record(scratch().path(), kill as u64, cached, before, OPS_AFTER_KILL);
        let mut rng = StdRng::seed_from_u64(kill as u64);
        for (n, event) in next.events.iter().enumerate() {
            disk.apply(event);
            // The next start replaces the table.
            let is_start = std::ptr::eq(run, &second_start) && n < next.opened;
            for _ in 0..if is_start || n + 1 == next.events.len() { CUTS } else { 0 } {
                cuts += 1;
                let failed = check(&next, n + 1, &disk.cut(&mut rng)).err();
                failures
                    .extend(failed.map(|error| format!("kill after event {kill} of {}: {error}", run.events.len())));
            }
        }
    }
    println!("cuts after {} kills survived: {} of {cuts}", kills.len(), cuts - failures.len());
    assert!(failures.is_empty(), "{} of {cuts} cuts lost data; the first: {}", failures.len(), failures[0]);
}

/// A truncation is one record, so a cut leaves all its entries or none.
#[test]
fn power_cut_inside_a_truncation_loses_nothing() {
    const CUTS_PER_EVENT: usize = 3;
    let run = record_truncation(scratch().path());
    let syncs = run.last_op().filter(|&n| matches!(run.events[n], Event::SyncFile { data_only: true, .. })).count();
    assert_eq!(syncs, 1, "one sync makes the truncation durable");
    let mut tally = Tally::default();
    let points = run.last_op().flat_map(|point| [point; CUTS_PER_EVENT]);
    cut_run(&run, HonoredSyncs::All, points.collect(), &mut tally);
    println!("cuts inside a truncation survived: {} of {}", tally.cuts - tally.lost(), tally.cuts);
    assert!(tally.failures.is_empty(), "{} of {} cuts lost data:\n{}", tally.lost(), tally.cuts, tally.first());
}

/// A control. The controls skip syncs and must find a loss: a checker that never finds one proves nothing.
#[test]
fn most_cuts_lose_data_without_fdatasync() {
    let tally = cut_many((cuts() / 4).max(25), HonoredSyncs::NoDataSync);
    println!("power cuts survived without fdatasync: {tally}");
    assert!(tally.lost() * 2 > tally.cuts, "only {} of {} cuts lost data", tally.lost(), tally.cuts);
}

/// Losses are rare in some recorded runs. So this control and the next one continue until they find one.
#[test]
fn checker_notices_skipped_fdatasyncs() {
    let tally = cut_until_lost(cuts() / 4, HonoredSyncs::MostDataSyncs);
    println!("power cuts survived with every fourth fdatasync skipped: {tally}");
    assert!(tally.lost() > 0);
}

#[test]
fn checker_notices_missing_directory_syncs() {
    let tally = cut_until_lost(cuts() / 4, HonoredSyncs::NoDirSync);
    println!("power cuts survived without directory syncs: {tally}");
    assert!(tally.lost() > 0);
}

fn cuts() -> usize {
    let text = std::env::var("TENURE_POWER_CUTS").unwrap_or_else(|_| "100".to_string());
    text.parse().expect("TENURE_POWER_CUTS is a number")
}

/// The cuts at each event of a run with few events. They differ in the unsynced changes that they leave.
fn cuts_per_event() -> usize {
    (cuts() / 100).max(1)
}

fn first_seed() -> u64 {
    let text = std::env::var("TENURE_POWER_SEED").unwrap_or_else(|_| "1".to_string());
    text.parse().expect("TENURE_POWER_SEED is a number")
}

/// A temporary directory for images, in memory if the system supports it.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    TempDir::new_in(parent).expect("a temporary directory for the images")
}

#[derive(Default)]
struct Tally {
    cuts: usize,
    runs: usize,
    written_bytes: usize,
    /// The most bytes that a store wrote to sled's file between two syncs.
    largest_commit: usize,
    failures: Vec<String>,
}

impl Tally {
    fn lost(&self) -> usize {
        self.failures.len()
    }

    fn first(&self) -> String {
        self.failures.iter().take(5).map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (survived, mib) = (self.cuts - self.lost(), self.written_bytes >> 20);
        let largest = self.largest_commit >> 10;
        write!(f, "{survived} of {} ({} recorded runs, {mib} MiB written, ", self.cuts, self.runs)?;
        write!(f, "at most {largest} KiB in sled's file between two syncs)")
    }
}

/// Cuts the power `cuts` times, over as many recorded runs as needed.
fn cut_many(cuts: usize, honored: HonoredSyncs) -> Tally {
    cut_while(honored, |tally| cuts.saturating_sub(tally.cuts))
}

/// Cuts the power at least `cuts` times, and then until data is lost, at most [`CONTROL_CUTS`] times.
fn cut_until_lost(cuts: usize, honored: HonoredSyncs) -> Tally {
    cut_while(honored, |tally| match cuts.saturating_sub(tally.cuts) {
        0 if tally.lost() == 0 => CONTROL_CUTS.saturating_sub(tally.cuts),
        left => left,
    })
}

/// Cuts the power while `left` returns a positive number.
fn cut_while(honored: HonoredSyncs, left: impl Fn(&Tally) -> usize) -> Tally {
    let mut tally = Tally::default();
    let mut survivor: Option<(Image, View)> = None;
    let mut seed = first_seed();
    while left(&tally) > 0 {
        // Three of four runs start from a disk that a cut of the previous run has left.
        let (base, before) = survivor.take().unwrap_or_default();
        let ops = if seed % 4 < 2 { 250 } else { 1200 };
        let recording = record(scratch().path(), seed, base, before, ops);
        tally.runs += 1;
        tally.written_bytes += recording.written_bytes();
        tally.largest_commit = tally.largest_commit.max(recording.largest_sled_commit());
        let points = cut_points(&recording, left(&tally).min(CUTS_PER_RUN));
        let good = cut_run(&recording, honored, points, &mut tally);
        if honored == HonoredSyncs::All && seed % 4 != 3 {
            survivor = good;
        }
        seed += 1;
    }
    tally
}

fn cut_points(recording: &Recording, cuts: usize) -> Vec<usize> {
    let mut rng = StdRng::seed_from_u64(recording.seed ^ 0x901);
    let mut points: Vec<usize> = (0..cuts).map(|_| cut_point(recording, &mut rng)).collect();
    points.sort_unstable();
    points
}

/// Cuts one recorded run at these points. Returns the last disk that passed the check.
fn cut_run(
    recording: &Recording,
    honored: HonoredSyncs,
    points: Vec<usize>,
    tally: &mut Tally,
) -> Option<(Image, View)> {
    let mut rng = StdRng::seed_from_u64(recording.seed ^ 0x5eed);
    let mut disk = Disk::new(&recording.base, honored);
    let mut applied = 0;
    let mut survivor = None;
    for point in points {
        recording.events[applied..point].iter().for_each(|event| disk.apply(event));
        applied = point;
        let image = disk.cut(&mut rng);
        tally.cuts += 1;
        match check(recording, point, &image) {
            Ok(view) => survivor = Some((image, view)),
            Err(what) => tally.failures.push(format!("seed {}, cut at event {point}: {what}", recording.seed)),
        }
    }
    survivor
}

/// Picks a random point. It prefers risky ones: right after an acknowledgement, between a write and its sync, and
/// during the open.
fn cut_point(recording: &Recording, rng: &mut StdRng) -> usize {
    let events = &recording.events;
    let start = rng.random_range(0..events.len());
    let found = match rng.random_range(0..4) {
        0 => events[start..].iter().position(|event| matches!(event, Event::Acknowledged(_))).map(|n| start + n + 1),
        1 => events[start..].iter().position(|event| matches!(event, Event::SyncFile { .. })).map(|n| start + n),
        2 if rng.random_ratio(1, 2) => Some(rng.random_range(0..=recording.opened)),
        _ => Some(start),
    };
    found.unwrap_or(events.len())
}

/// Opens the disk that a cut has left and compares it with the acknowledged writes.
fn check(recording: &Recording, point: usize, image: &Image) -> Result<View, String> {
    let past = &recording.events[..point];
    let acknowledged = past.iter().filter(|event| matches!(event, Event::Acknowledged(_))).count();
    let submitted = past.iter().filter(|event| matches!(event, Event::Submitted)).count();
    let in_order = past.iter().filter_map(|event| if let Event::Acknowledged(n) = event { Some(*n) } else { None });
    assert!(in_order.eq(0..acknowledged), "acknowledged out of order");

    let scratch = scratch();
    image.write_to(scratch.path());
    // The test reads no events of this run: the recorder only skips the real syncs.
    let _recorder = Recorder::new(scratch.path(), image.file_ids());
    let node = scratch.path().join(DATA_DIR);
    let opened = DiskStorage::open_or_create(&node, identity()).map_err(|error| format!("refused: {error}"))?;
    let Opened { storage, is_new, .. } = opened;
    if is_new && point >= recording.opened {
        return Err("the store opened as a new directory".to_string());
    }
    let found = View::read(&storage)?;
    recording.before.allows(&recording.ops[..submitted], acknowledged, &found)?;
    let saves = past.iter().filter(|event| matches!(event, Event::Marker)).count();
    let (before, committed) = (recording.committed_before, storage.recovered().committed);
    allows_committed(before, &recording.committed_saves[..saves], acknowledged, committed)?;
    assert_eq!(blobs(&node), Vec::<PathBuf>::new(), "sled moved a value into a separate file");
    storage.close();

    let storage = DiskStorage::open(&node, identity()).map_err(|error| format!("refused the second time: {error}"))?;
    let again = View::read(&storage)?;
    if again != found {
        return Err(format!("the first open found {found:?}, the second one {again:?}"));
    }
    Ok(found)
}

fn blobs(node: &Path) -> Vec<PathBuf> {
    let dir = std::fs::read_dir(node.join("store/blobs")).expect("sled creates the directory");
    dir.map(|item| item.expect("readable").path()).collect()
}
