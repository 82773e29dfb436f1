//! A simulated store in memory, without disk and threads. A test can cut its power at any time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::storage::disk::check_contiguous;
use crate::storage::{
    Done, LogRecord, Position, Recovered, SnapshotManifest, SnapshotWriter, Storage, StorageError, VoteRecord,
};

/// A store in memory with a synced and an unsynced part.
///
/// Clones share the store. [`crash`](MemoryStorage::crash) closes all clones and returns the store that a restarted
/// node opens.
#[derive(Clone)]
pub struct MemoryStorage {
    inner: Arc<StoreInner>,
}

/// When queued writes become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// Immediately: the write calls back before it returns.
    #[default]
    Inline,
    /// When the test calls [`MemoryStorage::sync`].
    ///
    /// Snapshot chunks still call back immediately, so that a writer's window does not block a single-threaded
    /// simulation. They become durable only together with their manifest.
    Manual,
    /// When the test calls [`MemoryStorage::sync`], although the write calls back immediately. This simulates a disk
    /// that acknowledges a sync without performing it.
    Early,
}

/// The unsynced writes that survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The first `n` writes.
    Keep(usize),
    /// The first `writes` writes. If the next one is an append, also its first `entries` entries.
    Torn { writes: usize, entries: usize },
    /// All writes of snapshots, and none of the log. The store on disk makes those of a group durable before its log. It
    /// has one log for entries and votes, of which a prefix survives.
    Snapshots,
}

struct StoreInner {
    state: Mutex<StoreState>,
    recovered: Recovered,
    failure: watch::Sender<Option<StorageError>>,
    queued: Notify,
}

struct StoreState {
    mode: SyncMode,
    /// The contents that survive each power cut.
    synced: Image,
    /// The contents that callers see: `synced` with `unsynced` applied.
    live: Image,
    unsynced: VecDeque<Write>,
    /// A committed position that waits for the next group commit. As in the store on disk, it starts no group commit by
    /// itself, and precedes all queued writes.
    pending_committed: Option<Option<Position>>,
    /// When the oldest unsynced write was queued.
    unsynced_since: Option<Instant>,
    next_snapshot_id: u64,
    fail_next: Option<StorageError>,
    spoil_next_chunk: bool,
    failure: Option<StorageError>,
}

struct Write {
    op: Op,
    done: Option<Done>,
}

#[derive(Clone)]
enum Op {
    Append(Vec<LogRecord>),
    Truncate(Option<u64>),
    Purge(Position),
    Vote(VoteRecord),
    Chunk { id: u64, number: u64, bytes: Bytes },
    Finish(SnapshotManifest),
    Abandon(u64),
}

impl Op {
    fn is_of_snapshots(&self) -> bool {
        matches!(self, Op::Chunk { .. } | Op::Finish(_) | Op::Abandon(_))
    }
}

/// The contents of a store.
#[derive(Clone, Debug, Default)]
struct Image {
    log: BTreeMap<u64, LogRecord>,
    floor: Option<Position>,
    vote: Option<VoteRecord>,
    committed: Option<Position>,
    snapshot: Option<SnapshotManifest>,
    chunks: BTreeMap<(u64, u64), Bytes>,
}

impl Default for MemoryStorage {
    fn default() -> MemoryStorage {
        MemoryStorage::new(SyncMode::Inline)
    }
}

impl MemoryStorage {
    /// An empty store.
    pub fn new(mode: SyncMode) -> MemoryStorage {
        MemoryStorage::on(Image::default(), mode, 1)
    }

    fn on(mut image: Image, mode: SyncMode, next_snapshot_id: u64) -> MemoryStorage {
        let kept = image.snapshot.as_ref().map(|snapshot| snapshot.id);
        image.chunks.retain(|(id, _), _| Some(*id) == kept);
        let recovered = Recovered {
            vote: image.vote,
            purged: image.floor,
            committed: image.committed,
            last: image.last(),
            snapshot: image.snapshot.clone(),
        };
        let state = StoreState {
            mode,
            synced: image.clone(),
            live: image,
            unsynced: VecDeque::new(),
            pending_committed: None,
            unsynced_since: None,
            next_snapshot_id,
            fail_next: None,
            spoil_next_chunk: false,
            failure: None,
        };
        let (failure, queued) = (watch::Sender::new(None), Notify::new());
        MemoryStorage { inner: Arc::new(StoreInner { state: Mutex::new(state), recovered, failure, queued }) }
    }

    /// Number of writes that a power cut could lose, without the pending committed position.
    pub fn unsynced(&self) -> usize {
        self.inner.state.lock().unsynced.len()
    }

    /// Number of stored chunks, of all snapshots.
    pub fn chunks(&self) -> usize {
        self.inner.state.lock().live.chunks.len()
    }

    /// Waits for unsynced writes. The simulated disk of a test uses it.
    pub async fn wait_unsynced(&self) {
        while self.unsynced() == 0 {
            self.inner.queued.notified().await;
        }
    }

    /// Makes all queued writes durable and calls back in order. Returns their number.
    pub fn sync(&self) -> usize {
        let mut state = self.inner.state.lock();
        let writes = std::mem::take(&mut state.unsynced);
        state.unsynced_since = None;
        let committed = if writes.is_empty() { None } else { state.pending_committed.take() };
        let result = state.fail_next.take().map_or(Ok(()), Err);
        match &result {
            Ok(()) => {
                state.synced.set_committed(committed);
                writes.iter().for_each(|write| state.synced.apply(&write.op));
            }
            Err(error) => self.poison(&mut state, error.clone()),
        }
        drop(state);
        let count = writes.len();
        writes.into_iter().filter_map(|write| write.done).for_each(|done| done(result.clone()));
        count
    }

    /// Sets how later writes become durable. `Manual` without a call of [`sync`](Self::sync) simulates a disk that
    /// hangs.
    pub fn set_mode(&self, mode: SyncMode) {
        self.inner.state.lock().mode = mode;
    }

    /// Makes the next sync fail with this error. The store then rejects all operations.
    pub fn fail_next(&self, error: StorageError) {
        self.inner.state.lock().fail_next = Some(error);
    }

    /// Corrupts the next snapshot chunk that the writer reads back.
    pub fn spoil_next_chunk(&self) {
        self.inner.state.lock().spoil_next_chunk = true;
    }

    /// Cuts the power. All clones fail from now on, and pending callbacks never run. Returns the store that a restarted
    /// node opens.
    pub fn crash(&self, cut: Cut) -> MemoryStorage {
        let mut state = self.inner.state.lock();
        let (keep, entries) = match cut {
            Cut::Keep(writes) => (writes, 0),
            Cut::Torn { writes, entries } => (writes, entries),
            Cut::Snapshots => (0, 0),
        };
        let mut image = std::mem::take(&mut state.synced);
        let unsynced = std::mem::take(&mut state.unsynced);
        // A group commit may have been in progress. The committed position is the first write of its log.
        if !matches!(cut, Cut::Keep(0) | Cut::Snapshots) {
            image.set_committed(state.pending_committed);
        }
        unsynced.iter().take(keep).for_each(|write| image.apply(&write.op));
        if let Some(Op::Append(records)) = unsynced.get(keep).map(|write| &write.op) {
            image.apply(&Op::Append(records.iter().take(entries).cloned().collect()));
        }
        if cut == Cut::Snapshots {
            unsynced.iter().filter(|write| write.op.is_of_snapshots()).for_each(|write| image.apply(&write.op));
        }
        let (mode, next_snapshot_id) = (state.mode, state.next_snapshot_id);
        self.poison(&mut state, StorageError::Closed);
        drop(state);
        MemoryStorage::on(image, mode, next_snapshot_id)
    }

    /// Restarts without a power cut: all queued writes survive.
    pub fn restart(&self) -> MemoryStorage {
        self.crash(Cut::Keep(usize::MAX))
    }

    fn poison(&self, state: &mut StoreState, error: StorageError) {
        if state.failure.is_none() {
            state.failure = Some(error.clone());
            self.inner.failure.send_replace(Some(error));
        }
    }

    fn queue(&self, op: Op, done: Option<Done>) {
        let mut state = self.inner.state.lock();
        if let Err(error) = state.check().and_then(|()| state.live.check(&op)) {
            drop(state);
            return done.into_iter().for_each(|done| done(Err(error.clone())));
        }
        state.live.apply(&op);
        let is_immediate = matches!((&op, state.mode), (Op::Chunk { .. }, SyncMode::Manual) | (_, SyncMode::Early));
        let (now, later) = if is_immediate { (done, None) } else { (None, done) };
        state.unsynced.push_back(Write { op, done: later });
        state.unsynced_since.get_or_insert_with(Instant::now);
        let mode = state.mode;
        drop(state);
        now.into_iter().for_each(|done| done(Ok(())));
        match mode {
            SyncMode::Inline => drop(self.sync()),
            SyncMode::Manual | SyncMode::Early => self.inner.queued.notify_one(),
        }
    }
}

impl StoreState {
    fn check(&self) -> Result<(), StorageError> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

impl Image {
    fn last(&self) -> Option<Position> {
        self.log.last_key_value().map(|(_, record)| record.position).or(self.floor)
    }

    fn check(&self, op: &Op) -> Result<(), StorageError> {
        match op {
            Op::Append(records) => check_contiguous(self.last(), records),
            Op::Finish(manifest) => {
                let (id, expected) = (manifest.id, manifest.chunks);
                let found = self.chunks.range((id, 0)..(id + 1, 0)).count() as u64;
                if found == expected { Ok(()) } else { Err(StorageError::SnapshotIncomplete { id, expected, found }) }
            }
            _ => Ok(()),
        }
    }

    fn set_committed(&mut self, committed: Option<Option<Position>>) {
        self.committed = committed.unwrap_or(self.committed);
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Append(records) => {
                self.log.extend(records.iter().map(|record| (record.position.index, record.clone())));
            }
            Op::Truncate(after) => self.log.retain(|index, _| after.is_some_and(|after| *index <= after)),
            Op::Purge(upto) => {
                self.floor = self.floor.max(Some(*upto));
                self.log.retain(|index, _| *index > upto.index);
            }
            Op::Vote(vote) => self.vote = Some(*vote),
            Op::Chunk { id, number, bytes } => drop(self.chunks.insert((*id, *number), bytes.clone())),
            Op::Finish(manifest) => {
                if let Some(replaced) = self.snapshot.replace(manifest.clone()) {
                    self.chunks.retain(|(id, _), _| *id != replaced.id);
                }
            }
            Op::Abandon(abandoned) => self.chunks.retain(|(id, _), _| id != abandoned),
        }
    }
}

impl Storage for MemoryStorage {
    /// A simulation runs on one thread.
    const BLOCKS: bool = false;

    fn recovered(&self) -> Recovered {
        self.inner.recovered.clone()
    }

    fn is_in_memory(&self, _: u64) -> bool {
        true
    }

    fn log_bounds(&self) -> (Option<Position>, Option<Position>) {
        let state = self.inner.state.lock();
        (state.live.floor, state.live.last())
    }

    fn vote(&self) -> Option<VoteRecord> {
        self.inner.state.lock().live.vote
    }

    fn append(&self, records: Vec<LogRecord>, done: Done) {
        self.queue(Op::Append(records), Some(done));
    }

    fn truncate_after(&self, index: Option<u64>, done: Done) {
        self.queue(Op::Truncate(index), Some(done));
    }

    fn purge(&self, upto: Position, done: Done) {
        self.queue(Op::Purge(upto), Some(done));
    }

    fn save_vote(&self, vote: VoteRecord, done: Done) {
        self.queue(Op::Vote(vote), Some(done));
    }

    fn save_committed(&self, committed: Option<Position>) {
        self.inner.state.lock().pending_committed = Some(committed);
    }

    fn read_log(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<LogRecord>, StorageError> {
        let state = self.inner.state.lock();
        state.check()?;
        let to = to.min(state.live.last().map_or(0, |last| last.index + 1));
        if let Some(floor) = state.live.floor.filter(|floor| from <= floor.index && from < to) {
            return Err(StorageError::Purged { index: from, floor: floor.index });
        }
        let (mut records, mut bytes): (Vec<LogRecord>, usize) = (Vec::new(), 0);
        for (_, record) in state.live.log.range(from..to.max(from)) {
            bytes += record.payload.len();
            if !records.is_empty() && bytes > max_bytes {
                break;
            }
            records.push(record.clone());
        }
        Ok(records)
    }

    fn begin_snapshot(&self) -> Result<SnapshotWriter<MemoryStorage>, StorageError> {
        let mut state = self.inner.state.lock();
        state.check()?;
        let id = state.next_snapshot_id;
        state.next_snapshot_id += 1;
        drop(state);
        Ok(SnapshotWriter::new(self.clone(), id))
    }

    fn write_snapshot_chunk(&self, id: u64, number: u64, bytes: Bytes, done: Done) {
        self.queue(Op::Chunk { id, number, bytes }, Some(done));
    }

    fn finish_snapshot(&self, manifest: SnapshotManifest, done: Done) {
        self.queue(Op::Finish(manifest), Some(done));
    }

    fn abandon_snapshot(&self, id: u64) {
        self.queue(Op::Abandon(id), None);
    }

    /// The newest complete snapshot, including an unsynced one.
    fn snapshot(&self) -> Option<SnapshotManifest> {
        self.inner.state.lock().live.snapshot.clone()
    }

    fn read_snapshot(&self, id: u64, number: u64) -> Result<Bytes, StorageError> {
        let state = self.inner.state.lock();
        state.check()?;
        let chunk = state.live.chunks.get(&(id, number)).cloned();
        chunk
            .filter(|_| state.live.snapshot.as_ref().is_some_and(|snapshot| snapshot.id == id))
            .ok_or(StorageError::SnapshotReplaced { id })
    }

    fn read_unfinished_snapshot(&self, id: u64, number: u64) -> Result<Bytes, StorageError> {
        let mut state = self.inner.state.lock();
        state.check()?;
        let chunk = state.live.chunks.get(&(id, number)).cloned();
        let chunk = chunk.ok_or(StorageError::SnapshotIncomplete { id, expected: number + 1, found: number })?;
        if std::mem::take(&mut state.spoil_next_chunk) {
            return Ok(chunk.iter().map(|byte| byte ^ 1).collect());
        }
        Ok(chunk)
    }

    fn committing_for(&self) -> Option<Duration> {
        self.inner.state.lock().unsynced_since.map(|since| since.elapsed())
    }

    fn failure(&self) -> watch::Receiver<Option<StorageError>> {
        self.inner.failure.subscribe()
    }

    fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_cut_can_keep_a_snapshot_without_the_log_before_it() {
        let storage = MemoryStorage::new(SyncMode::Manual);
        let vote = |term| VoteRecord { term, candidate: None, committed: true };
        storage.save_vote(vote(1), Box::new(drop));
        storage.sync();
        storage.save_vote(vote(2), Box::new(drop));
        storage.write_snapshot_chunk(1, 0, Bytes::from_static(b"state"), Box::new(drop));
        let manifest = SnapshotManifest { id: 1, meta: Vec::new(), chunks: 1, bytes: 5, crc: 0 };
        storage.finish_snapshot(manifest.clone(), Box::new(drop));
        storage.purge(Position { term: 2, index: 7 }, Box::new(drop));
        let found = storage.crash(Cut::Snapshots).recovered();
        let expected = Recovered { vote: Some(vote(1)), snapshot: Some(manifest), ..Recovered::default() };
        assert_eq!(found, expected);
    }
}
