//! What this node answers to the other nodes' calls.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::sync::OnceLock;

use bytes::Bytes;
use openraft::Raft;
use openraft::errors::Fatal;
use openraft::storage::Snapshot;
use parking_lot::Mutex;

use super::calls::to_the_end;
use super::snapshot::{Meta, Reader, SnapshotData};
use super::state_machine::StateMachine;
use super::types::{TypeConfig, vote, vote_record};
use super::wire::{self, Append, Appended, Ballot, Call, Poll, Reply, Transfer};
use crate::peer::{Lane, Service};
use crate::storage::{SnapshotWriter, Storage, VoteRecord};
use crate::types::NodeId;

/// What Raft hands to the node above it: clients' requests that other nodes pass on (their bytes are the node's
/// business), and the news that a leader was heard from.
pub trait Forwarded: Send + Sync + 'static {
    fn forwarded(&self, from: NodeId, request: Bytes) -> impl Future<Output = Bytes> + Send;

    /// A leader's append or heartbeat was accepted.
    fn heard(&self, leader: NodeId);
}

/// Answers other nodes, from the moment it is opened. Until then a restarted node keeps still: it may have promised a
/// leader not to elect another, and has forgotten it.
pub struct RaftService<S: Storage, F> {
    storage: S,
    open: OnceLock<Open<S, F>>,
    incoming: Mutex<HashMap<NodeId, Incoming<S>>>,
}

struct Open<S: Storage, F> {
    raft: Raft<TypeConfig, StateMachine<S>>,
    forwarded: F,
}

/// A snapshot on its way in from one node.
struct Incoming<S: Storage> {
    writer: SnapshotWriter<S>,
    reader: Reader,
}

impl<S: Storage, F: Forwarded> RaftService<S, F> {
    pub fn new(storage: S) -> RaftService<S, F> {
        RaftService { storage, open: OnceLock::new(), incoming: Mutex::default() }
    }

    /// From now on calls are answered. Once only.
    pub fn open(&self, raft: Raft<TypeConfig, StateMachine<S>>, forwarded: F) {
        let opened = self.open.set(Open { raft, forwarded });
        assert!(opened.is_ok(), "a service is opened once");
    }

    async fn answer(&self, from: NodeId, call: Call) -> Reply {
        let Some(open) = self.open.get() else {
            return Reply::NotNow("it has just started and waits until it can have no promise left to keep".into());
        };
        match call {
            Call::Append(append) => self.append(open, from, append).await,
            Call::Vote(ballot) => {
                let (raft, request) = (open.raft.clone(), Ballot::request(ballot, from));
                poll(to_the_end(async move { raft.vote(request).await }).await)
            }
            Call::PreVote(ballot) => {
                let (raft, request) = (open.raft.clone(), Ballot::request(ballot, from));
                poll(to_the_end(async move { raft.pre_vote(request).await }).await)
            }
            Call::Transfer(transfer) => self.transfer(open, from, transfer).await,
            Call::SnapshotBegin => self.begin_snapshot(from),
            Call::SnapshotBytes(bytes) => self.take_snapshot_bytes(from, bytes).await,
            Call::SnapshotEnd { vote, crc } => self.end_snapshot(open, from, vote, crc).await,
            Call::Forward(request) => Reply::Forward(open.forwarded.forwarded(from, request).await),
            Call::StoreState => Reply::StoreState { is_empty: self.storage.is_empty() },
        }
    }

    async fn append(&self, open: &Open<S, F>, from: NodeId, append: Append) -> Reply {
        let request = match append.request(from) {
            Ok(request) => request,
            Err(error) => return Reply::Failed(error.to_string()),
        };
        let raft = open.raft.clone();
        match to_the_end(async move { raft.append_entries(request).await }).await {
            Ok(response) => {
                if response.is_success() {
                    open.forwarded.heard(from);
                    // What an earlier leader began to send is never finished: it would be kept for ever.
                    self.incoming.lock().retain(|&sender, _| sender == from);
                }
                Reply::Append(Appended::new(response))
            }
            Err(error) => Reply::Failed(error.to_string()),
        }
    }

    async fn transfer(&self, open: &Open<S, F>, from: NodeId, transfer: Transfer) -> Reply {
        let (raft, request) = (open.raft.clone(), transfer.request(from));
        match to_the_end(async move { raft.handle_transfer_leader(request).await }).await {
            Ok(response) => Reply::Transfer(response.map_err(|error| error.to_string())),
            Err(error) => Reply::Failed(error.to_string()),
        }
    }

    fn begin_snapshot(&self, from: NodeId) -> Reply {
        match self.storage.begin_snapshot() {
            Ok(writer) => {
                self.incoming.lock().insert(from, Incoming { writer, reader: Reader::default() });
                Reply::SnapshotGoOn
            }
            Err(error) => Reply::Failed(error.to_string()),
        }
    }

    async fn take_snapshot_bytes(&self, from: NodeId, bytes: Bytes) -> Reply {
        // Taken out while it is written: a lost call leaves nothing half done behind.
        let Some(mut incoming) = self.incoming.lock().remove(&from) else { return no_snapshot() };
        if let Err(error) = incoming.reader.push(&bytes) {
            return Reply::Failed(error.to_string());
        }
        if let Err(error) = incoming.writer.write(&bytes).await {
            return Reply::Failed(error.to_string());
        }
        self.incoming.lock().insert(from, incoming);
        Reply::SnapshotGoOn
    }

    async fn end_snapshot(&self, open: &Open<S, F>, from: NodeId, by: VoteRecord, crc: u32) -> Reply {
        let Some(Incoming { writer, reader }) = self.incoming.lock().remove(&from) else { return no_snapshot() };
        if writer.crc() != crc {
            return Reply::Failed(format!("the snapshot's checksum is {:08x}, and {crc:08x} was sent", writer.crc()));
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
        let (raft, by) = (open.raft.clone(), vote(by, from));
        let installed: Result<_, Fatal<TypeConfig>> =
            to_the_end(async move { raft.install_full_snapshot(by, snapshot).await }).await;
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
            Err(error) => Reply::Failed(format!("a message that this build cannot read: {error}")),
        };
        wire::encode(&reply)
    }
}

fn poll<E: Display>(answer: Result<openraft::raft::VoteResponse<TypeConfig>, E>) -> Reply {
    answer.map_or_else(|error| Reply::Failed(error.to_string()), |response| Reply::Vote(Poll::new(response)))
}

fn no_snapshot() -> Reply {
    Reply::Failed("no snapshot is on its way in; it has to begin again".into())
}
