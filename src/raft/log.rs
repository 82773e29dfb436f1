//! openraft's log storage over [`Storage`].
//!
//! `append`, `save_vote` and `save_committed` are awaited inside openraft's core task, so none of them but the vote
//! waits for the disk: an append returns once its entries can be read, and openraft is called back after the sync.

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
    /// The last committed position that openraft gave to keep.
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

    /// The first entries of a range that has to be complete, and the index at which it goes on.
    fn read_committed(&self, from: u64, to: u64) -> io::Result<(Vec<Entry>, u64)> {
        let entries = self.read(from, to, MAX_APPEND_BYTES)?;
        let missing = || {
            let message = format!("log entries {from} to {} are committed and not in this node's log", to - 1);
            io::Error::new(io::ErrorKind::UnexpectedEof, message)
        };
        let next = entries.last().ok_or_else(missing)?.log_id.index + 1;
        Ok((entries, next))
    }

    /// The first index of a range and the one after its last; without a bound, those of the log.
    fn ends(&self, range: &impl RangeBounds<u64>) -> (u64, u64) {
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
        let (from, to) = self.ends(&range);
        let (floor, last) = self.storage.log_bounds();
        let (mut from, to) = (from.max(after(floor)), to.min(after(last)));
        let mut entries = Vec::new();
        // The store stops at a number of bytes; this call answers the whole range.
        while from < to {
            let read = self.read(from, to, MAX_APPEND_BYTES)?;
            let Some(last) = read.last() else { break };
            from = last.log_id.index + 1;
            entries.extend(read);
        }
        Ok(entries)
    }

    /// What openraft applies. [`RaftLogReader::try_get_log_entries`] may leave out what the log does not have, and entries
    /// that a store refused to append because it had failed would be passed over without a word: here they are an error.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + Send
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        let ((from, to), log) = (self.ends(&range), self.clone());
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
        // It is not waited for, so a power cut can leave it ahead of the log: then what is left of the log counts.
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
    // The waiter may be gone when the write is done; then nobody needs to know.
    start(Box::new(move |result| drop(done.send(result))));
    let stopped = || io::Error::other("the store stopped before the write was durable");
    finished.await.map_err(|_| stopped())?.map_err(io_error)
}

pub fn io_error(error: StorageError) -> io::Error {
    io::Error::other(error)
}
