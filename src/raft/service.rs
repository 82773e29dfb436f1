//! The service that answers Raft calls from other nodes.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use openraft::Raft;
use openraft::errors::Fatal;
use openraft::storage::Snapshot;
use parking_lot::Mutex;

use super::freshness::LeaderContact;
use super::handle::run_to_completion;
use super::snapshot::{Meta, SnapshotData, SnapshotReader};
use super::state_machine::{Replica, StateMachine};
use super::types::{TypeConfig, vote, vote_record};
use super::wire::{self, Append, AppendReply, Call, Reply, RequestVote, TransferCall, VoteReply};
use crate::peer::Service;
use crate::storage::{SnapshotWriter, Storage, VoteRecord};
use crate::types::NodeId;

/// Answers the Raft calls of other nodes.
pub struct RaftService<S: Storage> {
    raft: Raft<TypeConfig, StateMachine<S>>,
    storage: S,
    replica: Replica,
    contact: Arc<LeaderContact>,
    incoming: Mutex<HashMap<NodeId, Incoming<S>>>,
    /// Locked while a snapshot is installed. Has the last one.
    installed: Arc<tokio::sync::Mutex<Option<Installed>>>,
    /// The last append could not be read.
    is_unreadable: AtomicBool,
}

/// A partly received snapshot from one node.
struct Incoming<S: Storage> {
    writer: SnapshotWriter<S>,
    reader: SnapshotReader,
}

/// An installed snapshot. Its sender can ask again, if the installation took longer than its call.
struct Installed {
    from: NodeId,
    crc: u32,
}

impl<S: Storage> RaftService<S> {
    pub(super) fn new(
        raft: Raft<TypeConfig, StateMachine<S>>,
        storage: S,
        replica: Replica,
        contact: Arc<LeaderContact>,
    ) -> RaftService<S> {
        RaftService {
            raft,
            storage,
            replica,
            contact,
            incoming: Mutex::default(),
            installed: Arc::default(),
            is_unreadable: AtomicBool::new(false),
        }
    }

    async fn answer(&self, from: NodeId, call: Call) -> Reply {
        match call {
            // A removed node must not begin an election. Its append is answered with the higher vote, so an old leader
            // stops.
            Call::Vote(_) | Call::PreVote(_) | Call::Transfer(_) if self.replica.is_removed(from) => {
                Reply::Failed(format!("node {from} was removed from the cluster"))
            }
            Call::Append(append) => {
                let commit = append.commit.filter(|commit| commit.term == append.vote.term);
                // The message does not tell when it was sent.
                let shown = commit.map(|commit| (self.contact.now_ms(), commit.index));
                self.append(from, append, shown).await.map_or_else(Reply::Failed, Reply::Append)
            }
            Call::DatedAppend { append, echo, shown } => {
                let shown = echo.and_then(|echo| self.contact.read(echo)).zip(shown);
                let replied = self.append(from, append, shown).await;
                replied.map_or_else(Reply::Failed, |reply| Reply::DatedAppend { reply, at: self.contact.time() })
            }
            Call::Vote(call) => {
                let (raft, request) = (self.raft.clone(), RequestVote::request(call, from));
                vote_reply(run_to_completion(async move { raft.vote(request).await }).await)
            }
            Call::PreVote(call) => {
                let (raft, request) = (self.raft.clone(), RequestVote::request(call, from));
                vote_reply(run_to_completion(async move { raft.pre_vote(request).await }).await)
            }
            Call::Transfer(transfer) => self.transfer(from, transfer).await,
            Call::SnapshotBegin => self.begin_snapshot(from),
            Call::SnapshotBytes(bytes) => self.take_snapshot_bytes(from, bytes).await,
            Call::SnapshotEnd { vote, crc } => self.end_snapshot(from, vote, crc).await,
        }
    }

    /// `shown`: a time, and the last entry that any node had shown by then. Before its first commit, a leader does not know
    /// all that an earlier one has committed.
    async fn append(&self, from: NodeId, append: Append, shown: Option<(u64, u64)>) -> Result<AppendReply, String> {
        let has_entries = !append.entries.is_empty();
        let request = match append.request(from) {
            Ok(request) => request,
            Err(error) => {
                self.note_unreadable(from, "entries", &error);
                return Err(error.to_string());
            }
        };
        // Between two attempts with the same entries, the leader sends heartbeats without any.
        if has_entries {
            self.is_unreadable.store(false, Ordering::Relaxed);
        }
        let raft = self.raft.clone();
        match run_to_completion(async move { raft.append_entries(request).await }).await {
            Ok(response) => {
                if response.is_success() {
                    self.contact.heard();
                    if let Some((at_ms, last)) = shown {
                        self.contact.announced(at_ms, last, self.replica.applied_index());
                    }
                    // An earlier leader never completes its snapshot, so drop the received part.
                    self.incoming.lock().retain(|&sender, _| sender == from);
                }
                Ok(AppendReply::new(response))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Logs the first of several attempts of the leader.
    fn note_unreadable(&self, from: NodeId, what: &str, error: &dyn std::fmt::Display) {
        if !self.is_unreadable.swap(true, Ordering::Relaxed) {
            tracing::error!(from, %error, "this node cannot read the {what} of its leader: it does not follow");
        }
    }

    async fn transfer(&self, from: NodeId, transfer: TransferCall) -> Reply {
        let (raft, request) = (self.raft.clone(), transfer.request(from));
        match run_to_completion(async move { raft.handle_transfer_leader(request).await }).await {
            Ok(response) => Reply::Transfer(response.map_err(|error| error.to_string())),
            Err(error) => Reply::Failed(error.to_string()),
        }
    }

    fn begin_snapshot(&self, from: NodeId) -> Reply {
        match self.storage.begin_snapshot() {
            Ok(writer) => {
                self.incoming.lock().insert(from, Incoming { writer, reader: SnapshotReader::default() });
                Reply::SnapshotContinue
            }
            Err(error) => Reply::Failed(error.to_string()),
        }
    }

    async fn take_snapshot_bytes(&self, from: NodeId, bytes: Bytes) -> Reply {
        // Remove the snapshot during the write. If this call is dropped, no half-written part remains.
        let Some(mut incoming) = self.incoming.lock().remove(&from) else { return no_snapshot() };
        if let Err(error) = incoming.reader.push(&bytes) {
            self.note_unreadable(from, "snapshot", &error);
            return Reply::Failed(error.to_string());
        }
        if let Err(error) = incoming.writer.write(&bytes).await {
            return Reply::Failed(error.to_string());
        }
        self.incoming.lock().insert(from, incoming);
        Reply::SnapshotContinue
    }

    async fn end_snapshot(&self, from: NodeId, by: VoteRecord, crc: u32) -> Reply {
        let mut installed = self.installed.clone().lock_owned().await;
        let Some(Incoming { writer, reader }) = self.incoming.lock().remove(&from) else {
            let is_installed = installed.as_ref().is_some_and(|last| (last.from, last.crc) == (from, crc));
            return if is_installed { self.confirm_snapshot(from, by).await } else { no_snapshot() };
        };
        if writer.crc() != crc {
            return Reply::Failed(format!(
                "the received snapshot has checksum {:08x}: expected {crc:08x}",
                writer.crc()
            ));
        }
        let state = match reader.finish() {
            Ok(state) => Box::new(state),
            Err(error) => {
                self.note_unreadable(from, "snapshot", &error);
                return Reply::Failed(error.to_string());
            }
        };
        let meta = match Meta::of(&state).snapshot_meta() {
            Ok(meta) => meta,
            Err(error) => return Reply::Failed(error.to_string()),
        };
        let snapshot = Snapshot { meta, snapshot: SnapshotData::Received { writer, state } };
        let (raft, by) = (self.raft.clone(), vote(by, from));
        let install = async move {
            let vote = raft.install_full_snapshot(by, snapshot).await.map(|response| vote_record(&response.vote));
            *installed = vote.is_ok().then_some(Installed { from, crc });
            vote
        };
        let vote: Result<VoteRecord, Fatal<TypeConfig>> = run_to_completion(install).await;
        vote.map_or_else(|error| Reply::Failed(error.to_string()), |vote| Reply::SnapshotEnd { vote })
    }

    /// Answers the sender of an installed snapshot. Its leadership lease counts the answer as an acknowledgement of this
    /// transfer, which may be a later one of the same snapshot. So Raft checks whether this node still follows it.
    async fn confirm_snapshot(&self, from: NodeId, by: VoteRecord) -> Reply {
        let append = Append { vote: by, previous: None, commit: None, entries: Vec::new() };
        match self.append(from, append, None).await {
            Ok(AppendReply::HigherVote(vote)) => Reply::SnapshotEnd { vote },
            Ok(_) => Reply::SnapshotEnd { vote: by },
            Err(error) => Reply::Failed(error),
        }
    }
}

impl<S: Storage> Service for RaftService<S> {
    async fn serve(&self, from: NodeId, body: Bytes) -> Bytes {
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
