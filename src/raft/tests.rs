//! openraft's own suite for log storages and state machines, over both stores.

#[cfg(feature = "testing")]
mod appends;
#[cfg(feature = "testing")]
mod snapshots;

use std::fmt::Debug;
use std::io;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use futures_util::{FutureExt, TryStreamExt};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, StorageError};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::log::Log;
use super::replica::Replica;
use super::sending::Sending;
use super::state_machine::StateMachine;
use super::types::{Entry, LogId, TypeConfig, Vote, log_id};
use crate::sim::{Cut, MemoryStorage, SyncMode};
use crate::storage::{Identity, Position, SledStorage, Storage, StorageError as StoreError};

fn adapt<S: Storage>(storage: S) -> (FromAnywhere<S>, StateMachine<S>) {
    let replica = Replica::new(Arc::new(()));
    (FromAnywhere::over(Log::new(1, storage.clone())), StateMachine::new(replica, storage, Sending::default()))
}

/// A log that can begin anywhere. Some cases of the suite begin one at index 2, with nothing before it and nothing
/// purged; openraft itself never does, and the store refuses such a gap. This puts a floor below, and hides it.
#[derive(Clone)]
struct FromAnywhere<S> {
    log: Log<S>,
    floor: Arc<Mutex<Option<LogId>>>,
}

impl<S: Storage> FromAnywhere<S> {
    fn over(log: Log<S>) -> FromAnywhere<S> {
        FromAnywhere { log, floor: Arc::default() }
    }
}

impl<S: Storage> RaftLogReader<TypeConfig> for FromAnywhere<S> {
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

impl<S: Storage> RaftLogStorage<TypeConfig> for FromAnywhere<S> {
    type LogReader = FromAnywhere<S>;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let mut state = self.log.get_log_state().await?;
        let floor = *self.floor.lock();
        state.last_purged_log_id = state.last_purged_log_id.filter(|purged| Some(*purged) != floor);
        state.last_log_id = state.last_log_id.filter(|last| Some(*last) != floor);
        Ok(state)
    }

    async fn get_log_reader(&mut self) -> FromAnywhere<S> {
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

struct InMemory;

impl StoreBuilder<TypeConfig, FromAnywhere<MemoryStorage>, StateMachine<MemoryStorage>> for InMemory {
    async fn build(
        &self,
    ) -> Result<((), FromAnywhere<MemoryStorage>, StateMachine<MemoryStorage>), StorageError<TypeConfig>> {
        let (log, state_machine) = adapt(MemoryStorage::new(SyncMode::default()));
        Ok(((), log, state_machine))
    }
}

struct OnDisk;

impl StoreBuilder<TypeConfig, FromAnywhere<SledStorage>, StateMachine<SledStorage>, TempDir> for OnDisk {
    async fn build(
        &self,
    ) -> Result<(TempDir, FromAnywhere<SledStorage>, StateMachine<SledStorage>), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().expect("a folder");
        let identity = Identity { cluster: "suite".into(), node: 1 };
        let storage = SledStorage::open(dir.path(), identity).expect("a new store opens");
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

fn blank(index: u64) -> Entry {
    Entry { log_id: log_id(Position { term: 1, index }), payload: EntryPayload::Blank }
}

async fn applied(log: &mut Log<MemoryStorage>, range: Range<u64>) -> io::Result<Vec<u64>> {
    let entries: Vec<Entry> = log.entries_stream(range).await.try_collect().await?;
    Ok(entries.iter().map(|entry| entry.log_id.index).collect())
}

#[tokio::test]
async fn what_is_applied_is_complete_or_an_error() {
    let storage = MemoryStorage::new(SyncMode::default());
    let mut log = Log::new(1, storage.clone());
    log.append((0..9).map(blank), IOFlushed::noop()).await.expect("it is appended");
    assert_eq!(applied(&mut log, 2..9).await.expect("all is there"), (2..9).collect::<Vec<_>>());
    let missing = applied(&mut log, 5..11).await.expect_err("two are not there");
    assert_eq!(missing.to_string(), "log entries 9 to 10 are committed and not in this node's log");
    log.purge(log_id(Position { term: 1, index: 3 })).await.expect("it is purged");
    assert!(applied(&mut log, 2..9).await.is_err(), "two were purged");
    // A store that failed takes nothing any more, and openraft may apply what it appended before it hears of that.
    storage.fail_next(StoreError::Closed);
    log.append([blank(9)], IOFlushed::noop()).await.expect("it is told later");
    log.append([blank(10)], IOFlushed::noop()).await.expect("it is told later");
    assert!(applied(&mut log, 10..11).await.is_err(), "it was not taken");
}

/// Lets everything run that does not wait for the disk.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn append_is_acknowledged_when_it_is_durable() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    let mut log = Log::new(1, storage.clone());
    let (told, mut acknowledged) = TypeConfig::oneshot();
    log.append((0..3).map(blank), IOFlushed::signal(told)).await.expect("it is queued");
    settle().await;
    assert!((&mut acknowledged).now_or_never().is_none(), "nothing is on the disk yet");
    assert_eq!(storage.sync(), 1);
    acknowledged.await.expect("it is told").expect("it is durable");
    assert_eq!(storage.crash(Cut::Keep(0)).log_bounds().1.map(|last| last.index), Some(2));
}

#[tokio::test]
async fn failed_append_is_not_acknowledged() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    let mut log = Log::new(1, storage.clone());
    let (told, acknowledged) = TypeConfig::oneshot();
    log.append([blank(0)], IOFlushed::signal(told)).await.expect("it is queued");
    storage.fail_next(StoreError::Closed);
    storage.sync();
    acknowledged.await.expect("it is told").expect_err("the disk failed");
}

#[tokio::test]
async fn vote_truncation_and_purge_end_when_they_are_durable() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    let mut log = Log::new(1, storage.clone());
    log.append((0..9).map(blank), IOFlushed::noop()).await.expect("it is queued");
    storage.sync();
    let at = |index| log_id(Position { term: 1, index });
    let (mut voting, mut cutting, mut purging) = (log.clone(), log.clone(), log);
    let writes = [
        tokio::spawn(async move { voting.save_vote(&Vote::new(7, 1)).await }),
        tokio::spawn(async move { cutting.truncate_after(Some(at(5))).await }),
        tokio::spawn(async move { purging.purge(at(2)).await }),
    ];
    settle().await;
    assert_eq!(storage.unsynced(), writes.len(), "all are queued");
    assert!(writes.iter().all(|write| !write.is_finished()), "nothing is on the disk yet");
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
async fn committed_position_ends_with_the_log() {
    let storage = MemoryStorage::new(SyncMode::Manual);
    let mut log = Log::new(1, storage.clone());
    log.append((0..3).map(blank), IOFlushed::noop()).await.expect("it is queued");
    storage.sync();
    log.append((3..9).map(blank), IOFlushed::noop()).await.expect("it is queued");
    log.save_committed(Some(log_id(Position { term: 1, index: 8 }))).await.expect("it is noted");
    // The noted position reaches the disk before the entries of its group.
    let left = storage.crash(Cut::Torn { writes: 0, entries: 2 });
    assert_eq!(left.recovered().committed.map(|at| at.index), Some(8), "the case that is tested");
    let committed = Log::new(1, left).read_committed().await.expect("readable");
    assert_eq!(committed.map(|at| at.index), Some(4));
}
