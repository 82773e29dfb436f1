//! Group commit. Only the storage thread writes, in groups that share one sync.
//!
//! A group holds the operations that callers queued during the previous commit, up to [`GROUP_BYTES`] or
//! [`GROUP_ENTRIES`]. Its records of the log are durable after one write and one `fdatasync`. The callbacks run after
//! the sync.
//!
//! Manifests and chunks of snapshots are in sled. A group with such writes makes them durable first: single inserts and
//! removes, of which sled's log recovers a prefix. `flush()` passes sled's buffers to the kernel, and `fdatasync` on a
//! second file handle makes them durable. The `flush` of sled alone neither reaches the device nor stores the new file
//! size.
//!
//! The bound on a group protects sled's data: commits near the size of a sled segment lost data in tests. The file
//! receives a multiple of the payload, because sled writes whole pages and moves old ones. The storage thread measures
//! these bytes, too, and syncs within a group when they exceed [`UNSYNCED_BYTES`].

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::directory::Directory;
use super::index::LogIndex;
use super::log::{GroupPlace, LogGroup, SegmentLog};
use super::metrics::CommitMetrics;
use super::segment::Item;
use super::trees::{self, Trees};
use super::{SharedStore, WriteOp};
use crate::storage::record::{self, ChunkV1, ManifestV1, Raw, RecordKind, SNAPSHOT, chunk_key};
use crate::storage::{Done, LogRecord, SnapshotManifest, StorageError};

/// Maximum bytes of payload in one group.
const GROUP_BYTES: usize = 128 << 10;
/// Maximum entries, or other writes, in one group.
pub(super) const GROUP_ENTRIES: usize = 1024;
/// Flush sled after this many writes to measure its log. Each KiB of payload counts as one write.
const FLUSH_EVERY: usize = 128;
/// Sync within a group when sled has written this many bytes since the last sync: an eighth of its segment.
const UNSYNCED_BYTES: i64 = 1 << 20;

/// The data of the storage thread.
pub(super) struct Committer {
    shared: Arc<SharedStore>,
    pub(super) trees: Trees,
    directory: Directory,
    /// A second handle of sled's data file. `fdatasync` on it also covers the writes through sled's own handle.
    data_file: File,
    log: SegmentLog,
    ops: VecDeque<WriteOp>,
    /// The number of entries of the append at the front of `ops` that earlier groups wrote.
    cursor: usize,
    pub(super) group: CommitGroup,
    /// Writes of sled since its last flush.
    unflushed: usize,
    /// sled's log is on the device up to this offset.
    synced_lsn: i64,
    /// Snapshots whose chunks are removed.
    pub(super) reclaims: VecDeque<u64>,
    pub(super) groups_since_removal: usize,
    /// Chunks written of each unfinished snapshot.
    unfinished: HashMap<u64, u64>,
    metrics: CommitMetrics,
}

/// The current group commit.
pub(super) struct CommitGroup {
    log: LogGroup,
    bytes: usize,
    pub writes: usize,
    pub has_sled_writes: bool,
    entries: usize,
    /// Entries are written up to this sequence number of the tail.
    written_seq: u64,
    callbacks: VecDeque<(Done, Result<(), StorageError>)>,
    finished_snapshot: Option<SnapshotManifest>,
}

/// The result of writing one operation.
enum WriteProgress {
    Complete,
    /// The group is full. The next group continues the operation.
    Partial,
    /// The operation is invalid. The store stays usable.
    Rejected(StorageError),
}

impl CommitGroup {
    fn new(log: LogGroup) -> CommitGroup {
        CommitGroup {
            log,
            bytes: 0,
            writes: 0,
            has_sled_writes: false,
            entries: 0,
            written_seq: 0,
            callbacks: VecDeque::new(),
            finished_snapshot: None,
        }
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.writes == 0 || (self.bytes + bytes <= GROUP_BYTES && self.writes < GROUP_ENTRIES)
    }

    fn wrote(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.writes += 1;
    }
}

/// The main function of the storage thread.
pub(super) fn run_thread(mut committer: Committer) {
    let shared = committer.shared();
    // sled panics on an unexpected internal state. Treat that as a failed store.
    let end = match catch_unwind(AssertUnwindSafe(|| committer.run())) {
        Ok(Ok(())) => StorageError::Closed,
        Ok(Err(error)) => error,
        Err(panic) => trees::panic_error("write to", &shared.dir, panic.as_ref()),
    };
    if end != StorageError::Closed {
        shared.poison(end.clone());
    }
    committer.fail_all(&end);
    shared.trees.write().take();
    // It has the files of the segments.
    shared.state.lock().index = LogIndex::default();
    let (trees, directory) = committer.into_parts();
    trees::close(trees);
    trees::wait_for_release(&directory);
}

impl Committer {
    pub fn new(
        shared: Arc<SharedStore>,
        trees: Trees,
        directory: Directory,
        data_file: File,
        log: SegmentLog,
    ) -> Committer {
        let synced_lsn = trees.written_lsn();
        Committer {
            shared,
            trees,
            directory,
            data_file,
            group: CommitGroup::new(log.group()),
            log,
            ops: VecDeque::new(),
            cursor: 0,
            unflushed: 0,
            synced_lsn,
            reclaims: VecDeque::new(),
            groups_since_removal: 0,
            unfinished: HashMap::new(),
            metrics: CommitMetrics::new(),
        }
    }

    /// Schedules removals that an earlier run did not finish.
    pub fn schedule_reclaims(&mut self, reclaims: Vec<u64>) {
        self.reclaims.extend(reclaims);
    }

    /// Commits groups until the store is closed or fails. The caller then calls [`fail_all`](Committer::fail_all).
    // tests/instructions.rs counts the instructions of this function.
    #[inline(never)]
    pub fn run(&mut self) -> Result<(), StorageError> {
        while self.wait_for_work() {
            self.fill()?;
            self.commit()?;
        }
        self.log.close()
    }

    /// Passes the error to all pending callbacks. The store must be closed or poisoned, so that no call queues more.
    pub fn fail_all(&mut self, error: &StorageError) {
        self.group.callbacks.drain(..).for_each(|(done, _)| done(Err(error.clone())));
        let queued = std::mem::take(&mut self.shared.state.lock().queue);
        self.ops.drain(..).chain(queued).filter_map(WriteOp::into_done).for_each(|done| done(Err(error.clone())));
    }

    pub fn shared(&self) -> Arc<SharedStore> {
        Arc::clone(&self.shared)
    }

    pub fn into_parts(self) -> (Trees, Directory) {
        (self.trees, self.directory)
    }

    /// Waits for operations to commit. Returns `false` when the store is closed and all operations are committed.
    fn wait_for_work(&mut self) -> bool {
        let mut state = self.shared.state.lock();
        loop {
            self.ops.append(&mut state.queue);
            // No caller waits for a committed position, so it starts a group only when the store closes.
            let last_note = state.closing && state.committed.is_some();
            if !self.ops.is_empty() || !self.reclaims.is_empty() && !state.closing || last_note {
                state.committing_since = Some(Instant::now());
                if let Some(committed) = state.committed.take() {
                    self.group.log.push(&Item::Committed(committed));
                }
                return true;
            }
            if state.closing {
                return false;
            }
            state.idle = true;
            self.shared.wake.wait(&mut state);
            state.idle = false;
        }
    }

    fn fill(&mut self) -> Result<(), StorageError> {
        while let Some(op) = self.ops.pop_front() {
            match self.write(&op) {
                Ok(WriteProgress::Complete) => self.group.callbacks.extend(op.into_done().map(|done| (done, Ok(())))),
                Ok(WriteProgress::Rejected(error)) => {
                    self.group.callbacks.extend(op.into_done().map(|done| (done, Err(error))))
                }
                Ok(WriteProgress::Partial) => {
                    self.ops.push_front(op);
                    break;
                }
                Err(error) => {
                    self.ops.push_front(op);
                    return Err(error);
                }
            }
        }
        self.reclaim_some()
    }

    /// Writes an operation, or the part of it that fits into the group.
    fn write(&mut self, op: &WriteOp) -> Result<WriteProgress, StorageError> {
        match op {
            // A manifest states that its chunks are durable, so an earlier group must have synced them.
            WriteOp::Finish { .. } if self.group.writes > 0 => return Ok(WriteProgress::Partial),
            WriteOp::Finish { manifest, .. } => return self.finish_snapshot(manifest),
            WriteOp::Append { records, first_seq, .. } => return Ok(self.write_entries(records, *first_seq)),
            op if !self.group.has_room_for(op.bytes()) => return Ok(WriteProgress::Partial),
            WriteOp::Truncate { last, .. } => {
                if *last != self.group.log.state().last {
                    self.group.log.push(&Item::Truncate(*last));
                }
            }
            WriteOp::Purge { upto, .. } => self.group.log.push(&Item::Floor(*upto)),
            WriteOp::Vote { vote, .. } => self.group.log.push(&Item::Vote(*vote)),
            WriteOp::Chunk { id, number, bytes, .. } => self.write_chunk(*id, *number, bytes)?,
            WriteOp::Abandon { id } => {
                self.unfinished.remove(id);
                self.reclaims.push_back(*id);
            }
        }
        self.group.wrote(op.bytes());
        Ok(WriteProgress::Complete)
    }

    fn write_entries(&mut self, records: &[LogRecord], first_seq: u64) -> WriteProgress {
        let first = std::mem::take(&mut self.cursor);
        for (n, LogRecord { position, payload }) in records.iter().enumerate().skip(first) {
            if !self.group.has_room_for(payload.len()) {
                self.cursor = n;
                return WriteProgress::Partial;
            }
            self.group.log.push(&Item::Entry { position: *position, payload });
            self.group.wrote(payload.len());
            self.group.entries += 1;
            self.group.written_seq = first_seq + n as u64;
        }
        WriteProgress::Complete
    }

    fn finish_snapshot(&mut self, manifest: &SnapshotManifest) -> Result<WriteProgress, StorageError> {
        let SnapshotManifest { id, meta, chunks, bytes, crc } = manifest;
        let found = self.unfinished.remove(id).unwrap_or(0);
        if found != *chunks {
            self.reclaims.push_back(*id);
            return Ok(WriteProgress::Rejected(StorageError::SnapshotIncomplete { id: *id, expected: *chunks, found }));
        }
        let stored = ManifestV1 { id: *id, meta: Raw(meta), chunks: *chunks, bytes: *bytes, crc: *crc };
        self.group.has_sled_writes = true;
        self.insert(&self.trees.meta, SNAPSHOT, record::seal(RecordKind::Manifest, SNAPSHOT, &stored, meta.len()))?;
        self.group.wrote(meta.len());
        self.group.finished_snapshot = Some(manifest.clone());
        Ok(WriteProgress::Complete)
    }

    /// Makes the group durable, then runs its callbacks in order.
    fn commit(&mut self) -> Result<(), StorageError> {
        let start = Instant::now();
        if self.group.has_sled_writes {
            self.flush()?;
            self.sync()?;
        }
        let place = if self.group.log.is_empty() { None } else { Some(self.log.write(&self.group.log)?) };
        self.metrics.committed(self.group.entries, self.group.bytes, start.elapsed());

        let mut group = std::mem::replace(&mut self.group, CommitGroup::new(self.log.group()));
        self.reclaims.extend(self.publish(&mut group, place));
        for (done, result) in group.callbacks {
            done(result);
        }
        if self.log.has_excess() {
            // The disk can hang here, too.
            self.shared.state.lock().committing_since = Some(Instant::now());
            self.log.trim()?;
            self.shared.state.lock().committing_since = None;
        }
        Ok(())
    }

    /// Counts a write of sled, and syncs if sled has written more than [`UNSYNCED_BYTES`]. This sync runs no callbacks: a power
    /// cut after it leaves a prefix of the writes, as at any other point.
    pub(super) fn count_write(&mut self, bytes: usize) -> Result<(), StorageError> {
        self.unflushed += 1 + (bytes >> 10);
        if self.unflushed < FLUSH_EVERY {
            return Ok(());
        }
        self.flush()?;
        if self.trees.written_lsn() - self.synced_lsn < UNSYNCED_BYTES { Ok(()) } else { self.sync() }
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        self.unflushed = 0;
        self.trees.db.flush().map(drop).map_err(|error| self.failed("flush", error))
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        let written_lsn = self.trees.written_lsn();
        let synced = self.data_file.sync_data();
        synced.map_err(|error| StorageError::io("sync", self.directory.data_file(), &error))?;
        self.synced_lsn = written_lsn;
        Ok(())
    }

    /// Shows the durable group to readers. Returns the id of the replaced snapshot.
    fn publish(&self, group: &mut CommitGroup, place: Option<GroupPlace>) -> Option<u64> {
        let mut state = self.shared.state.lock();
        state.committing_since = None;
        if let Some(place) = place {
            group.log.publish(place, &mut state.index);
        }
        state.tail.mark_written(group.written_seq);
        let finished = group.finished_snapshot.take()?;
        state.snapshot.replace(finished).map(|replaced| replaced.id)
    }

    fn write_chunk(&mut self, id: u64, number: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let key = chunk_key(id, number);
        let value = record::seal(RecordKind::Chunk, &key, &ChunkV1 { payload: Raw(bytes) }, bytes.len());
        self.group.has_sled_writes = true;
        self.insert(&self.trees.snap, &key, value)?;
        *self.unfinished.entry(id).or_default() += 1;
        self.count_write(bytes.len())
    }

    fn insert(&self, tree: &sled::Tree, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        tree.insert(key, value).map(drop).map_err(|error| self.failed("write", error))
    }

    pub(super) fn failed(&self, action: &'static str, error: sled::Error) -> StorageError {
        self.shared.sled_error(action, error)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parking_lot::{Condvar, Mutex, RwLock};
    use tokio::sync::watch;

    use super::*;
    use crate::storage::VoteRecord;

    /// A committer of a new store. It syncs the data file, or this device instead.
    fn committer(directory: Directory, device: Option<&str>) -> Committer {
        directory.prepare_store().expect("a writable folder");
        let trees = trees::open(&directory).expect("a new store opens");
        let data_file = device.map_or_else(|| File::open(directory.data_file()), File::open).expect("it exists");
        let shared = SharedStore {
            state: Mutex::default(),
            wake: Condvar::new(),
            trees: RwLock::new(Some(trees.clone())),
            failure: watch::Sender::new(None),
            dir: directory.path().to_path_buf(),
            log_dir: directory.log(),
        };
        let log = SegmentLog::create(&directory.log()).expect("a writable folder");
        Committer::new(Arc::new(shared), trees, directory, data_file, log)
    }

    #[test]
    fn failed_sync_inside_a_group_fails_the_store() {
        const VALUE: usize = 4 << 10;
        // The kernel cannot sync a device without data.
        for device in [None, Some("/dev/null")] {
            let dir = tempfile::tempdir().expect("a folder");
            let directory = Directory::claim(dir.path()).expect("an empty folder");
            let data = directory.data_file();
            let mut committer = committer(directory, device);
            let before = committer.synced_lsn;
            // The next group begins with more bytes than it may leave unsynced.
            for number in 0..2 * UNSYNCED_BYTES as usize / VALUE {
                committer.trees.snap.insert(number.to_be_bytes(), vec![7; VALUE]).expect("written");
            }
            for number in 0..2 * FLUSH_EVERY as u64 {
                let bytes = Bytes::from_static(b"7");
                committer.ops.push_back(WriteOp::Chunk { id: 1, number, bytes, done: Box::new(drop) });
            }
            let filled = committer.fill();
            match device {
                None => assert!(filled.is_ok() && committer.synced_lsn > before, "control: {filled:?}"),
                Some(_) => {
                    let error = filled.expect_err("the group ends").to_string();
                    assert!(error.starts_with(&format!("could not sync {}", data.display())), "{error}");
                    assert_eq!(committer.synced_lsn, before);
                }
            }
        }
    }

    /// Each group has a write of the log, so the store is never idle.
    #[test]
    fn busy_store_removes_replaced_snapshots() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut committer = committer(Directory::claim(dir.path()).expect("an empty folder"), None);
        committer.trees.snap.insert(chunk_key(1, 0), vec![7; 100]).expect("written");
        committer.schedule_reclaims(vec![1]);
        for term in 1..=17 {
            let vote = VoteRecord { term, candidate: Some(1), committed: false };
            committer.ops.push_back(WriteOp::Vote { vote, done: Box::new(drop) });
            committer.fill().expect("written");
            committer.commit().expect("durable");
        }
        assert_eq!(committer.trees.snap.len(), 0, "chunks of the replaced snapshot");
    }
}
