//! Leases and what is said about them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Event, Problem, Timestamp, decimal};
use crate::token::FencingToken;

/// One holder's lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    pub name: String,
    pub holder: String,
    /// The fencing token of the grant: a 63-bit integer whose order is (`term`, `index`).
    #[serde(with = "decimal")]
    #[schema(value_type = String, example = "281474976710661")]
    pub token: FencingToken,
    /// Raft term of the grant.
    pub term: u64,
    /// Log index of the grant.
    pub index: u64,
    /// `null`: infinite.
    pub ttl_ms: Option<u64>,
    /// A hint, never below 0. A lease that is due reads as held until its expiry is committed. `null`: infinite or ended.
    pub expires_in_ms: Option<u64>,
    pub state: LeaseState,
    #[schema(value_type = String, format = DateTime)]
    pub granted_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub renewed_at: Timestamp,
    /// How often this grant was renewed.
    pub renewals: u64,
    /// Absent if there is none, and in the answer to a batched renewal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// How many may hold the lease at once.
    pub limit: u32,
    pub lock_delay_ms: u64,
    /// How many wait for it.
    pub waiters: u32,
    /// How often the metadata was replaced during this grant. A change of the metadata names it.
    #[serde(default)]
    pub metadata_version: u64,
    /// The present holders of a counted lease (`limit` above 1), in the order of their tokens; the fields above are
    /// those of the first. At most 1,000 of them and about 1 MiB; `holders_cursor` leads to the others. Absent for a
    /// plain lease, and in lists, which have one entry for each holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub holders: Option<Vec<Lease>>,
    /// There if there are more holders: pass it as `cursor` to `GET /v1/leases` with the name as `prefix` and the state
    /// `active`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders_cursor: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    Active,
    Expired,
    Released,
    Revoked,
    HandedOver,
}

/// Why a holder does not have a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LostReason {
    Expired,
    Released,
    Revoked,
    HandedOver,
    /// The token was never granted to this holder, or so long ago that it is forgotten.
    Unknown,
}

/// Answer to a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Released {
    /// `false`: it was not held with that token, and nothing changed.
    pub released: bool,
}

/// Answer to a revoke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Revoked {
    /// How many holders lost the lease; 0: nobody had it.
    pub revoked: u32,
}

/// Answer to a batched renewal: one result for each lease, in the order asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Renewed {
    pub results: Vec<RenewResult>,
}

/// One renewal's result: exactly one of `lease` and `problem` is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RenewResult {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Code `lost`, with why and who holds it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LeasePage {
    /// One entry for each holder. A page can be short, or empty, without being the last.
    pub leases: Vec<Lease>,
    /// Pass it as `cursor` for the next page; `null` on the last.
    pub cursor: Option<String>,
}

/// The last transitions of a name, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct History {
    pub name: String,
    pub transitions: Vec<Event>,
}

/// Who waits for a lease, next first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    pub name: String,
    /// How many wait.
    pub total: u32,
    /// The first 1,000 of them.
    pub waiters: Vec<Waiter>,
}

/// A place in a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Waiter {
    /// 0 is next.
    pub place: u32,
    pub holder: String,
    #[schema(value_type = String, format = DateTime)]
    pub since_at: Timestamp,
    pub waited_ms: u64,
    /// Until its own wait ends.
    pub expires_in_ms: u64,
}
