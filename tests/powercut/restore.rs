//! Power cuts while a node saves a backup, and while a restore fills a data directory.
//!
//! A cut during a save leaves no file with the name of the backup, or the whole backup.
//!
//! A cut during a restore leaves one of three states: nothing, so that the restore can run again; a directory that every start refuses; or
//! the whole restored state. After the restore has returned, only the last one is left.

use std::path::Path;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tenure::LeaseManager;
use tenure::Wait;
use tenure::backup::{LostHolders, RestoreOptions, inspect};
use tenure::node::{Consistency, Node, NodeBuilder};
use tenure::storage::{DiskStorage, Opened, StorageError};
use tokio::net::TcpListener;

use crate::disk::{Disk, HonoredSyncs, Image};
use crate::history::View;
use crate::recorder::{Event, Recorder};
use crate::workload::{DATA_DIR, identity};
use crate::{cuts_per_event, first_seed, scratch};

const BACKUP: &str = "backup";

/// Saves a backup of a cluster with a held lease. The node has its data in `folder`.
async fn save_backup(folder: &Path, file: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let peer = listener.local_addr().expect("the listener is bound").to_string();
    let builder = Node::builder("lost").id(1).member(1, "127.0.0.1:1", peer).data(folder.join("lost"));
    let node = builder.peer_listener(listener).start().await.expect("the node starts");
    let leases: LeaseManager = node.leases();
    let lease = leases.lease("job").expect("a name");
    lease.acquire(Wait::ForTtl).await.expect("it is free");
    node.save_backup(file, Consistency::Leader).await.expect("saved");
    node.shutdown().await;
}

fn target(root: &Path) -> NodeBuilder {
    let cluster = identity().cluster;
    Node::builder(cluster).id(1).member(1, "127.0.0.1:1", "127.0.0.1:2").data(root.join(DATA_DIR))
}

fn restore(root: &Path, backup: &Path) -> Result<(), String> {
    let options = RestoreOptions::new(LostHolders::Stopped);
    target(root).restore(backup, options).map(drop).map_err(|error| error.to_string())
}

/// The contents of a directory that opens.
fn read(root: &Path) -> Result<View, StorageError> {
    let Opened { storage, .. } = DiskStorage::open_or_create(root.join(DATA_DIR), identity())?;
    let view = View::read(&storage).expect("an open store is readable");
    storage.close();
    Ok(view)
}

/// Checks the directory that a cut left.
fn check(image: &Image, backup: &Path, whole: &View, is_acknowledged: bool) -> Result<(), String> {
    let scratch = scratch();
    image.write_to(scratch.path());
    let dir = scratch.path().join(DATA_DIR);
    let is_refused = |error: &StorageError| matches!(error, StorageError::HalfRestored { .. });
    if !is_acknowledged {
        // It says that nothing was restored, so the restore can run again.
        if restore(scratch.path(), backup).is_ok() {
            return Ok(());
        }
        if DiskStorage::open(&dir, identity()).err().as_ref().is_some_and(is_refused) {
            return Ok(());
        }
    }
    match read(scratch.path()) {
        Ok(view) if view == *whole => Ok(()),
        Ok(view) => Err(format!("it opens with {view:?}, not with {whole:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks the folder of the backup that a cut left.
fn check_saved(image: &Image, is_acknowledged: bool) -> Result<(), String> {
    let scratch = scratch();
    image.write_to(scratch.path());
    let backup = scratch.path().join(BACKUP);
    if backup.exists() {
        return inspect(&backup).map(drop).map_err(|error| error.to_string());
    }
    if is_acknowledged { Err("the saved backup is missing".to_owned()) } else { Ok(()) }
}

/// Cuts the power several times at every event. Returns the number of cuts and the failures of `check`, which gets the
/// disk and whether the work was acknowledged before the cut.
fn cut_everywhere(
    events: &[Event],
    honored: HonoredSyncs,
    cuts_per_event: usize,
    check: impl Fn(&Image, bool) -> Result<(), String>,
) -> (usize, Vec<String>) {
    let mut rng = StdRng::seed_from_u64(first_seed());
    let (mut disk, mut cuts, mut failures) = (Disk::new(&Image::default(), honored), 0, Vec::new());
    let mut is_acknowledged = false;
    for (n, event) in events.iter().enumerate() {
        disk.apply(event);
        is_acknowledged |= matches!(event, Event::Acknowledged(_));
        for _ in 0..cuts_per_event {
            let image = disk.cut(&mut rng);
            cuts += 1;
            let failed = check(&image, is_acknowledged).err();
            failures.extend(failed.map(|what| format!("cut behind event {n} of {}: {what}", events.len())));
        }
    }
    (cuts, failures)
}

#[tokio::test(flavor = "multi_thread")]
async fn half_restored_state_never_opens_after_a_power_cut() {
    let (folder, root) = (scratch(), scratch());
    let backup = folder.path().join(BACKUP);
    save_backup(folder.path(), &backup).await;
    let recorder = Recorder::new(root.path(), []);
    restore(root.path(), &backup).expect("restored");
    recorder.push(Event::Acknowledged(0));
    let events = recorder.events();
    drop(recorder);
    let whole = read(root.path()).expect("the restored state opens");
    assert!(whole.snapshot.is_some(), "{whole:?}");
    let check = |image: &Image, is_acknowledged| check(image, &backup, &whole, is_acknowledged);
    let (cuts, failures) = cut_everywhere(&events, HonoredSyncs::All, cuts_per_event(), check);
    println!("{cuts} cuts at {} events", events.len());
    assert!(failures.is_empty(), "{} of {cuts} cuts; the first: {}", failures.len(), failures[0]);
    // The second open of a restore syncs the data file once more, so the restore does not rely on `fdatasync`.
    let controls = [HonoredSyncs::NoDirSync, HonoredSyncs::NoFileSync];
    let found = controls.map(|control| cut_everywhere(&events, control, cuts_per_event(), check).1.len());
    println!("without syncs of directories or files, {found:?} of {cuts} cuts left a wrong state");
    assert!(found.iter().sum::<usize>() > 0, "the controls must find a wrong state");
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_backup_is_whole_after_a_power_cut() {
    /// A save has few events and a small file.
    const CUTS_PER_EVENT: usize = 100;
    let (folder, backups) = (scratch(), scratch());
    let recorder = Recorder::new(backups.path(), []);
    save_backup(folder.path(), &backups.path().join(BACKUP)).await;
    recorder.push(Event::Acknowledged(0));
    let events = recorder.events();
    drop(recorder);
    let cut = |honored| cut_everywhere(&events, honored, CUTS_PER_EVENT, check_saved);
    let (cuts, failures) = cut(HonoredSyncs::All);
    println!("{cuts} cuts at {} events", events.len());
    assert!(failures.is_empty(), "{} of {cuts} cuts; the first: {}", failures.len(), failures[0]);
    for control in [HonoredSyncs::NoDirSync, HonoredSyncs::NoFileSync] {
        assert!(!cut(control).1.is_empty(), "{control:?} must leave a wrong state");
    }
}
