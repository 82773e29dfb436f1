//! Power cuts while a node starts and writes the file PROMISE.
//!
//! After the cut, the next start must wait for each leadership lease that the node may have promised. So it must read a
//! promise that is at least as long after every cut.

use std::path::Path;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tenure::config::RaftTimings;
use tenure::node::Node;
use tenure::storage::DirectoryFiles;
use tenure::testing::exchange_vote_lease;
use tokio::net::TcpListener;

use crate::disk::{Disk, HonoredSyncs, Image};
use crate::recorder::{Event, Recorder};
use crate::workload::DATA_DIR;
use crate::{cuts_per_event, first_seed, scratch};

const SHORT: Duration = Duration::from_millis(60);
const MIDDLE: Duration = Duration::from_millis(90);
const LONG: Duration = Duration::from_millis(180);
/// Shorter than every vote lease of the test.
const LEAST: Duration = Duration::from_millis(1);

/// The leadership lease of each run of the node. It rises, falls and stays the same.
const LEASES: [Duration; 6] = [MIDDLE, LONG, SHORT, SHORT, LONG, MIDDLE];

/// Starts and stops a node once for each leadership lease. `Acknowledged` follows each start. `Marker` marks the end of
/// the previous run's vote leases: one leadership lease after the end of that run.
async fn record(root: &Path) -> Vec<Event> {
    let recorder = Recorder::new(root, []);
    let mut last = Duration::ZERO;
    for (run, lease) in LEASES.into_iter().enumerate() {
        let over = async {
            tokio::time::sleep(last).await;
            recorder.push(Event::Marker);
        };
        // The marker comes first if both are ready: `biased` polls in this order.
        let ((), node) = tokio::join!(biased; over, start(root, lease));
        recorder.push(Event::Acknowledged(run));
        node.shutdown().await;
        last = lease;
    }
    recorder.events()
}

async fn start(root: &Path, lease: Duration) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let peer = listener.local_addr().expect("the listener is bound").to_string();
    let longest = lease.as_millis() as u64;
    let mut timings = RaftTimings::lan();
    timings.heartbeat_interval_ms = 10;
    (timings.election_timeout_min_ms, timings.election_timeout_max_ms) = (longest - 10, longest);
    let node = Node::builder("powercut").id(1).member(1, "127.0.0.1:1", peer).data(root.join(DATA_DIR));
    node.timings(timings).peer_listener(listener).start().await.expect("the node starts")
}

/// The longest vote lease that may be in force at this point: the one of the newest run, and the one of the previous run
/// until it ends.
fn in_force(past: &[Event]) -> Duration {
    let started = past.iter().filter(|event| matches!(event, Event::Acknowledged(_))).count();
    let over = past.iter().filter(|event| matches!(event, Event::Marker)).count().saturating_sub(1);
    LEASES[over.min(started)..started].iter().copied().max().unwrap_or(LEAST)
}

/// Reads the vote lease as the next start does, and as the start after it does if the next one crashes.
fn check(image: &Image, least: Duration) -> Result<(), String> {
    let scratch = scratch();
    image.only(|path| path.parent() == Some(Path::new(DATA_DIR))).write_to(scratch.path());
    // A start creates the directory if the cut left none.
    std::fs::create_dir_all(scratch.path().join(DATA_DIR)).expect("a directory");
    let files = DirectoryFiles(scratch.path().join(DATA_DIR));
    for start in ["next", "second"] {
        let read = exchange_vote_lease(&files, LEAST).map_err(|error| error.to_string())?;
        if read < least {
            return Err(format!("the {start} start reads {read:?}, and {least:?} may be in force"));
        }
    }
    Ok(())
}

/// Cuts the power at every event. Returns the number of cuts and the lost vote leases.
fn cut_everywhere(events: &[Event], honored: HonoredSyncs) -> (usize, Vec<String>) {
    let mut rng = StdRng::seed_from_u64(first_seed());
    let (mut disk, mut cuts, mut failures) = (Disk::new(&Image::default(), honored), 0, Vec::new());
    for (n, event) in events.iter().enumerate() {
        disk.apply(event);
        let least = in_force(&events[..=n]);
        for _ in 0..cuts_per_event() {
            let image = disk.cut(&mut rng);
            cuts += 1;
            failures.extend(check(&image, least).err().map(|what| format!("cut behind event {n}: {what}")));
        }
    }
    (cuts, failures)
}

#[tokio::test]
async fn vote_leases_survive_a_power_cut() {
    let scratch = scratch();
    let events = record(scratch.path()).await;
    let (cuts, failures) = cut_everywhere(&events, HonoredSyncs::All);
    println!("{cuts} cuts at {} events", events.len());
    assert!(failures.is_empty(), "{} of {cuts} cuts lost a vote lease; the first: {}", failures.len(), failures[0]);
    let (cuts, failures) = cut_everywhere(&events, HonoredSyncs::NoDirSync);
    println!("without directory syncs {} of {cuts} cuts lost a vote lease", failures.len());
    assert!(!failures.is_empty(), "the control must lose a vote lease");
}

/// Exchanges the vote lease for [`LONG`] on this disk, as a start does. Returns the file operations.
fn exchange_on(image: &Image) -> Vec<Event> {
    let scratch = scratch();
    image.write_to(scratch.path());
    let recorder = Recorder::new(scratch.path(), image.file_ids());
    let read = exchange_vote_lease(&DirectoryFiles(scratch.path().join(DATA_DIR)), LONG).expect("written");
    assert_eq!(read, LONG);
    recorder.events()
}

/// The killed start gave no vote lease, and its file is not durable. The next start finds the file, and gives one.
#[test]
fn vote_lease_after_a_killed_start_survives_a_power_cut() {
    const CUTS: usize = 20;
    let new = Image { dirs: vec![DATA_DIR.into()], ..Image::default() };
    let killed = exchange_on(&new);
    let renamed =
        killed.iter().position(|event| matches!(event, Event::Rename { .. })).expect("the file gets its name");
    let mut disk = Disk::new(&new, HonoredSyncs::All);
    killed[..=renamed].iter().for_each(|event| disk.apply(event));
    let mut rng = StdRng::seed_from_u64(first_seed());
    let lost = (0..CUTS).filter(|_| check(&disk.cut(&mut rng), LONG).is_err()).count();
    assert!(lost > 0, "control: the name is not durable at the kill");
    exchange_on(&disk.cached()).iter().for_each(|event| disk.apply(event));
    let failures: Vec<String> = (0..CUTS).filter_map(|_| check(&disk.cut(&mut rng), LONG).err()).collect();
    assert!(failures.is_empty(), "{} of {CUTS} cuts lost a vote lease; the first: {}", failures.len(), failures[0]);
}
