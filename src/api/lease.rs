//! Leases, and responses about them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Event, Problem, Timestamp, TtlMs};
use crate::token::FencingToken;
use crate::types::LeaseState;

/// One holder's lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "server", schema(as = Lease))]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The name of the lease.
    pub name: String,
    /// The holder.
    pub holder: String,
    /// The fencing token of the grant: a 63-bit integer, ordered like (`term`, `index`).
    #[cfg_attr(feature = "server", schema(value_type = String, example = "281474976710661"))]
    pub token: FencingToken,
    /// Raft term of the grant.
    pub term: u64,
    /// Log index of the grant.
    pub index: u64,
    /// The ttl of the request that set the expiry.
    pub ttl_ms: TtlMs,
    /// Approximate time to the expiry, at least 0. A lease reads as held until a log entry expires it. `null`: infinite
    /// or ended.
    pub expires_in_ms: Option<u64>,
    /// The state of the lease.
    pub state: LeaseState,
    /// The wall-clock time of the grant. For display only.
    #[cfg_attr(feature = "server", schema(value_type = String, format = DateTime))]
    pub granted_at: Timestamp,
    /// The wall-clock time of the last renewal or grant. For display only.
    #[cfg_attr(feature = "server", schema(value_type = String, format = DateTime))]
    pub renewed_at: Timestamp,
    /// Number of renewals of this grant.
    pub renewals: u64,
    /// Absent if empty, and in the response to a batched renewal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Most holders at once.
    pub limit: u32,
    /// Time after an expiry or a revoke of this grant in which the cluster does not grant the lease.
    pub lock_delay_ms: u64,
    /// Number of waiters.
    pub waiters: u32,
    /// Number of metadata updates during this grant. The next update names it as `version`.
    #[serde(default)]
    pub metadata_version: u64,
    /// Current holders of a counted lease (`limit` above 1), in token order. The fields above describe the first one.
    /// At most 1,000 holders, and about 1 MiB; `holders_cursor` leads to the rest. Absent for a plain lease, and in
    /// lists, which have one entry per holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(no_recursion))]
    pub holders: Option<Vec<LeaseInfo>>,
    /// Present if the lease has more holders. Pass it as `cursor` to `GET /v1/leases`, with the name as `prefix` and
    /// the state `active`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders_cursor: Option<String>,
}

/// Response to a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Released {
    /// `false`: the holder did not have the lease with that token, and nothing changed.
    pub released: bool,
}

/// Response to a revoke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Revoked {
    /// Number of holders that lost the lease; 0 if it had none.
    pub revoked: u32,
}

/// Response to a batched renewal: one result for each lease, in the order of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Renewed {
    /// The results, in the order of the request.
    pub results: Vec<RenewResult>,
}

/// Result of one renewal: exactly one of `lease` and `problem` is present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct RenewResult {
    /// The name of the lease.
    pub name: String,
    /// The lease after a successful renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
    /// A problem with the code `lost`, the reason and the current holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct LeasePage {
    /// One entry for each holder. A page before the last one can be short or empty.
    pub leases: Vec<LeaseInfo>,
    /// The `cursor` for the next page; `null` on the last page.
    pub cursor: Option<String>,
}

/// The last transitions of a name, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct History {
    /// The name of the lease.
    pub name: String,
    /// The transitions, oldest first.
    pub transitions: Vec<Event>,
}

/// The waiters for a lease, first one first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Queue {
    /// The name of the lease.
    pub name: String,
    /// Number of all waiters.
    pub total: u32,
    /// The first 1,000 waiters.
    pub waiters: Vec<Waiter>,
}

/// A waiter in a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Waiter {
    /// Number of waiters before it.
    pub place: u32,
    /// The holder that waits.
    pub holder: String,
    /// The wall-clock time of the claim. For display only.
    #[cfg_attr(feature = "server", schema(value_type = String, format = DateTime))]
    pub since_at: Timestamp,
    /// Time since the claim.
    pub waited_ms: u64,
    /// Time until its wait ends.
    pub expires_in_ms: u64,
}
