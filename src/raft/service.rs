//! The service that answers Raft calls from other nodes.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::sync::OnceLock;

use bytes::Bytes;
use openraft::Raft;
use openraft::errors::Fatal;
use openraft::storage::Snapshot;
use parking_lot::Mutex;

use super::calls::run_to_completion;
use super::snapshot::{Meta, Reader, SnapshotData};
use super::state_machine::StateMachine;
use super::types::{TypeConfig, vote, vote_record};
use super::wire::{self, Append, AppendReply, Call, Reply, RequestVote, Transfer, VoteReply};
use crate::peer::{Lane, Service};
use crate::storage::{SnapshotWriter, Storage, VoteRecord};
use crate::types::NodeId;

/// The node's handler for calls that Raft does not process itself, and for messages from a leader.
pub trait Forwarded: Send + Sync + 'static {
    /// Answers a client's request that another node forwarded. The node module encodes it.
    fn forwarded(&self, from: NodeId, request: Bytes) -> impl Future<Output = Bytes> + Send;

    /// Called after this node accepts a leader's append or heartbeat.
    fn heard(&self, leader: NodeId);
}

/// Answers other nodes after [`open`](Self::open). Before that, it refuses their calls: before its restart, the node
/// may have granted a leadership lease, which it no longer remembers.
pub struct RaftService<S: Storage, F> {
    storage: S,
    member: OnceLock<Member<S, F>>,
    incoming: Mutex<HashMap<NodeId, Incoming<S>>>,
}

struct Member<S: Storage, F> {
    raft: Raft<TypeConfig, StateMachine<S>>,
    forwarded: F,
}

/// A partly received snapshot from one node.
struct Incoming<S: Storage> {
    writer: SnapshotWriter<S>,
    reader: Reader,
}

impl<S: Storage, F: Forwarded> RaftService<S, F> {
    pub fn new(storage: S) -> RaftService<S, F> {
        RaftService { storage, member: OnceLock::new(), incoming: Mutex::default() }
    }

    /// Starts to answer calls.
    ///
    /// # Panics
    ///
    /// The service is already open.
    pub fn open(&self, raft: Raft<TypeConfig, StateMachine<S>>, forwarded: F) {
        let opened = self.member.set(Member { raft, forwarded });
        assert!(opened.is_ok(), "a service opens only once");
    }

    async fn answer(&self, from: NodeId, call: Call) -> Reply {
        let Some(member) = self.member.get() else {
            return Reply::NotNow(
                "it has just started: it waits until leadership leases that it granted have expired".into(),
            );
        };
        match call {
            Call::Append(append) => self.append(member, from, append).await,
            Call::Vote(call) => {
                let (raft, request) = (member.raft.clone(), RequestVote::request(call, from));
                vote_reply(run_to_completion(async move { raft.vote(request).await }).await)
            }
            Call::PreVote(call) => {
                let (raft, request) = (member.raft.clone(), RequestVote::request(call, from));
                vote_reply(run_to_completion(async move { raft.pre_vote(request).await }).await)
            }
            Call::Transfer(transfer) => self.transfer(member, from, transfer).await,
            Call::SnapshotBegin => self.begin_snapshot(from),
            Call::SnapshotBytes(bytes) => self.take_snapshot_bytes(from, bytes).await,
            Call::SnapshotEnd { vote, crc } => self.end_snapshot(member, from, vote, crc).await,
            Call::Forward(request) => Reply::Forward(member.forwarded.forwarded(from, request).await),
            Call::StoreState => Reply::StoreState { is_empty: self.storage.is_empty() },
        }
    }

    async fn append(&self, member: &Member<S, F>, from: NodeId, append: Append) -> Reply {
        let request = match append.request(from) {
            Ok(request) => request,
            Err(error) => return Reply::Failed(error.to_string()),
        };
        let raft = member.raft.clone();
        match run_to_completion(async move { raft.append_entries(request).await }).await {
            Ok(response) => {
                if response.is_success() {
                    member.forwarded.heard(from);
                    // An earlier leader never completes its snapshot, so drop the received part.
                    self.incoming.lock().retain(|&sender, _| sender == from);
                }
                Reply::Append(AppendReply::new(response))
            }
            Err(error) => Reply::Failed(error.to_string()),
        }
    }

    async fn transfer(&self, member: &Member<S, F>, from: NodeId, transfer: Transfer) -> Reply {
        let (raft, request) = (member.raft.clone(), transfer.request(from));
        match run_to_completion(async move { raft.handle_transfer_leader(request).await }).await {
            Ok(response) => Reply::Transfer(response.map_err(|error| error.to_string())),
            Err(error) => Reply::Failed(error.to_string()),
        }
    }

    fn begin_snapshot(&self, from: NodeId) -> Reply {
        match self.storage.begin_snapshot() {
            Ok(writer) => {
                self.incoming.lock().insert(from, Incoming { writer, reader: Reader::default() });
                Reply::SnapshotContinue
            }
            Err(error) => Reply::Failed(error.to_string()),
        }
    }

    async fn take_snapshot_bytes(&self, from: NodeId, bytes: Bytes) -> Reply {
        // Remove the snapshot during the write. If this call is dropped, no half-written part remains.
        let Some(mut incoming) = self.incoming.lock().remove(&from) else { return no_snapshot() };
        if let Err(error) = incoming.reader.push(&bytes) {
            return Reply::Failed(error.to_string());
        }
        if let Err(error) = incoming.writer.write(&bytes).await {
            return Reply::Failed(error.to_string());
        }
        self.incoming.lock().insert(from, incoming);
        Reply::SnapshotContinue
    }

    async fn end_snapshot(&self, member: &Member<S, F>, from: NodeId, by: VoteRecord, crc: u32) -> Reply {
        let Some(Incoming { writer, reader }) = self.incoming.lock().remove(&from) else { return no_snapshot() };
        if writer.crc() != crc {
            return Reply::Failed(format!(
                "the received snapshot has checksum {:08x}: expected {crc:08x}",
                writer.crc()
            ));
        }
        let state = match reader.finish() {
            Ok(state) => Box::new(state),
            Err(error) => return Reply::Failed(error.to_string()),
        };
        let meta = match Meta::of(&state).snapshot_meta() {
            Ok(meta) => meta,
            Err(error) => return Reply::Failed(error.to_string()),
        };
        let snapshot = Snapshot { meta, snapshot: SnapshotData::Received { writer, state } };
        let (raft, by) = (member.raft.clone(), vote(by, from));
        let installed: Result<_, Fatal<TypeConfig>> =
            run_to_completion(async move { raft.install_full_snapshot(by, snapshot).await }).await;
        match installed {
            Ok(response) => Reply::SnapshotEnd { vote: vote_record(&response.vote) },
            Err(error) => Reply::Failed(error.to_string()),
        }
    }
}

impl<S: Storage, F: Forwarded> Service for RaftService<S, F> {
    async fn serve(&self, from: NodeId, _: Lane, body: Bytes) -> Bytes {
        let reply = match wire::decode(&body) {
            Ok(call) => self.answer(from, call).await,
            Err(error) => Reply::Failed(format!("this build cannot decode the message: {error}")),
        };
        wire::encode(&reply)
    }
}

fn vote_reply<E: Display>(answer: Result<openraft::raft::VoteResponse<TypeConfig>, E>) -> Reply {
    answer.map_or_else(|error| Reply::Failed(error.to_string()), |response| Reply::Vote(VoteReply::new(response)))
}

fn no_snapshot() -> Reply {
    Reply::Failed("this node receives no snapshot: restart the transfer".into())
}
