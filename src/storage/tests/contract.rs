//! The contract of [`Storage`], for the store on a disk and the one in memory.

use super::*;
use crate::sim::{Cut, MemoryStorage, SyncMode};
use crate::storage::{Recovered, SNAPSHOT_CHUNK_BYTES};

/// A store that a test can close and open again.
trait Reopen: Storage {
    fn reopen(self, dir: &Path) -> Self;
}

impl Reopen for MemoryStorage {
    fn reopen(self, _: &Path) -> MemoryStorage {
        self.restart()
    }
}

impl Reopen for DiskStorage {
    fn reopen(self, dir: &Path) -> DiskStorage {
        self.close();
        open(dir)
    }
}

macro_rules! both_stores {
    ($($name:ident)*) => {
        mod memory {
            $(#[test] fn $name() { super::$name(super::MemoryStorage::default(), super::Path::new("")); })*
        }
        mod disk {
            $(#[test] fn $name() {
                let dir = tempfile::tempdir().unwrap();
                super::$name(super::open(dir.path()), dir.path());
            })*
        }
    };
}

both_stores! {
    empty_store_has_nothing
    store_with_only_a_vote_is_not_empty
    store_with_only_an_entry_is_not_empty
    entries_are_readable_at_once_and_after_a_restart
    entries_of_every_size_read_back
    read_log_stops_at_the_limit_after_the_first_entry
    truncated_entries_do_not_come_back
    truncating_all_entries_keeps_the_floor
    purge_moves_the_start
    purge_above_the_end_moves_both_ends
    log_may_start_at_index_one
    non_contiguous_entries_are_refused
    last_vote_and_committed_position_survive_restart
    snapshot_replaces_the_previous_one
    unfinished_snapshot_leaves_nothing
    new_snapshot_beside_an_unfinished_one_is_whole
    manifest_with_a_wrong_chunk_count_is_refused
    snapshot_can_be_empty
}

fn empty_store_has_nothing(storage: impl Reopen, dir: &Path) {
    let storage = storage.reopen(dir);
    assert_eq!(storage.recovered(), Recovered::default());
    assert_eq!(storage.log_bounds(), (None, None));
    assert_eq!((storage.vote(), storage.snapshot()), (None, None));
    assert_eq!(storage.read_log(0, 10, 10), Ok(vec![]));
    assert!(storage.is_empty());
}

fn store_with_only_a_vote_is_not_empty(storage: impl Reopen, dir: &Path) {
    wait(|done| storage.save_vote(vote(1), done)).unwrap();
    assert!(!storage.is_empty());
    assert!(!storage.reopen(dir).is_empty());
}

fn store_with_only_an_entry_is_not_empty(storage: impl Reopen, dir: &Path) {
    wait(|done| storage.append(entries(0, 0..1, 10), done)).unwrap();
    assert!(!storage.is_empty());
    assert!(!storage.reopen(dir).is_empty());
}

fn entries_are_readable_at_once_and_after_a_restart(storage: impl Reopen, dir: &Path) {
    let written = entries(1, 0..300, 100);
    storage.append(written.clone(), Box::new(drop));
    assert_eq!(whole_log(&storage), written);
    assert_eq!(storage.log_bounds(), (None, Some(at(1, 299))));
    assert_eq!(storage.read_log(10, 12, usize::MAX).unwrap(), written[10..12]);
    assert_eq!(storage.read_log(299, 400, usize::MAX).unwrap(), written[299..]);

    wait(|done| storage.append(entries(2, 300..301, 5), done)).unwrap();
    let storage = storage.reopen(dir);
    assert_eq!(storage.recovered().last, Some(at(2, 300)));
    assert_eq!(whole_log(&storage), [written, entries(2, 300..301, 5)].concat());
}

fn entries_of_every_size_read_back(storage: impl Reopen, dir: &Path) {
    let sizes = [0, 1, 100, (4 << 10) - 1, 4 << 10, (4 << 10) + 1, 100_000, 127 << 10, 129 << 10, 1 << 20, 0];
    let written: Vec<LogRecord> = (0..).zip(sizes).map(|(index, bytes)| entry(1, index, bytes)).collect();
    wait(|done| storage.append(written.clone(), done)).unwrap();
    assert_eq!(whole_log(&storage.reopen(dir)), written);
}

fn read_log_stops_at_the_limit_after_the_first_entry(storage: impl Reopen, dir: &Path) {
    let storage = storage.reopen(dir);
    wait(|done| storage.append(entries(1, 0..10, 100), done)).unwrap();
    assert_eq!(storage.read_log(2, 10, 350).unwrap(), entries(1, 2..5, 100));
    assert_eq!(storage.read_log(2, 10, 0).unwrap(), entries(1, 2..3, 100));
}

fn truncated_entries_do_not_come_back(storage: impl Reopen, dir: &Path) {
    wait(|done| storage.append(entries(1, 0..2000, 50), done)).unwrap();
    storage.truncate_after(Some(499), Box::new(drop));
    assert_eq!(storage.log_bounds(), (None, Some(at(1, 499))));
    wait(|done| storage.append(entries(2, 500..600, 50), done)).unwrap();
    wait(|done| storage.truncate_after(Some(549), done)).unwrap();
    wait(|done| storage.truncate_after(Some(9999), done)).unwrap();

    let expected = [entries(1, 0..500, 50), entries(2, 500..550, 50)].concat();
    assert_eq!(whole_log(&storage), expected);
    let storage = storage.reopen(dir);
    assert_eq!(storage.recovered().last, Some(at(2, 549)));
    assert_eq!(whole_log(&storage), expected);
}

fn truncating_all_entries_keeps_the_floor(storage: impl Reopen, dir: &Path) {
    wait(|done| storage.append(entries(3, 0..20, 50), done)).unwrap();
    wait(|done| storage.purge(at(3, 9), done)).unwrap();
    wait(|done| storage.truncate_after(None, done)).unwrap();
    assert_eq!(storage.log_bounds(), (Some(at(3, 9)), Some(at(3, 9))));
    let storage = storage.reopen(dir);
    assert_eq!(storage.log_bounds(), (Some(at(3, 9)), Some(at(3, 9))));
    wait(|done| storage.append(entries(4, 10..11, 50), done)).unwrap();
    assert_eq!(whole_log(&storage.reopen(dir)), entries(4, 10..11, 50));
}

fn purge_moves_the_start(storage: impl Reopen, dir: &Path) {
    wait(|done| storage.append(entries(1, 0..3000, 50), done)).unwrap();
    wait(|done| storage.purge(at(1, 1999), done)).unwrap();
    assert_eq!(storage.log_bounds(), (Some(at(1, 1999)), Some(at(1, 2999))));
    assert_eq!(storage.read_log(1999, 2005, 9999), Err(StorageError::Purged { index: 1999, floor: 1999 }));
    // A late purge with an older position does not move the floor back.
    wait(|done| storage.purge(at(1, 500), done)).unwrap();

    let storage = storage.reopen(dir);
    assert_eq!(storage.recovered().purged, Some(at(1, 1999)));
    assert_eq!(whole_log(&storage), entries(1, 2000..3000, 50));
}

fn purge_above_the_end_moves_both_ends(storage: impl Reopen, dir: &Path) {
    wait(|done| storage.append(entries(1, 0..10, 50), done)).unwrap();
    wait(|done| storage.purge(at(5, 1000), done)).unwrap();
    assert_eq!(storage.log_bounds(), (Some(at(5, 1000)), Some(at(5, 1000))));
    let storage = storage.reopen(dir);
    assert_eq!(storage.recovered().last, Some(at(5, 1000)));
    wait(|done| storage.append(entries(5, 1001..1010, 50), done)).unwrap();
    assert_eq!(whole_log(&storage.reopen(dir)), entries(5, 1001..1010, 50));
}

fn log_may_start_at_index_one(storage: impl Reopen, dir: &Path) {
    wait(|done| storage.append(entries(1, 1..10, 50), done)).unwrap();
    assert_eq!(storage.read_log(0, 3, 9999).unwrap(), entries(1, 1..3, 50));
    assert_eq!(whole_log(&storage.reopen(dir)), entries(1, 1..10, 50));
}

fn non_contiguous_entries_are_refused(storage: impl Reopen, dir: &Path) {
    let refused = |records| wait(|done| storage.append(records, done)).unwrap_err();
    assert_eq!(refused(entries(1, 2..3, 1)), StorageError::NotContiguous { expected: 1, found: 2 });
    wait(|done| storage.append(entries(1, 0..3, 1), done)).unwrap();
    assert_eq!(refused(entries(1, 4..5, 1)), StorageError::NotContiguous { expected: 3, found: 4 });
    let twice = [entries(1, 3..4, 1), entries(1, 3..4, 1)].concat();
    assert_eq!(refused(twice), StorageError::NotContiguous { expected: 4, found: 3 });
    wait(|done| storage.append(entries(1, 3..4, 1), done)).unwrap();
    assert_eq!(whole_log(&storage.reopen(dir)), entries(1, 0..4, 1));
}

fn last_vote_and_committed_position_survive_restart(storage: impl Reopen, dir: &Path) {
    storage.save_vote(vote(1), Box::new(drop));
    storage.save_committed(Some(at(1, 5)));
    wait(|done| storage.save_vote(vote(2), done)).unwrap();
    storage.save_committed(Some(at(1, 7)));
    assert_eq!(storage.vote(), Some(vote(2)));
    let storage = storage.reopen(dir);
    assert_eq!(storage.vote(), Some(vote(2)));
    assert_eq!((storage.recovered().vote, storage.recovered().committed), (Some(vote(2)), Some(at(1, 7))));
}

/// As on the disk, the recovered position can be ahead of entries that were queued before it.
#[test]
fn power_cut_keeps_the_committed_position_before_its_group() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    storage.append(entries(1, 0..3, 1), Box::new(drop));
    storage.save_committed(Some(at(1, 2)));
    let found = storage.crash(Cut::Torn { writes: 0, entries: 1 }).recovered();
    assert_eq!((found.committed, found.last), (Some(at(1, 2)), Some(at(1, 0))));
}

/// It waits for a group that another write starts.
#[test]
fn committed_position_alone_is_not_synced() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    storage.save_committed(Some(at(1, 2)));
    assert_eq!((storage.unsynced(), storage.sync()), (0, 0));
    storage.save_vote(vote(1), Box::new(drop));
    storage.sync();
    assert_eq!(storage.crash(Cut::Keep(0)).recovered().committed, Some(at(1, 2)));
}

fn snapshot_replaces_the_previous_one(storage: impl Reopen, dir: &Path) {
    let (old, _) = write_snapshot(&storage, 300_000, 1);
    let (new, content) = write_snapshot(&storage, 5 * SNAPSHOT_CHUNK_BYTES, 2);
    assert!(new > old);
    assert_eq!(read_snapshot(&storage, old), Err(StorageError::SnapshotReplaced { id: old }));
    assert_eq!(read_snapshot(&storage, new).unwrap(), content);

    let storage = storage.reopen(dir);
    let manifest = storage.recovered().snapshot.unwrap();
    assert_eq!((manifest.id, manifest.chunks, manifest.bytes), (new, 5, content.len() as u64));
    assert_eq!((manifest.meta.as_slice(), manifest.crc), (&[2][..], crc32fast::hash(&content)));
    assert_eq!(read_snapshot(&storage, new).unwrap(), content);
    assert!(storage.begin_snapshot().unwrap().id() > new);
}

fn unfinished_snapshot_leaves_nothing(storage: impl Reopen, dir: &Path) {
    let (id, content) = write_snapshot(&storage, 100_000, 1);
    let mut dropped = storage.begin_snapshot().unwrap();
    dropped.push(&[7; 100_000]).unwrap();
    drop(dropped);
    let mut forgotten = storage.begin_snapshot().unwrap();
    forgotten.push(&[7; 100_000]).unwrap();
    wait(|done| storage.save_vote(vote(1), done)).unwrap();
    std::mem::forget(forgotten);

    let storage = storage.reopen(dir);
    assert_eq!(read_snapshot(&storage, id).unwrap(), content);
}

/// After a start, each commit removes a part of the unfinished chunks while a new snapshot is written.
fn new_snapshot_beside_an_unfinished_one_is_whole(storage: impl Reopen, dir: &Path) {
    let mut unfinished = storage.begin_snapshot().unwrap();
    let left = unfinished.id();
    unfinished.push(&[7; 100 * SNAPSHOT_CHUNK_BYTES]).unwrap();
    wait(|done| storage.save_vote(vote(1), done)).unwrap();
    std::mem::forget(unfinished);

    let storage = storage.reopen(dir);
    let (id, content) = write_snapshot(&storage, 3 * SNAPSHOT_CHUNK_BYTES, 1);
    assert!(id > left, "the new id {id} is not above {left}, whose chunks may remain");
    (0..100).for_each(|term| wait(|done| storage.save_vote(vote(term), done)).unwrap());
    assert_eq!(read_snapshot(&storage, id).unwrap(), content);
    assert_eq!(read_snapshot(&storage.reopen(dir), id).unwrap(), content);
}

fn manifest_with_a_wrong_chunk_count_is_refused(storage: impl Reopen, dir: &Path) {
    let id = storage.begin_snapshot().unwrap().id() + 1;
    wait(|done| storage.write_snapshot_chunk(id, 0, Bytes::from_static(b"chunk"), done)).unwrap();
    let manifest = crate::storage::SnapshotManifest { id, meta: vec![], chunks: 2, bytes: 5, crc: 0 };
    let refused = wait(|done| storage.finish_snapshot(manifest, done)).unwrap_err();
    assert_eq!(refused, StorageError::SnapshotIncomplete { id, expected: 2, found: 1 });
    wait(|done| storage.save_vote(vote(1), done)).expect("the store stays usable");
    assert_eq!(storage.reopen(dir).snapshot(), None);
}

fn snapshot_can_be_empty(storage: impl Reopen, dir: &Path) {
    let (id, _) = write_snapshot(&storage, 0, 3);
    let storage = storage.reopen(dir);
    assert_eq!(storage.snapshot().map(|manifest| (manifest.id, manifest.chunks)), Some((id, 0)));
}

#[test]
fn memory_power_cut_drops_unsynced_writes() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    storage.append(entries(1, 0..3, 1), Box::new(drop));
    storage.sync();
    storage.append(entries(1, 3..5, 1), Box::new(|_| panic!("a lost append was acknowledged")));
    storage.save_vote(vote(1), Box::new(drop));
    storage.append(entries(1, 5..9, 1), Box::new(drop));
    assert_eq!((storage.unsynced(), whole_log(&storage).len()), (3, 9));

    let dead = storage.clone();
    let storage = storage.crash(Cut::Torn { writes: 2, entries: 1 });
    assert_eq!(dead.read_log(0, 1, 1), Err(StorageError::Closed));
    assert_eq!((whole_log(&storage), storage.vote()), (entries(1, 0..6, 1), Some(vote(1))));
    storage.truncate_after(Some(0), Box::new(drop));
    assert_eq!(whole_log(&storage.crash(Cut::Keep(0))), entries(1, 0..6, 1));
}

#[test]
fn memory_sync_failure_poisons_the_store() {
    let storage = MemoryStorage::default();
    let failure = storage.failure();
    storage.fail_next(StorageError::Closed);
    assert_eq!(wait(|done| storage.save_vote(vote(1), done)), Err(StorageError::Closed));
    assert_eq!(wait(|done| storage.save_vote(vote(2), done)), Err(StorageError::Closed));
    assert_eq!(*failure.borrow(), Some(StorageError::Closed));
    assert_eq!(storage.crash(Cut::Keep(0)).vote(), None);
}
