//! openraft's network over a [`Transport`].
//!
//! The leader sends one append at a time to each node, without pipelining. For later requests of a stream, openraft
//! dates the acknowledgement from a moment that local reads cannot rely on. Heartbeats and snapshots use separate
//! connections.
//!
//! openraft announces each commit at once. Under load, the next entry follows sooner than the answer to such an append.
//! So an append without entries waits for [`COMMIT_DELAY`], and the entry announces the commit, too.
//!
//! While this node sends a snapshot, it takes no new one. A new snapshot would replace the one in transfer, and the
//! transfer would restart. openraft would also purge the entries that the receiver needs next. Under sufficient load, a
//! follower would never catch up.

#[cfg(all(test, feature = "testing"))]
mod tests;

use std::future::Future;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{RaftNetworkFactory, RaftNetworkV2};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::freshness::{AnnouncedCommits, Echoes};
use super::level::FeatureLevel;
use super::quorum::Quorum;
use super::snapshot::SnapshotData;
use super::state_machine::{Replica, blocking};
use super::types::{PeerInfo, TypeConfig, vote, vote_record};
use super::wire::{self, Append, Call, Reply, RequestVote, SNAPSHOT_MESSAGE_BYTES, TransferCall};
use crate::peer::{Lane, Payload, PeerError, Transport};
use crate::storage::{SnapshotManifest, Storage, StorageError};
use crate::types::NodeId;

type Rpc<T> = Result<T, RPCError<TypeConfig>>;

/// Wait before the next attempt to reach an unreachable node.
const BACKOFF: Duration = Duration::from_millis(50);
/// Time for which an append without entries waits for another append. A timer can add 1 ms.
const COMMIT_DELAY: Duration = Duration::from_millis(1);
/// Longest time for which a transfer defers the next snapshot. The log grows during that time. A longer transfer
/// restarts with a newer snapshot.
const MAX_DEFERRAL: Duration = Duration::from_secs(600);

#[derive(Clone)]
pub struct Network<S, T> {
    pub transport: T,
    pub storage: S,
    /// Has the current addresses of the members.
    pub replica: Replica,
    pub announced: Arc<AnnouncedCommits>,
    pub sending: OutgoingSnapshots,
    /// Set before Raft runs.
    pub quorum: Arc<OnceLock<Quorum>>,
    /// Longest wait for the reply to an append with entries or to a part of a snapshot. It includes a sync of the other
    /// node's disk.
    pub disk_timeout: Duration,
}

/// openraft's client for one node.
pub struct Link<S, T> {
    network: Network<S, T>,
    target: NodeId,
    address: String,
    append_lane: Lane,
    echoes: Echoes,
}

impl<S: Storage, T: Transport> Network<S, T> {
    fn link(&self, target: NodeId, info: &PeerInfo, append_lane: Lane) -> Link<S, T> {
        Link { network: self.clone(), target, address: info.peer.clone(), append_lane, echoes: Echoes::default() }
    }

    /// The last entry that any node has shown so far: this one when it applied it, another one after a message announced
    /// its commit. A leader knows it from its first commit on.
    fn shown(&self, append: &Append) -> Option<u64> {
        append.commit.filter(|commit| commit.term == append.vote.term)?;
        Some(self.replica.applied_index().max(self.announced.highest()))
    }
}

impl<S: Storage, T: Transport> RaftNetworkFactory<TypeConfig> for Network<S, T> {
    type Network = Link<S, T>;

    async fn new_client(&mut self, target: NodeId, node: &PeerInfo) -> Link<S, T> {
        self.link(target, node, Lane::Log)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, node: &PeerInfo) -> Link<S, T> {
        self.link(target, node, Lane::Control)
    }
}

impl<S: Storage, T: Transport> Link<S, T> {
    async fn call(&self, lane: Lane, call: &Call, timeout: Duration) -> Rpc<Reply> {
        read_reply(self.exchange(lane, call, timeout).await)
    }

    async fn exchange(&self, lane: Lane, call: &Call, timeout: Duration) -> Result<Bytes, PeerError> {
        let payload = Payload::Raft(wire::encode(call));
        // The address of a member can change, and openraft keeps the link.
        let address = self.network.replica.peer_address(self.target).unwrap_or_else(|| self.address.clone());
        self.network.transport.call(self.target, &address, lane, payload, timeout).await
    }

    async fn request_vote(&self, call: Call, option: RPCOption) -> Rpc<VoteResponse<TypeConfig>> {
        match self.call(Lane::Control, &call, option.soft_ttl()).await? {
            Reply::Vote(reply) => Ok(reply.response(self.target)),
            other => Err(unexpected(&other)),
        }
    }

    async fn send_snapshot(
        &self,
        by: VoteOf<TypeConfig>,
        manifest: SnapshotManifest,
        longest_install: Duration,
    ) -> Rpc<SnapshotResponse<TypeConfig>> {
        let _transfer = self.network.sending.begin(manifest.id);
        self.send_part(Call::SnapshotBegin).await?;
        let mut next = 0;
        while next < manifest.chunks {
            let (storage, id, chunks) = (self.network.storage.clone(), manifest.id, manifest.chunks);
            let read = blocking::<S, _>(move || read_message(&storage, id, next, chunks)).await;
            let (bytes, after) = read.map_err(|error| network_error(&error))?;
            self.send_part(Call::SnapshotBytes(bytes)).await?;
            next = after;
        }
        let end = Call::SnapshotEnd { vote: vote_record(&by), crc: manifest.crc };
        match self.end_snapshot(&end, longest_install).await? {
            Reply::SnapshotEnd { vote: record } => Ok(SnapshotResponse::new(vote(record, self.target))),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks until the receiver has installed the snapshot. An installation can take longer than one reply may.
    async fn end_snapshot(&self, end: &Call, longest: Duration) -> Rpc<Reply> {
        let began = Instant::now();
        loop {
            match self.exchange(Lane::Snapshot, end, self.network.disk_timeout).await {
                Err(PeerError::Timeout { .. }) if began.elapsed() < longest => {}
                sent => return read_reply(sent),
            }
        }
    }

    async fn send_part(&self, call: Call) -> Rpc<()> {
        match self.call(Lane::Snapshot, &call, self.network.disk_timeout).await? {
            Reply::SnapshotContinue => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

impl<S: Storage, T: Transport> RaftNetworkV2<TypeConfig> for Link<S, T> {
    type SnapshotData = SnapshotData<S>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<AppendEntriesResponse<TypeConfig>> {
        // Record the commit index before the message leaves. A follower that received it may already show these
        // entries, so a local read must not return an older state.
        let commit = request.leader_commit.as_ref().map_or(0, |commit| commit.index);
        self.network.announced.announce(commit, self.network.replica.applied_index());
        let timeout = if self.append_lane == Lane::Log { self.network.disk_timeout } else { option.soft_ttl() };
        let mut append = Append::new(&request);
        let quorum = self.network.quorum.get();
        let call = if self.network.replica.level() >= FeatureLevel::DATED_APPENDS {
            let echo = self.echoes.newest(quorum.and_then(|quorum| quorum.acked_at(append.vote.term)));
            // openraft may have made this message before the answer with the echo, so its commit can be older.
            Call::DatedAppend { shown: self.network.shown(&append), append, echo }
        } else {
            if quorum.is_some_and(Quorum::is_lost) {
                // Another leader may have committed more. A follower treats the commit of this message as all that is
                // committed at that moment.
                append.commit = None;
            }
            Call::Append(append)
        };
        match self.call(self.append_lane, &call, timeout).await? {
            Reply::Append(reply) => Ok(reply.response(self.target)),
            Reply::DatedAppend { reply, at } => {
                self.echoes.received(at);
                Ok(reply.response(self.target))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn stream_append<'s, I>(
        &'s mut self,
        input: I,
        option: RPCOption,
    ) -> BoxFuture<'s, Rpc<BoxStream<'s, Rpc<StreamAppendResult<TypeConfig>>>>>
    where
        I: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        stream_append_sequential(self, join_commits(input), option)
    }

    async fn vote(&mut self, request: VoteRequest<TypeConfig>, option: RPCOption) -> Rpc<VoteResponse<TypeConfig>> {
        self.request_vote(Call::Vote(RequestVote::new(&request)), option).await
    }

    async fn pre_vote(&mut self, request: VoteRequest<TypeConfig>, option: RPCOption) -> Rpc<VoteResponse<TypeConfig>> {
        self.request_vote(Call::PreVote(RequestVote::new(&request)), option).await
    }

    async fn full_snapshot(
        &mut self,
        by: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, SnapshotData<S>>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let SnapshotData::Stored { manifest, .. } = snapshot.snapshot else {
            unreachable!("openraft sends only snapshots from this node's disk");
        };
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = self.send_snapshot(by, manifest, option.hard_ttl()) => Ok(sent?),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<TransferLeaderResponse<TypeConfig>> {
        let call = Call::Transfer(TransferCall::new(&request));
        match self.call(Lane::Control, &call, option.soft_ttl()).await? {
            Reply::Transfer(Ok(())) => Ok(Ok(())),
            Reply::Transfer(Err(reason)) => Err(unreachable(reason)),
            other => Err(unexpected(&other)),
        }
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(BACKOFF)))
    }
}

/// Leaves out each append without entries that another one follows within [`COMMIT_DELAY`].
///
/// Both come after the same entry, and the later one announces at least as much. For openraft, its answer is the answer to
/// both. The date of this answer is that of a receipt in this stream, and so before the append leaves.
fn join_commits<I>(appends: I) -> BoxStream<'static, AppendEntriesRequest<TypeConfig>>
where
    I: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
{
    let joined = stream::unfold(appends.fuse(), |mut appends| async move {
        let append = appends.next().await?;
        let later = match append.entries.is_empty() {
            true => tokio::time::timeout(COMMIT_DELAY, appends.next()).await.ok().flatten(),
            false => None,
        };
        Some((later.unwrap_or(append), appends))
    });
    joined.boxed()
}

/// The chunks from `next` that fit into one message, and the number of the chunk after them.
fn read_message<S: Storage>(storage: &S, id: u64, mut next: u64, chunks: u64) -> io::Result<(Bytes, u64)> {
    let mut message = Vec::with_capacity(SNAPSHOT_MESSAGE_BYTES);
    while next < chunks && message.len() < SNAPSHOT_MESSAGE_BYTES {
        let chunk = storage.read_snapshot(id, next).map_err(|error: StorageError| io::Error::other(error))?;
        message.extend_from_slice(&chunk);
        next += 1;
    }
    Ok((message.into(), next))
}

fn read_reply(sent: Result<Bytes, PeerError>) -> Rpc<Reply> {
    match wire::decode(&sent.map_err(|error| rpc_error(&error))?) {
        Ok(Reply::Failed(reason)) => Err(unreachable(reason)),
        Ok(reply) => Ok(reply),
        Err(error) => Err(network_error(&error)),
    }
}

fn rpc_error(error: &PeerError) -> RPCError<TypeConfig> {
    if error.certainly_not_done() { RPCError::Unreachable(Unreachable::new(error)) } else { network_error(error) }
}

fn network_error<E: std::error::Error + 'static>(error: &E) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::new(error))
}

fn unreachable(reason: String) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(reason))
}

fn unexpected(reply: &Reply) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::from_string(format!("unexpected type of reply: {reply:?}")))
}

/// The snapshots that this node sends. Clones share the state.
#[derive(Clone, Default)]
pub struct OutgoingSnapshots(Arc<Mutex<TransferState>>);

#[derive(Default)]
struct TransferState {
    active: usize,
    /// The id of the last sent snapshot, and when its first transfer began.
    sent: Option<(u64, Instant)>,
}

/// Counts one transfer as active until it is dropped.
pub struct TransferGuard(OutgoingSnapshots);

impl OutgoingSnapshots {
    /// Registers a transfer of the snapshot with this id.
    pub fn begin(&self, id: u64) -> TransferGuard {
        let mut state = self.0.lock();
        state.active += 1;
        if state.sent.is_none_or(|(sent, _)| sent != id) {
            state.sent = Some((id, Instant::now()));
        }
        TransferGuard(self.clone())
    }

    /// Whether a transfer defers the next snapshot.
    pub fn defers_next(&self) -> bool {
        let state = self.0.lock();
        state.active > 0 && state.sent.is_some_and(|(_, since)| since.elapsed() < MAX_DEFERRAL)
    }
}

impl Drop for TransferGuard {
    fn drop(&mut self) {
        self.0.0.lock().active -= 1;
    }
}

#[cfg(test)]
mod snapshot_tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn transfer_defers_the_next_snapshot() {
        let sending = OutgoingSnapshots::default();
        assert!(!sending.defers_next());
        let (first, second) = (sending.begin(7), sending.begin(7));
        drop(first);
        assert!(sending.defers_next(), "the second transfer is active");
        drop(second);
        assert!(!sending.defers_next());
    }

    #[tokio::test(start_paused = true)]
    async fn transfer_defers_the_next_snapshot_for_10_minutes() {
        let sending = OutgoingSnapshots::default();
        let _transfer = sending.begin(7);
        tokio::time::advance(Duration::from_secs(599)).await;
        assert!(sending.defers_next());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!sending.defers_next());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_transfers_defer_no_longer_than_one() {
        let sending = OutgoingSnapshots::default();
        for _ in 0..6 {
            let transfer = sending.begin(7);
            assert!(sending.defers_next());
            tokio::time::sleep(MAX_DEFERRAL / 6).await;
            drop(transfer);
        }
        let _again = sending.begin(7);
        assert!(!sending.defers_next());
        let _newer = sending.begin(8);
        assert!(sending.defers_next());
    }
}
