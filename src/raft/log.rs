//! openraft's log storage over [`Storage`].
//!
//! openraft's core task awaits `append`, `save_vote` and `save_committed`. Of these, only `save_vote` waits for the
//! disk. `append` returns when its entries are readable, and calls openraft back after the sync.

use std::fmt::Debug;
use std::future::ready;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures_util::{Stream, TryStreamExt, stream};
use openraft::alias::{LogIdOf, VoteOf};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::payload;
use super::types::{Entry, TypeConfig, log_id, position, vote, vote_record};
use super::wire::MAX_APPEND_BYTES;
use crate::storage::{Position, Storage, StorageError};
use crate::types::NodeId;

#[derive(Clone)]
pub struct Log<S> {
    node: NodeId,
    storage: S,
    /// The last committed position that openraft saved.
    committed: Arc<Mutex<Option<Position>>>,
}

impl<S: Storage> Log<S> {
    pub fn new(node: NodeId, storage: S) -> Log<S> {
        let committed = Arc::new(Mutex::new(storage.recovered().committed));
        Log { node, storage, committed }
    }

    fn read(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let records = self.storage.read_log(from, to, max_bytes).map_err(io_error)?;
        records.into_iter().map(|record| Ok(payload::entry(record)?)).collect()
    }

    /// The first entries of a range without gaps, and the index after them.
    fn read_committed(&self, from: u64, to: u64) -> io::Result<(Vec<Entry>, u64)> {
        let entries = self.read(from, to, MAX_APPEND_BYTES)?;
        let missing = || {
            let message = format!("log entries {from} to {} are committed and not in this node's log", to - 1);
            io::Error::new(io::ErrorKind::UnexpectedEof, message)
        };
        let next = entries.last().ok_or_else(missing)?.log_id.index + 1;
        Ok((entries, next))
    }

    /// The first index of a range, and the index after its last. The log's own bounds replace missing ones.
    fn resolve_bounds(&self, range: &impl RangeBounds<u64>) -> (u64, u64) {
        let (floor, last) = self.storage.log_bounds();
        let from = match range.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => after(floor),
        };
        let to = match range.end_bound() {
            Bound::Included(&to) => to.saturating_add(1),
            Bound::Excluded(&to) => to,
            Bound::Unbounded => after(last),
        };
        (from, to)
    }
}

impl<S: Storage> RaftLogReader<TypeConfig> for Log<S> {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        let (from, to) = self.resolve_bounds(&range);
        let (floor, last) = self.storage.log_bounds();
        let (mut from, to) = (from.max(after(floor)), to.min(after(last)));
        let mut entries = Vec::new();
        // One read of the store is limited in bytes. This call must return the whole range.
        while from < to {
            let read = self.read(from, to, MAX_APPEND_BYTES)?;
            let Some(last) = read.last() else { break };
            from = last.log_id.index + 1;
            entries.extend(read);
        }
        Ok(entries)
    }

    /// Streams the entries that openraft applies, and fails at a missing entry.
    ///
    /// [`RaftLogReader::try_get_log_entries`] may skip entries that the log does not have. After a store failure,
    /// openraft would silently skip the entries that the store rejected.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + Send
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        let ((from, to), log) = (self.resolve_bounds(&range), self.clone());
        let pages = stream::try_unfold(from, move |from| {
            let page = (from < to).then(|| log.read_committed(from, to)).transpose();
            ready(page.map(|page| page.map(|(entries, next)| (stream::iter(entries.into_iter().map(Ok)), next))))
        });
        Box::pin(pages.try_flatten())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start, end, MAX_APPEND_BYTES)
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<TypeConfig>>> {
        Ok(self.storage.vote().map(|record| vote(record, self.node)))
    }
}

impl<S: Storage> RaftLogStorage<TypeConfig> for Log<S> {
    type LogReader = Log<S>;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let (purged, last) = self.storage.log_bounds();
        Ok(LogState { last_purged_log_id: purged.map(log_id), last_log_id: last.map(log_id) })
    }

    async fn get_log_reader(&mut self) -> Log<S> {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<TypeConfig>) -> io::Result<()> {
        durable(|done| self.storage.save_vote(vote_record(vote), done)).await
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        let committed = committed.as_ref().map(position);
        *self.committed.lock() = committed;
        self.storage.save_committed(committed);
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<TypeConfig>>> {
        // No caller waits for a sync of this position. After a power cut it can be ahead of the log, so cap it there.
        let (_, last) = self.storage.log_bounds();
        Ok((*self.committed.lock()).min(last).map(log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let records = entries.into_iter().map(|entry| payload::record(&entry)).collect();
        self.storage.append(records, Box::new(move |result| callback.io_completed(result.map_err(io_error))));
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        durable(|done| self.storage.truncate_after(last_log_id.map(|id| id.index), done)).await
    }

    async fn purge(&mut self, upto: LogIdOf<TypeConfig>) -> io::Result<()> {
        durable(|done| self.storage.purge(position(&upto), done)).await
    }
}

/// The index after a position.
fn after(position: Option<Position>) -> u64 {
    position.map_or(0, |position| position.index + 1)
}

/// Starts a write and waits until it is durable.
pub async fn durable(start: impl FnOnce(crate::storage::Done)) -> io::Result<()> {
    let (done, finished) = oneshot::channel();
    // If the caller dropped its future, the result is not needed.
    start(Box::new(move |result| drop(done.send(result))));
    let stopped = || io::Error::other("the store stopped before the write was durable; the write may be lost");
    finished.await.map_err(|_| stopped())?.map_err(io_error)
}

pub fn io_error(error: StorageError) -> io::Error {
    io::Error::other(error)
}
