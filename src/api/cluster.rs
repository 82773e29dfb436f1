//! What a node says about its cluster and itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of `/v1/cluster`: what one node knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    pub cluster_id: String,
    /// Which node answered.
    pub node: u64,
    /// `null`: none is known.
    pub leader: Option<u64>,
    pub term: u64,
    /// Log index of the last entry that this node applied.
    pub applied: u64,
    pub members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    pub id: u64,
    pub role: Role,
    /// `host:port` of its public listener.
    pub http: String,
    /// `host:port` for other nodes.
    pub peer: String,
    /// Entries behind the leader's last; the leader knows it, other nodes say `null`.
    pub lag: Option<u64>,
    /// Since it was last heard from; `null` if this node cannot know.
    pub last_contact_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Leader,
    Follower,
    Learner,
}

/// Answer of `/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    pub version: String,
}
