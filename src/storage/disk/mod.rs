//! The store on a disk: the calls of [`Storage`]. Another thread writes.

mod commit;
pub(crate) mod directory;
mod index;
mod log;
mod metrics;
pub(super) mod migration;
mod reading;
mod reclaim;
mod recovery;
pub(crate) mod replay;
mod restoring;
pub(crate) mod segment;
mod segment_files;
mod tail;
pub(super) mod trees;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::watch;

use self::index::LogIndex;
pub(crate) use self::metrics::describe_metrics;
pub use self::restoring::Restoring;
use self::segment::MAX_ENTRY_BYTES;
use self::tail::Tail;
use self::trees::Trees;
use super::record::{self, ChunkV1, RecordKind, chunk_key};
use super::{
    Done, LogRecord, Position, Recovered, SnapshotManifest, SnapshotWriter, Storage, StorageError, VoteRecord,
};

/// The store of a node in a directory. It survives power cuts.
///
/// Clones share the store. [`close`](DiskStorage::close) or the drop of the last clone closes it.
#[derive(Clone)]
pub struct DiskStorage {
    handle: Arc<Handle>,
}

/// A store that has just been opened.
pub struct Opened {
    pub storage: DiskStorage,
    /// Whether the directory was empty: this is the first start of the node.
    pub is_new: bool,
    /// A random number from the first start. A directory that lost its data and was filled again has another one.
    pub incarnation: u64,
}

/// Closes the store when the last clone is dropped.
struct Handle {
    shared: Arc<SharedStore>,
    recovered: Recovered,
    thread_id: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The data that the callers and the storage thread share.
struct SharedStore {
    pub state: Mutex<QueuedState>,
    /// The storage thread waits for work on this condition.
    pub wake: Condvar,
    /// For reads of snapshots. `None` after the store is closed.
    trees: RwLock<Option<Trees>>,
    failure: watch::Sender<Option<StorageError>>,
    dir: PathBuf,
    log_dir: PathBuf,
}

/// One queued write.
enum WriteOp {
    /// `first_seq` is the tail's sequence number of the first entry.
    Append {
        records: Vec<LogRecord>,
        first_seq: u64,
        done: Done,
    },
    Truncate {
        /// The last position after the truncation.
        last: Option<Position>,
        done: Done,
    },
    Purge {
        upto: Position,
        done: Done,
    },
    Vote {
        vote: VoteRecord,
        done: Done,
    },
    Chunk {
        id: u64,
        number: u64,
        bytes: Bytes,
        done: Done,
    },
    Finish {
        manifest: SnapshotManifest,
        done: Done,
    },
    Abandon {
        id: u64,
    },
}

/// The state behind the lock that callers and the storage thread share. No holder of the lock does disk I/O.
#[derive(Default)]
struct QueuedState {
    pub queue: VecDeque<WriteOp>,
    pub tail: Tail,
    /// The places of all durable entries.
    pub index: LogIndex,
    pub floor: Option<Position>,
    pub last: Option<Position>,
    pub vote: Option<VoteRecord>,
    /// A committed position for the next group.
    pub committed: Option<Option<Position>>,
    /// The newest durable snapshot.
    pub snapshot: Option<SnapshotManifest>,
    pub next_snapshot_id: u64,
    pub failure: Option<StorageError>,
    pub closing: bool,
    /// Whether the storage thread waits for a wake-up.
    pub idle: bool,
    /// The start of the running commit.
    pub committing_since: Option<Instant>,
}

impl DiskStorage {
    /// Writes all queued data and releases every file. The directory can be opened again when this returns. Later calls
    /// on clones fail with [`StorageError::Closed`].
    ///
    /// Inside a callback this returns at once, because the storage thread cannot wait for itself. It blocks for as long
    /// as the disk hangs.
    pub fn close(&self) {
        self.handle.close();
    }

    fn shared(&self) -> &SharedStore {
        &self.handle.shared
    }

    /// Queues the operation that `prepare` returns, or passes its error to the callback.
    fn queue(&self, done: Done, prepare: impl FnOnce(&mut QueuedState, Done) -> Result<WriteOp, (Done, StorageError)>) {
        let mut state = self.shared().state.lock();
        let prepared = match state.check() {
            Ok(()) => prepare(&mut state, done),
            Err(error) => Err((done, error)),
        };
        match prepared {
            Ok(op) => {
                state.queue.push_back(op);
                let wake = std::mem::take(&mut state.idle);
                drop(state);
                if wake {
                    self.shared().wake.notify_one();
                }
            }
            Err((done, error)) => {
                drop(state);
                done(Err(error));
            }
        }
    }
}

impl Storage for DiskStorage {
    fn recovered(&self) -> Recovered {
        self.handle.recovered.clone()
    }

    fn log_bounds(&self) -> (Option<Position>, Option<Position>) {
        let state = self.shared().state.lock();
        (state.floor, state.last)
    }

    fn vote(&self) -> Option<VoteRecord> {
        self.shared().state.lock().vote
    }

    fn append(&self, records: Vec<LogRecord>, done: Done) {
        self.queue(done, |state, done| match state.append(&records) {
            Ok(first_seq) => Ok(WriteOp::Append { records, first_seq, done }),
            Err(error) => Err((done, error)),
        });
    }

    fn truncate_after(&self, index: Option<u64>, done: Done) {
        // The position of the entry that becomes the last one. Entries do not change, so read it before the lock.
        let at = match index.map_or(Ok(None), |index| self.shared().position_at(index)) {
            Ok(at) => at,
            Err(error) => return done(Err(error)),
        };
        self.queue(done, |state, done| {
            if state.last.is_some_and(|last| index.is_none_or(|index| last.index > index)) {
                state.truncate(at);
            }
            Ok(WriteOp::Truncate { last: state.last, done })
        });
    }

    fn is_in_memory(&self, from: u64) -> bool {
        self.shared().state.lock().tail.first_index().is_some_and(|first| first <= from)
    }

    fn purge(&self, upto: Position, done: Done) {
        self.queue(done, |state, done| {
            let upto = state.floor.map_or(upto, |floor| floor.max(upto));
            state.purge(upto);
            Ok(WriteOp::Purge { upto, done })
        });
    }

    fn save_vote(&self, vote: VoteRecord, done: Done) {
        self.queue(done, |state, done| {
            state.vote = Some(vote);
            Ok(WriteOp::Vote { vote, done })
        });
    }

    fn save_committed(&self, committed: Option<Position>) {
        self.shared().state.lock().committed = Some(committed);
    }

    fn read_log(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<LogRecord>, StorageError> {
        self.shared().read_log(from, to, max_bytes)
    }

    fn begin_snapshot(&self) -> Result<SnapshotWriter<DiskStorage>, StorageError> {
        let mut state = self.shared().state.lock();
        state.check()?;
        let id = state.next_snapshot_id;
        state.next_snapshot_id += 1;
        drop(state);
        Ok(SnapshotWriter::new(self.clone(), id))
    }

    fn write_snapshot_chunk(&self, id: u64, number: u64, bytes: Bytes, done: Done) {
        self.queue(done, |_, done| Ok(WriteOp::Chunk { id, number, bytes, done }));
    }

    fn finish_snapshot(&self, manifest: SnapshotManifest, done: Done) {
        self.queue(done, |_, done| Ok(WriteOp::Finish { manifest, done }));
    }

    fn abandon_snapshot(&self, id: u64) {
        self.queue(Box::new(drop), |_, _| Ok(WriteOp::Abandon { id }));
    }

    fn snapshot(&self) -> Option<SnapshotManifest> {
        self.shared().state.lock().snapshot.clone()
    }

    fn read_snapshot(&self, id: u64, number: u64) -> Result<Bytes, StorageError> {
        let shared = self.shared();
        let key = chunk_key(id, number);
        let stored = shared.read(|trees| trees.snap.get(key))?;
        let state = shared.state.lock();
        state.check()?;
        // Check the id after the read: the chunk may belong to a snapshot that the storage thread is removing.
        if state.snapshot.as_ref().is_none_or(|snapshot| snapshot.id != id) {
            return Err(StorageError::SnapshotReplaced { id });
        }
        drop(state);
        let stored = stored.map_err(|error| shared.sled_error("read", error));
        stored.and_then(|stored| shared.chunk(id, number, stored)).inspect_err(|error| shared.poison(error.clone()))
    }

    fn read_unfinished_snapshot(&self, id: u64, number: u64) -> Result<Bytes, StorageError> {
        let key = chunk_key(id, number);
        let stored = self.shared().read(|trees| trees.snap.get(key))?;
        self.shared().chunk(id, number, stored.map_err(|error| self.shared().sled_error("read", error))?)
    }

    fn committing_for(&self) -> Option<Duration> {
        self.shared().state.lock().committing_since.map(|since| since.elapsed())
    }

    fn failure(&self) -> watch::Receiver<Option<StorageError>> {
        self.shared().failure.subscribe()
    }

    fn close(&self) {
        DiskStorage::close(self);
    }
}

impl QueuedState {
    pub fn new(recovered: &Recovered, tail: Tail, index: LogIndex, next_snapshot_id: u64) -> QueuedState {
        QueuedState {
            tail,
            index,
            floor: recovered.purged,
            last: recovered.last,
            vote: recovered.vote,
            snapshot: recovered.snapshot.clone(),
            next_snapshot_id,
            ..QueuedState::default()
        }
    }

    /// Fails if the store is poisoned or closing.
    pub fn check(&self) -> Result<(), StorageError> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None if self.closing => Err(StorageError::Closed),
            None => Ok(()),
        }
    }

    /// Appends entries to the tail. Returns the sequence number of the first.
    pub fn append(&mut self, records: &[LogRecord]) -> Result<u64, StorageError> {
        check_contiguous(self.last, records)?;
        check_sizes(records)?;
        let first_seq = self.tail.newest_seq() + 1;
        for record in records {
            self.tail.push(record.clone());
            self.last = Some(record.position);
        }
        Ok(first_seq)
    }

    /// Removes the end of the log. `at` is the position of the entry that becomes the last one.
    pub fn truncate(&mut self, at: Option<Position>) {
        // A purge may have passed it since the look.
        let at = at.filter(|at| self.floor.is_none_or(|floor| at.index > floor.index));
        let at = at.or(self.floor);
        self.tail.truncate_after(at.map(|at| at.index));
        self.last = at;
    }

    pub fn purge(&mut self, upto: Position) {
        self.tail.purge(upto.index);
        self.floor = self.floor.max(Some(upto));
        if self.last.is_none_or(|last| last.index <= upto.index) {
            self.last = self.floor;
        }
    }
}

/// Checks that `records` are contiguous and that the first one follows `last`.
pub(crate) fn check_contiguous(last: Option<Position>, records: &[LogRecord]) -> Result<(), StorageError> {
    let first = match (last, records.first()) {
        (Some(last), _) => last.index + 1,
        (None, first) => first.map_or(0, |first| first.position.index.min(1)),
    };
    match (first..).zip(records).find(|(expected, record)| record.position.index != *expected) {
        Some((expected, record)) => Err(StorageError::NotContiguous { expected, found: record.position.index }),
        None => Ok(()),
    }
}

/// Checks that each entry fits into a segment.
fn check_sizes(records: &[LogRecord]) -> Result<(), StorageError> {
    match records.iter().find(|record| record.payload.len() > MAX_ENTRY_BYTES) {
        Some(LogRecord { position, payload }) => {
            Err(StorageError::EntryTooLarge { index: position.index, bytes: payload.len(), max: MAX_ENTRY_BYTES })
        }
        None => Ok(()),
    }
}

impl WriteOp {
    /// The callback of the write.
    pub fn into_done(self) -> Option<Done> {
        match self {
            WriteOp::Append { done, .. }
            | WriteOp::Truncate { done, .. }
            | WriteOp::Purge { done, .. }
            | WriteOp::Vote { done, .. }
            | WriteOp::Chunk { done, .. }
            | WriteOp::Finish { done, .. } => Some(done),
            WriteOp::Abandon { .. } => None,
        }
    }

    /// The payload bytes that count towards the group limit, for operations that are never split.
    pub fn bytes(&self) -> usize {
        match self {
            WriteOp::Chunk { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

impl Handle {
    fn close(&self) {
        self.shared.state.lock().closing = true;
        self.shared.wake.notify_one();
        if thread::current().id() == self.thread_id {
            return;
        }
        // Another caller waits here until the first one has joined the thread.
        let mut thread = self.thread.lock();
        if let Some(running) = thread.take() {
            running.join().expect("the storage thread catches its panics");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl SharedStore {
    /// Records the first error. The store writes nothing after it.
    pub fn poison(&self, error: StorageError) {
        let mut state = self.state.lock();
        if state.failure.is_none() {
            state.failure = Some(error.clone());
            state.committing_since = None;
            self.failure.send_replace(Some(error.clone()));
            tracing::error!(%error, "the store has failed");
        }
        drop(state);
        self.wake.notify_one();
    }

    pub fn sled_error(&self, action: &'static str, error: sled::Error) -> StorageError {
        trees::sled_error(&self.dir, action, error)
    }

    pub fn corrupt(&self, what: impl ToString) -> StorageError {
        StorageError::Corrupt { dir: self.dir.clone(), what: what.to_string() }
    }

    /// Decodes the stored record of a chunk.
    fn chunk(&self, id: u64, number: u64, stored: Option<sled::IVec>) -> Result<Bytes, StorageError> {
        let Some(stored) = stored else {
            return Err(self.corrupt(format!("chunk {number} of snapshot {id} is missing")));
        };
        let chunk: ChunkV1 = record::unseal(RecordKind::Chunk, &chunk_key(id, number), &stored)
            .map_err(|error| self.corrupt(format!("chunk {number} of snapshot {id} is {error}")))?;
        Ok(Bytes::copy_from_slice(chunk.payload.0))
    }

    pub fn read<T>(&self, read: impl FnOnce(&Trees) -> T) -> Result<T, StorageError> {
        self.trees
            .read()
            .as_ref()
            .map(read)
            .ok_or_else(|| self.state.lock().check().err().unwrap_or(StorageError::Closed))
    }
}
