//! openraft's type configuration, and conversions between its types and those of this crate.

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
    /// `leader_id_std` allows one leader per term. So (term, index) identifies one entry and serves as a fencing token.
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
pub type RaftMembership = openraft::Membership<NodeId, PeerInfo>;
pub type Stored = StoredMembership<CommittedLeaderId, NodeId, PeerInfo>;
pub type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId, NodeId, PeerInfo>;

/// The addresses of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    pub http: String,
    pub peer: String,
}

/// A proposal as encoded in the log. `log` defines the encoding.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Proposal(pub Bytes);

/// The result of applying one entry: one outcome per command of its batch.
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

/// Older records have no candidate. For these, the candidate is `own`.
pub fn vote(record: VoteRecord, own: NodeId) -> Vote {
    let candidate = record.candidate.unwrap_or(own);
    Vote { leader_id: LeaderId { term: record.term, voted_for: candidate }, committed: record.committed }
}
