//! Power cuts while a store of an earlier release moves its log from sled into segments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tenure::storage::{DiskStorage, Identity, Opened};

use crate::disk::{Disk, HonoredSyncs, Image};
use crate::history::View;
use crate::recorder::{Event, Recorder};
use crate::{cuts_per_event, first_seed, scratch};

/// The directory in the archives of `tests/formats`.
const DATA: &str = "data";

fn identity() -> Identity {
    Identity { cluster: "formats".to_owned(), node: 1 }
}

/// A saved directory of format 1.
fn saved() -> Image {
    let folder = scratch();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/3/data.tar.gz");
    let unpacked = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder.path()).status();
    assert!(unpacked.expect("tar runs").success());
    let mut image = Image::default();
    add(&mut image, folder.path(), PathBuf::from(DATA));
    image
}

fn add(image: &mut Image, root: &Path, dir: PathBuf) {
    image.dirs.push(dir.clone());
    for item in fs::read_dir(root.join(&dir)).expect("a directory") {
        let item = item.expect("readable");
        let path = dir.join(item.file_name());
        if item.path().is_dir() {
            add(image, root, path);
        } else {
            let id = image.files.len() as u32;
            image.files.insert(path, (id, fs::read(item.path()).expect("readable")));
        }
    }
}

/// The contents of a directory that opens as an old one.
fn read(root: &Path) -> Result<View, String> {
    let opened = DiskStorage::open_or_create(root.join(DATA), identity()).map_err(|error| error.to_string())?;
    let Opened { storage, is_new, .. } = opened;
    if is_new {
        return Err("the store opened as a new directory".to_owned());
    }
    let view = View::read(&storage)?;
    storage.close();
    Ok(view)
}

/// Opens the directory that a cut left, twice.
fn check(image: &Image, whole: &View) -> Result<(), String> {
    let scratch = scratch();
    image.write_to(scratch.path());
    let _recorder = Recorder::new(scratch.path(), image.file_ids());
    for _ in 0..2 {
        let found = read(scratch.path())?;
        if found != *whole {
            return Err(format!("found {found:?}: expected {whole:?}"));
        }
    }
    Ok(())
}

/// Cuts the power at every event. Returns the number of cuts and the failures.
fn cut_everywhere(base: &Image, events: &[Event], honored: HonoredSyncs, whole: &View) -> (usize, Vec<String>) {
    let mut rng = StdRng::seed_from_u64(first_seed());
    let (mut disk, mut cuts, mut failures) = (Disk::new(base, honored), 0, Vec::new());
    for (n, event) in events.iter().enumerate() {
        disk.apply(event);
        for _ in 0..cuts_per_event() {
            cuts += 1;
            let failed = check(&disk.cut(&mut rng), whole).err();
            failures.extend(failed.map(|what| format!("cut behind event {n} of {}: {what}", events.len())));
        }
    }
    (cuts, failures)
}

#[test]
fn power_cut_while_the_log_moves_loses_nothing() {
    let base = saved();
    let root = scratch();
    base.write_to(root.path());
    let recorder = Recorder::new(root.path(), base.file_ids());
    let whole = read(root.path()).expect("the saved directory opens");
    let events = recorder.events();
    drop(recorder);
    assert!(whole.snapshot.is_some() && !whole.log.is_empty() && whole.vote.is_some(), "{whole:?}");
    let (cuts, failures) = cut_everywhere(&base, &events, HonoredSyncs::All, &whole);
    println!("{cuts} cuts at {} events", events.len());
    assert!(failures.is_empty(), "{} of {cuts} cuts; the first: {}", failures.len(), failures[0]);
    for control in [HonoredSyncs::NoDataSync, HonoredSyncs::NoDirSync] {
        let (cuts, failures) = cut_everywhere(&base, &events, control, &whole);
        println!("{control:?}: {} of {cuts} cuts lost data", failures.len());
        assert!(!failures.is_empty(), "{control:?} must lose data");
    }
}

/// An interrupted first start of this release, or a copy of the old files over the new ones, leaves a log that is not
/// the one of this directory.
#[test]
fn stale_log_is_not_taken_for_the_old_one() {
    let base = saved();
    let whole = {
        let root = scratch();
        base.write_to(root.path());
        read(root.path()).expect("the saved directory opens")
    };
    let other = scratch();
    DiskStorage::open(other.path().join(DATA), identity()).expect("a new store").close();
    for kept in [&["0000000000000001.log", "new"][..], &["new"], &[]] {
        let root = scratch();
        base.write_to(root.path());
        let log = root.path().join(DATA).join("log");
        fs::create_dir(&log).expect("there is no log");
        for name in kept {
            fs::copy(other.path().join(DATA).join("log").join(name), log.join(name)).expect("copied");
        }
        for _ in 0..2 {
            assert_eq!(read(root.path()).as_ref(), Ok(&whole), "{kept:?}");
        }
    }
}
