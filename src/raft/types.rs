//! The types that openraft is set up with, and the few conversions between them and ours.

use std::fmt;

use bytes::Bytes;
use openraft::StoredMembership;
use openraft::alias::{CommittedLeaderIdOf, EntryOf};
use openraft::impls::leader_id_std::LeaderId;
use serde::{Deserialize, Serialize};

use super::runtime::Runtime;
use crate::lease::Outcome;
use crate::storage::{Position, VoteRecord};
use crate::types::NodeId;

openraft::declare_raft_types!(
    /// One leader a term (`leader_id_std`), so that (term, index) names one entry and is a fencing token.
    pub TypeConfig:
        D = Proposal,
        R = Applied,
        NodeId = u64,
        Node = PeerInfo,
        LeaderId = LeaderId<u64, u64>,
        AsyncRuntime = Runtime,
);

pub type CommittedLeaderId = CommittedLeaderIdOf<TypeConfig>;
pub type LogId = openraft::LogId<CommittedLeaderId>;
pub type Vote = openraft::Vote<LeaderId<u64, u64>>;
pub type Entry = EntryOf<TypeConfig>;
pub type Membership = openraft::Membership<NodeId, PeerInfo>;
pub type Stored = StoredMembership<CommittedLeaderId, NodeId, PeerInfo>;
pub type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId, NodeId, PeerInfo>;

/// Where a member is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    pub http: String,
    pub peer: String,
}

/// A proposal as it stands in the log: see `payload`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Proposal(pub Bytes);

/// What applying one entry answers: an outcome for each command of its batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Applied(pub Vec<Outcome>);

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

pub fn position(id: &LogId) -> Position {
    Position { term: id.leader_id.term, index: id.index }
}

pub fn log_id(position: Position) -> LogId {
    LogId { leader_id: CommittedLeaderId::from(position.term), index: position.index }
}

pub fn vote_record(vote: &Vote) -> VoteRecord {
    VoteRecord { term: vote.leader_id.term, candidate: Some(vote.leader_id.voted_for), committed: vote.committed }
}

/// `own` stands in where an older record has no candidate.
pub fn vote(record: VoteRecord, own: NodeId) -> Vote {
    let candidate = record.candidate.unwrap_or(own);
    Vote { leader_id: LeaderId { term: record.term, voted_for: candidate }, committed: record.committed }
}
