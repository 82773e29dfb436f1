//! Status of a cluster and of its nodes.

use serde::{Deserialize, Serialize};

use crate::types::{MemberState, Role};

/// Response of `/v1/cluster`: the view of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Cluster {
    /// The name of the cluster.
    pub cluster_id: String,
    /// Id of the node that answered.
    pub node: u64,
    /// `null` if the node knows no leader.
    pub leader: Option<u64>,
    /// Whether the node reaches a leader that a majority acknowledges. Without one, no lease changes.
    pub quorum: bool,
    /// The Raft term of this node.
    pub term: u64,
    /// Index of the last log entry that this node applied.
    pub applied: u64,
    /// The members of the cluster.
    pub members: Vec<Member>,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Member {
    /// The id of the node.
    pub id: u64,
    /// The Raft role of the node.
    pub role: Role,
    /// As the leader sees it. Without a leader: whether it answers the node that you asked.
    pub state: MemberState,
    /// `host:port` for clients.
    pub http: String,
    /// `host:port` for other nodes.
    pub peer: String,
    /// Number of log entries behind the leader. Only the leader knows it; other nodes return `null`.
    pub lag: Option<u64>,
    /// Time since its last message; `null` if this node cannot know it.
    pub last_contact_ms: Option<u64>,
}

/// Response of `/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Version {
    /// The version of the node.
    pub version: String,
}
