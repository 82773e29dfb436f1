//! Raft's log: the encoding of its entries, and openraft's log storage over [`Storage`].
//!
//! An entry has one byte for the format, one byte for the kind, then the content. Newer builds read old entries, so a
//! kind never changes its meaning.
//!
//! openraft's core task awaits `append`, `save_vote` and `save_committed`. Of these, only `save_vote` waits for the
//! disk. `append` returns when its entries are readable, and calls openraft back after the sync.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt, stream};
use openraft::EntryPayload;
use openraft::alias::{LogIdOf, VoteOf};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::level::{FeatureLevel, NewerLevel};
use super::state_machine::blocking;
use super::times::EntryTimes;
use super::types::{Entry, PeerInfo, Proposal, RaftMembership, TypeConfig, log_id, position, vote, vote_record};
use super::wire::MAX_APPEND_BYTES;
use crate::access::AccessChange;
use crate::lease::Batch;
use crate::storage::codec::{self, DecodeError};
use crate::storage::{LogRecord, Position, Storage, StorageError};
use crate::types::NodeId;

const FORMAT: u8 = 1;
const BLANK: u8 = 0;
const BATCH: u8 = 1;
const MEMBERSHIP: u8 = 2;
const JOINED: u8 = 3;
const ACCESS: u8 = 4;
const LEVEL: u8 = 5;

/// Largest entry, in bytes. It exceeds the proposer's largest batch and stays below one group commit of the store.
pub const MAX_ENTRY_BYTES: usize = 128 << 10;

/// The decoded content of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Leases(Batch),
    Joined(Joined),
    Access(AccessChange),
    /// All members support this level.
    Level(FeatureLevel),
}

/// The incarnation of the disk with which a member joined. The cluster refuses the member with any other disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    pub node: NodeId,
    pub incarnation: u64,
}

/// A membership in the stored format, which is frozen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MembershipRecord {
    /// The voter sets. There are two during joint consensus.
    pub configs: Vec<BTreeSet<NodeId>>,
    /// The addresses of each node's public listener and peer listener.
    pub nodes: BTreeMap<NodeId, (String, String)>,
}

impl Proposal {
    pub fn leases(batch: &Batch) -> Proposal {
        Proposal(frame(BATCH, batch))
    }

    pub fn joined(joined: Joined) -> Proposal {
        Proposal(frame(JOINED, &joined))
    }

    pub fn access(change: &AccessChange) -> Proposal {
        Proposal(frame(ACCESS, change))
    }

    pub fn level(level: FeatureLevel) -> Proposal {
        Proposal(frame(LEVEL, &level))
    }

    pub fn content(&self) -> Result<Content, PayloadError> {
        match self.0.get(..2) {
            Some([FORMAT, BATCH]) => Ok(Content::Leases(codec::decode(&self.0[2..], MAX_ENTRY_BYTES)?)),
            Some([FORMAT, JOINED]) => Ok(Content::Joined(codec::decode(&self.0[2..], MAX_ENTRY_BYTES)?)),
            Some([FORMAT, ACCESS]) => Ok(Content::Access(codec::decode(&self.0[2..], MAX_ENTRY_BYTES)?)),
            Some([FORMAT, LEVEL]) => Ok(Content::Level(codec::decode(&self.0[2..], MAX_ENTRY_BYTES)?)),
            other => Err(PayloadError::unknown(other)),
        }
    }
}

impl From<&RaftMembership> for MembershipRecord {
    fn from(membership: &RaftMembership) -> MembershipRecord {
        let node = |(id, info): (&NodeId, &PeerInfo)| (*id, (info.http.clone(), info.peer.clone()));
        MembershipRecord {
            configs: membership.get_joint_config().clone(),
            nodes: membership.nodes().map(node).collect(),
        }
    }
}

impl MembershipRecord {
    /// # Errors
    ///
    /// The record has no voters, or a voter without an address.
    pub fn membership(self) -> Result<RaftMembership, PayloadError> {
        let nodes: BTreeMap<NodeId, PeerInfo> =
            self.nodes.into_iter().map(|(id, (http, peer))| (id, PeerInfo { http, peer })).collect();
        RaftMembership::new(self.configs, nodes).map_err(|error| PayloadError::Undecodable(error.to_string()))
    }
}

/// The stored record of an entry. The bytes of a proposal are stored unchanged.
pub fn record(entry: &Entry) -> LogRecord {
    let payload = match &entry.payload {
        EntryPayload::Blank => Bytes::from_static(&[FORMAT, BLANK]),
        EntryPayload::Normal(proposal) => proposal.0.clone(),
        EntryPayload::Membership(membership) => frame(MEMBERSHIP, &MembershipRecord::from(membership)),
    };
    LogRecord { position: position(&entry.log_id), payload }
}

pub fn entry(record: LogRecord) -> Result<Entry, PayloadError> {
    let payload = match record.payload.get(..2) {
        Some([FORMAT, BLANK]) => EntryPayload::Blank,
        Some([FORMAT, BATCH | JOINED | ACCESS]) => EntryPayload::Normal(Proposal(record.payload)),
        Some([FORMAT, LEVEL]) => {
            let level: FeatureLevel = codec::decode(&record.payload[2..], MAX_ENTRY_BYTES)?;
            level.check(FeatureLevel::SUPPORTED)?;
            EntryPayload::Normal(Proposal(record.payload))
        }
        Some([FORMAT, MEMBERSHIP]) => {
            let stored: MembershipRecord = codec::decode(&record.payload[2..], MAX_ENTRY_BYTES)?;
            EntryPayload::Membership(stored.membership()?)
        }
        other => return Err(PayloadError::unknown(other)),
    };
    Ok(Entry { log_id: log_id(record.position), payload })
}

/// The member that joined by this entry, if the entry records a join.
pub fn joined(record: LogRecord) -> Result<Option<Joined>, PayloadError> {
    let EntryPayload::Normal(proposal) = entry(record)?.payload else { return Ok(None) };
    match proposal.content()? {
        Content::Joined(joined) => Ok(Some(joined)),
        Content::Leases(_) | Content::Access(_) | Content::Level(_) => Ok(None),
    }
}

fn frame<T: Serialize>(kind: u8, content: &T) -> Bytes {
    let mut bytes = vec![FORMAT, kind];
    codec::encode_into(content, &mut bytes);
    bytes.into()
}

/// An entry that this build cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    #[error("log entry of format {format}, kind {kind}: a newer build wrote it; run that build or newer")]
    Unknown { format: u8, kind: u8 },
    #[error(transparent)]
    Newer(#[from] NewerLevel),
    #[error("log entry shorter than its header of 2 bytes")]
    Short,
    #[error("log entry cannot be read: {0}")]
    Undecodable(String),
}

impl PayloadError {
    fn unknown(header: Option<&[u8]>) -> PayloadError {
        match header {
            Some(&[format, kind]) => PayloadError::Unknown { format, kind },
            _ => PayloadError::Short,
        }
    }
}

impl From<DecodeError> for PayloadError {
    fn from(error: DecodeError) -> PayloadError {
        PayloadError::Undecodable(error.to_string())
    }
}

impl From<PayloadError> for std::io::Error {
    fn from(error: PayloadError) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

#[derive(Clone)]
pub struct Log<S> {
    node: NodeId,
    storage: S,
    /// The last committed position that openraft saved.
    committed: Arc<Mutex<Option<Position>>>,
    pub(super) times: EntryTimes,
}

impl<S: Storage> Log<S> {
    pub fn new(node: NodeId, storage: S) -> Log<S> {
        let committed = Arc::new(Mutex::new(storage.recovered().committed));
        Log { node, storage, committed, times: EntryTimes::default() }
    }

    /// A disk that hangs must not stop the tasks that send heartbeats and watch the disk: both share the workers.
    async fn read(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let storage = self.storage.clone();
        let read = move || storage.read_log(from, to, max_bytes).map_err(io_error);
        let records = if self.storage.is_in_memory(from) { read()? } else { blocking::<S, _>(read).await? };
        records.into_iter().map(|record| Ok(entry(record)?)).collect()
    }

    /// The first entries of a range without gaps, and the index after them.
    async fn read_committed(&self, from: u64, to: u64) -> io::Result<(Vec<Entry>, u64)> {
        let entries = self.read(from, to, MAX_APPEND_BYTES).await?;
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
            let read = self.read(from, to, MAX_APPEND_BYTES).await?;
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
        let pages = stream::try_unfold((from, log), move |(from, log)| async move {
            if from >= to {
                return Ok(None);
            }
            let (entries, next) = log.read_committed(from, to).await?;
            io::Result::Ok(Some((stream::iter(entries.into_iter().map(Ok)), (next, log))))
        });
        Box::pin(pages.try_flatten())
    }

    /// A purge can overtake the read. Any error here stops the node, so return no entries: openraft sends a heartbeat and
    /// looks again at what the follower needs.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let is_purged = |error: &io::Error| {
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<StorageError>());
            matches!(cause, Some(StorageError::Purged { .. }))
        };
        match self.read(start, end, MAX_APPEND_BYTES).await {
            Err(error) if is_purged(&error) => Ok(Vec::new()),
            read => read,
        }
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
        let records: Vec<LogRecord> = entries.into_iter().map(|entry| record(&entry)).collect();
        let done = Box::new(move |result: Result<(), StorageError>| callback.io_completed(result.map_err(io_error)));
        let done = self.times.appended(&records, done);
        self.storage.append(records, done);
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        let (storage, index) = (self.storage.clone(), last_log_id.map(|id| id.index));
        // The store looks up the term of this entry. See `read`.
        if S::BLOCKS && index.is_some_and(|index| !self.storage.is_in_memory(index)) {
            return durable(|done| drop(tokio::task::spawn_blocking(move || storage.truncate_after(index, done))))
                .await;
        }
        durable(|done| storage.truncate_after(index, done)).await
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Command, Stamp};

    fn read_back(payload: EntryPayload<Proposal, NodeId, PeerInfo>) -> Vec<u8> {
        let written = Entry { log_id: log_id(Position { term: 3, index: 9 }), payload };
        let record = record(&written);
        assert_eq!(entry(record.clone()).expect("readable"), written);
        record.payload.to_vec()
    }

    #[test]
    fn entries_read_back_and_their_bytes_are_frozen() {
        let batch = Batch { stamp: Stamp { now: 7, wall_ms: 300 }, commands: vec![Command::Tick] };
        let nodes = BTreeMap::from([(1, PeerInfo { http: "h".into(), peer: "p".into() })]);
        assert_eq!(read_back(EntryPayload::Blank), [1, 0]);
        assert_eq!(read_back(EntryPayload::Normal(Proposal::leases(&batch))), [1, 1, 7, 251, 44, 1, 1, 7]);
        assert_eq!(read_back(EntryPayload::Normal(Proposal::joined(Joined { node: 2, incarnation: 5 }))), [1, 3, 2, 5]);
        let membership = RaftMembership::new(vec![BTreeSet::from([1])], nodes).expect("valid");
        assert_eq!(read_back(EntryPayload::Membership(membership)), [1, 2, 1, 1, 1, 1, 1, 1, 104, 1, 112]);
    }

    #[test]
    fn unknown_and_truncated_entries_are_refused() {
        let read = |bytes: &'static [u8]| {
            entry(LogRecord { position: Position::default(), payload: Bytes::from_static(bytes) }).unwrap_err()
        };
        assert_eq!(read(&[2, 1]), PayloadError::Unknown { format: 2, kind: 1 });
        assert_eq!(read(&[1]), PayloadError::Short);
        assert!(matches!(read(&[1, 2, 200]), PayloadError::Undecodable(_)));
    }
}
