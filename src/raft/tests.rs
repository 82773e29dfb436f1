//! openraft's test suite for log storages and state machines, on both stores.

#[cfg(feature = "testing")]
mod appends;
#[cfg(feature = "testing")]
mod calls;
#[cfg(feature = "testing")]
mod joins;
#[cfg(feature = "testing")]
mod removals;
#[cfg(feature = "testing")]
mod snapshots;
#[cfg(feature = "testing")]
mod transfers;

use std::fmt::Debug;
use std::io;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, Stream, TryStreamExt};
use openraft::alias::SnapshotOf;
use openraft::storage::{EntryResponder, IOFlushed, LogState, RaftLogReader, RaftLogStorage, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, StorageError};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::level::FeatureLevel;
use super::log::Log;
use super::network::OutgoingSnapshots;
use super::snapshot::{self, SnapshotData, SnapshotError};
use super::state_machine::{Replica, SnapshotBuilder, StateMachine};
use super::types::{Entry, LogId, Proposal, SnapshotMeta, Stored, TypeConfig, Vote, log_id};
use crate::sim::{Cut, MemoryStorage, SyncMode};
use crate::storage::{DiskStorage, Identity, Position, SnapshotManifest, Storage, StorageError as StoreError};

fn adapt<S: Storage>(storage: S) -> (GapLog<S>, SuiteMachine<S>) {
    let machine = StateMachine::new(
        Replica::new(Vec::new(), FeatureLevel::SUPPORTED),
        storage.clone(),
        OutgoingSnapshots::default(),
    );
    (GapLog::new(Log::new(1, storage.clone())), SuiteMachine { machine, storage })
}

/// A log whose first index is arbitrary.
///
/// Some cases of the suite start at index 2, without earlier or purged entries. openraft itself never does, and the
/// store refuses the gap. This log purges up to the entry before the first one, and hides the purged position from the
/// suite.
#[derive(Clone)]
struct GapLog<S> {
    log: Log<S>,
    floor: Arc<Mutex<Option<LogId>>>,
}

impl<S: Storage> GapLog<S> {
    fn new(log: Log<S>) -> GapLog<S> {
        GapLog { log, floor: Arc::default() }
    }
}

impl<S: Storage> RaftLogReader<TypeConfig> for GapLog<S> {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        self.log.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.log.limited_get_log_entries(start, end).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.log.read_vote().await
    }
}

impl<S: Storage> RaftLogStorage<TypeConfig> for GapLog<S> {
    type LogReader = GapLog<S>;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let mut state = self.log.get_log_state().await?;
        let floor = *self.floor.lock();
        state.last_purged_log_id = state.last_purged_log_id.filter(|purged| Some(*purged) != floor);
        state.last_log_id = state.last_log_id.filter(|last| Some(*last) != floor);
        Ok(state)
    }

    async fn get_log_reader(&mut self) -> GapLog<S> {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.log.save_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.log.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.log.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let is_empty = self.log.get_log_state().await?.last_log_id.is_none();
        if let Some(first) = entries.first().filter(|first| is_empty && first.log_id.index > 1) {
            let floor = log_id(Position { term: 0, index: first.log_id.index - 1 });
            *self.floor.lock() = Some(floor);
            self.log.purge(floor).await?;
        }
        self.log.append(entries, callback).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.log.truncate_after(last).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.log.purge(upto).await
    }
}

/// A state machine that installs snapshots of other stores. Some cases of the suite do that. openraft itself passes a
/// received snapshot.
struct SuiteMachine<S> {
    machine: StateMachine<S>,
    storage: S,
}

impl<S: Storage> SuiteMachine<S> {
    fn receive(&self, store: &S, manifest: &SnapshotManifest) -> Result<SnapshotData<S>, SnapshotError> {
        let mut writer = self.storage.begin_snapshot()?;
        for chunk in 0..manifest.chunks {
            writer.push(&store.read_snapshot(manifest.id, chunk)?)?;
        }
        Ok(SnapshotData::Received { writer, state: Box::new(snapshot::load(store, manifest)?) })
    }
}

impl<S: Storage> RaftStateMachine<TypeConfig> for SuiteMachine<S> {
    type SnapshotData = SnapshotData<S>;
    type SnapshotBuilder = SnapshotBuilder<S>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, Stored)> {
        self.machine.applied_state().await
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        self.machine.apply(entries).await
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder<S>> {
        self.machine.try_create_snapshot_builder(force).await
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<S> {
        self.machine.get_snapshot_builder().await
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, data: SnapshotData<S>) -> io::Result<()> {
        let data = match data {
            SnapshotData::Stored { store, manifest } if self.storage.snapshot().as_ref() != Some(&manifest) => {
                self.receive(&store, &manifest)?
            }
            own => own,
        };
        self.machine.install_snapshot(meta, data).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotData<S>>>> {
        self.machine.get_current_snapshot().await
    }
}

struct InMemory;

impl StoreBuilder<TypeConfig, GapLog<MemoryStorage>, SuiteMachine<MemoryStorage>> for InMemory {
    async fn build(
        &self,
    ) -> Result<((), GapLog<MemoryStorage>, SuiteMachine<MemoryStorage>), StorageError<TypeConfig>> {
        let (log, state_machine) = adapt(MemoryStorage::new(SyncMode::default()));
        Ok(((), log, state_machine))
    }
}

struct OnDisk;

impl StoreBuilder<TypeConfig, GapLog<DiskStorage>, SuiteMachine<DiskStorage>, TempDir> for OnDisk {
    async fn build(
        &self,
    ) -> Result<(TempDir, GapLog<DiskStorage>, SuiteMachine<DiskStorage>), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().expect("a directory");
        let identity = Identity { cluster: "suite".into(), node: 1 };
        let storage = DiskStorage::open(dir.path(), identity).expect("a new store opens");
        let (log, state_machine) = adapt(storage);
        Ok((dir, log, state_machine))
    }
}

#[tokio::test]
async fn openrafts_storage_suite_passes_in_memory() {
    Suite::test_all(InMemory).await.expect("the suite passes");
}

#[tokio::test]
async fn openrafts_storage_suite_passes_on_disk() {
    Suite::test_all(OnDisk).await.expect("the suite passes");
}

/// Entries that are only on the disk are read on another thread, and the only one is busy here.
#[test]
fn hung_disk_does_not_block_the_readers_of_old_entries() {
    let dir = tempfile::tempdir().expect("a directory");
    let storage =
        DiskStorage::open(dir.path(), Identity { cluster: "suite".into(), node: 1 }).expect("a new store opens");
    let mut log = Log::new(1, storage.clone());
    let large = Bytes::from_iter([1, 1].into_iter().chain(std::iter::repeat_n(7, 1 << 20)));
    let entry = |index| Entry { payload: EntryPayload::Normal(Proposal(large.clone())), ..blank(index) };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().expect("a runtime");
    runtime.block_on(async {
        log.append((0..20).map(entry), IOFlushed::noop()).await.expect("the append succeeds");
        while storage.is_in_memory(1) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (resume, hangs) = std::sync::mpsc::channel::<()>();
        let hung = tokio::task::spawn_blocking(move || hangs.recv());
        assert!(log.limited_get_log_entries(1, 2).now_or_never().is_none(), "replication");
        assert!(log.try_get_log_entries(1..2).now_or_never().is_none(), "a start");
        assert!(log.entries_stream(1..2).await.try_next().now_or_never().is_none(), "apply");
        assert!(log.limited_get_log_entries(19, 20).now_or_never().is_some(), "from memory");
        let mut truncating = log.clone();
        let mut truncation = Box::pin(truncating.truncate_after(Some(log_id(Position { term: 1, index: 1 }))));
        assert!(truncation.as_mut().now_or_never().is_none(), "a truncation");
        assert_eq!(storage.log_bounds().1.map(|last| last.index), Some(19), "the term of entry 1 is not known");
        drop(resume);
        hung.await.expect("no panic").expect_err("the other end is dropped");
        assert_eq!(log.limited_get_log_entries(1, 2).await.expect("readable"), [entry(1)]);
        let applied: Vec<Entry> = log.entries_stream(1..2).await.try_collect().await.expect("readable");
        assert_eq!(applied, [entry(1)]);
        truncation.await.expect("the truncation succeeds");
        assert_eq!(storage.log_bounds().1, Some(Position { term: 1, index: 1 }));
    });
}

fn blank(index: u64) -> Entry {
    Entry { log_id: log_id(Position { term: 1, index }), payload: EntryPayload::Blank }
}

async fn applied(log: &mut Log<MemoryStorage>, range: Range<u64>) -> io::Result<Vec<u64>> {
    let entries: Vec<Entry> = log.entries_stream(range).await.try_collect().await?;
    Ok(entries.iter().map(|entry| entry.log_id.index).collect())
}

#[tokio::test]
async fn missing_committed_entry_is_an_error() {
    let storage = MemoryStorage::new(SyncMode::default());
    let mut log = Log::new(1, storage.clone());
    log.append((0..9).map(blank), IOFlushed::noop()).await.expect("the append succeeds");
    assert_eq!(applied(&mut log, 2..9).await.expect("the log has all entries"), (2..9).collect::<Vec<_>>());
    let missing = applied(&mut log, 5..11).await.expect_err("two entries are missing");
    assert_eq!(missing.to_string(), "log entries 9 to 10 are committed and not in this node's log");
    log.purge(log_id(Position { term: 1, index: 3 })).await.expect("the purge succeeds");
    assert!(applied(&mut log, 2..9).await.is_err(), "two entries were purged");
    // A failed store rejects all writes. openraft may apply appended entries before it receives the error.
    storage.fail_next(StoreError::Closed);
    log.append([blank(9)], IOFlushed::noop()).await.expect("the callback reports the error later");
    log.append([blank(10)], IOFlushed::noop()).await.expect("the callback reports the error later");
    assert!(applied(&mut log, 10..11).await.is_err(), "the store rejected the entry");
}

/// openraft stops the node at an error of this read.
#[tokio::test]
async fn replication_reads_no_purged_entry_and_goes_on() {
    let mut log = Log::new(1, MemoryStorage::new(SyncMode::default()));
    log.append((0..9).map(blank), IOFlushed::noop()).await.expect("the append succeeds");
    log.purge(log_id(Position { term: 1, index: 3 })).await.expect("the purge succeeds");
    let purged = log.limited_get_log_entries(2, 9).await.expect("the log works");
    assert!(purged.is_empty(), "{purged:?}");
    assert_eq!(log.limited_get_log_entries(4, 6).await.expect("readable"), [blank(4), blank(5)]);
}

/// Runs all tasks that do not wait for the disk.
async fn run_ready_tasks() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn append_is_acknowledged_after_sync() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    let mut log = Log::new(1, storage.clone());
    let (callback, mut acknowledged) = TypeConfig::oneshot();
    log.append((0..3).map(blank), IOFlushed::signal(callback)).await.expect("the write is queued");
    run_ready_tasks().await;
    assert!((&mut acknowledged).now_or_never().is_none(), "nothing is synced yet");
    assert_eq!(storage.sync(), 1);
    acknowledged.await.expect("the callback runs").expect("the append is durable");
    assert_eq!(storage.crash(Cut::Keep(0)).log_bounds().1.map(|last| last.index), Some(2));
}

#[tokio::test]
async fn failed_append_is_not_acknowledged() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    let mut log = Log::new(1, storage.clone());
    let (callback, acknowledged) = TypeConfig::oneshot();
    log.append([blank(0)], IOFlushed::signal(callback)).await.expect("the write is queued");
    storage.fail_next(StoreError::Closed);
    storage.sync();
    acknowledged.await.expect("the callback runs").expect_err("the disk failed");
}

#[tokio::test]
async fn vote_truncation_and_purge_end_after_sync() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    let mut log = Log::new(1, storage.clone());
    log.append((0..9).map(blank), IOFlushed::noop()).await.expect("the write is queued");
    storage.sync();
    let at = |index| log_id(Position { term: 1, index });
    let (mut voting, mut truncating, mut purging) = (log.clone(), log.clone(), log);
    let writes = [
        tokio::spawn(async move { voting.save_vote(&Vote::new(7, 1)).await }),
        tokio::spawn(async move { truncating.truncate_after(Some(at(5))).await }),
        tokio::spawn(async move { purging.purge(at(2)).await }),
    ];
    run_ready_tasks().await;
    assert_eq!(storage.unsynced(), writes.len(), "all writes are queued");
    assert!(writes.iter().all(|write| !write.is_finished()), "nothing is synced yet");
    storage.sync();
    for write in writes {
        write.await.expect("no panic").expect("durable");
    }
    let left = storage.crash(Cut::Keep(0));
    assert_eq!(left.vote().map(|vote| vote.term), Some(7));
    let (purged, last) = left.log_bounds();
    assert_eq!((purged.map(|at| at.index), last.map(|at| at.index)), (Some(2), Some(5)));
}

#[tokio::test]
async fn committed_position_is_capped_at_the_log_end() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    let mut log = Log::new(1, storage.clone());
    log.append((0..3).map(blank), IOFlushed::noop()).await.expect("the write is queued");
    storage.sync();
    log.append((3..9).map(blank), IOFlushed::noop()).await.expect("the write is queued");
    log.save_committed(Some(log_id(Position { term: 1, index: 8 }))).await.expect("the position is saved");
    // The committed position reaches the disk before the entries of its group.
    let left = storage.crash(Cut::Torn { writes: 0, entries: 2 });
    assert_eq!(left.recovered().committed.map(|at| at.index), Some(8), "the committed position is ahead of the log");
    let committed = Log::new(1, left).read_committed().await.expect("readable");
    assert_eq!(committed.map(|at| at.index), Some(4));
}
