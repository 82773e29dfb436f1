//! openraft's own suite for log storages and state machines, over both stores.

use std::fmt::Debug;
use std::io;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use futures_util::TryStreamExt;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{EntryPayload, StorageError};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::log::Log;
use super::replica::{Observer, Replica};
use super::state_machine::StateMachine;
use super::types::{Entry, LogId, TypeConfig, Vote, log_id};
use crate::lease::{Effects, Limits, Machine};
use crate::storage::{Identity, MemoryStorage, Position, SledStorage, Storage, StorageError as StoreError, SyncMode};

struct Nobody;

impl Observer for Nobody {
    fn applied(&self, _: u64, _: Effects, _: &Machine) {}
    fn replaced(&self, _: u64, _: &Machine) {}
}

fn adapt<S: Storage>(storage: S) -> (FromAnywhere<S>, StateMachine<S>) {
    let replica = Replica::new(Limits::default(), Arc::new(Nobody));
    (FromAnywhere::over(Log::new(1, storage.clone())), StateMachine::new(replica, storage))
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
