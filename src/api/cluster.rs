//! Status of a cluster and of its nodes.

use serde::{Deserialize, Serialize};

use super::{Timestamp, integer};
use crate::types::{DiskState, MemberState, Role};

/// Response of `/v1/cluster`: the view of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Cluster {
    /// The name of the cluster.
    pub cluster_id: String,
    /// Id of the node that answered.
    pub node: u64,
    /// `null` if the node reaches no leader.
    pub leader: Option<u64>,
    /// Whether the node reaches a leader that a majority acknowledges. Without one, no lease changes.
    pub quorum: bool,
    /// The Raft term of this node.
    pub term: u64,
    /// Index of the last log entry that this node applied.
    pub applied: u64,
    /// The clocks of this node.
    pub clock: NodeClock,
    /// What all members understand. It rises after an upgrade of all members.
    pub feature_level: u32,
    /// The last 32 leaders that this node has known since its start, oldest first.
    #[serde(default)]
    pub leader_changes: Vec<LeaderChange>,
    /// The members of the cluster.
    pub members: Vec<MemberInfo>,
}

/// The start of a leader's term, as a node learned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct LeaderChange {
    /// The Raft term.
    pub term: u64,
    /// Id of the leader of that term.
    pub leader: u64,
    /// When the node learned it.
    #[cfg_attr(feature = "server", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
}

/// The clocks of a node when it answered. Two answers show the rate of its monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct NodeClock {
    /// Milliseconds of the monotonic clock, which times leases, since a fixed point.
    pub monotonic_ms: u64,
    /// The wall clock, for display only.
    #[cfg_attr(feature = "server", schema(value_type = String, format = DateTime))]
    pub wall: Timestamp,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "server", schema(as = Member))]
#[non_exhaustive]
pub struct MemberInfo {
    /// The id of the node.
    pub id: u64,
    /// The Raft role of the node.
    pub role: Role,
    /// As the leader sees it. Without a quorum: whether it answers the node that you asked.
    pub state: MemberState,
    /// `host:port` for clients.
    pub http: String,
    /// `host:port` for other nodes.
    pub peer: String,
    /// Number of log entries behind the leader. Only the leader knows it; other nodes return `null`.
    pub lag: Option<u64>,
    /// Time since the leader sent the last message that it acknowledged. Without a quorum: since its last sign of life
    /// that the node that you asked knows of. `null`: unknown.
    pub last_contact_ms: Option<u64>,
    /// When the certificate expires that the node presented in its last connection with the node that you asked; `null`
    /// without TLS, or before such a connection.
    #[cfg_attr(feature = "server", schema(value_type = Option<String>, format = DateTime))]
    pub certificate_expires_at: Option<Timestamp>,
    /// As the member answered the node that you asked in the last 2 s; `null`: it did not, or has an older release.
    #[serde(default)]
    pub disk: Option<DiskState>,
}

/// Response of `/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Version {
    /// The version of the node.
    pub version: String,
    /// The newest data format that the node reads and writes.
    pub data_format: u32,
}

/// Body of `POST /v1/cluster/members`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AddMember {
    /// An id that no node of this cluster ever had.
    #[serde(deserialize_with = "integer::required")]
    #[cfg_attr(feature = "server", schema(minimum = 1, maximum = 9_223_372_036_854_775_807_u64))]
    pub id: u64,
    /// `host:port` of the public listener, as clients reach it.
    pub http: String,
    /// `host:port` of the peer listener, as other nodes reach it.
    pub peer: String,
}

impl AddMember {
    /// A member with this id and these addresses.
    pub fn new(id: u64, http: impl Into<String>, peer: impl Into<String>) -> AddMember {
        AddMember { id, http: http.into(), peer: peer.into() }
    }
}

/// Body of `POST /v1/cluster/members/{id}/addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Addresses {
    /// `host:port` of the public listener, as clients reach it.
    pub http: String,
    /// `host:port` of the peer listener, as other nodes reach it.
    pub peer: String,
}

impl Addresses {
    /// The addresses of the public and the peer listener.
    pub fn new(http: impl Into<String>, peer: impl Into<String>) -> Addresses {
        Addresses { http: http.into(), peer: peer.into() }
    }
}

/// Body of `POST /v1/cluster/members/{id}/replace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ReplaceMember {
    /// The member that becomes a voter in its place.
    #[serde(deserialize_with = "integer::required")]
    #[cfg_attr(feature = "server", schema(minimum = 1, maximum = 9_223_372_036_854_775_807_u64))]
    pub with: u64,
}

impl ReplaceMember {
    /// The member `with` takes the place of the voter.
    pub fn new(with: u64) -> ReplaceMember {
        ReplaceMember { with }
    }
}

/// Body of `POST /v1/cluster/transfer`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Transfer {
    /// The voter that becomes the leader. Absent: the one that lacks the fewest log entries.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(minimum = 1, maximum = 9_223_372_036_854_775_807_u64))]
    pub to: Option<u64>,
}

impl Transfer {
    /// A transfer to this voter. The default leaves the choice to the leader.
    pub fn to(voter: u64) -> Transfer {
        Transfer { to: Some(voter) }
    }
}

/// Response to a change of the members: the members after it, as the leader sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Members {
    /// The members of the cluster.
    pub members: Vec<MemberInfo>,
}

/// Response to a transfer of the leadership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Transferred {
    /// The leader before the transfer.
    pub from: u64,
    /// The leader after the transfer.
    pub leader: u64,
}
