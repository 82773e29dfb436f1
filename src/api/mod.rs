//! The JSON types of the HTTP API: requests, responses, problems and watch events. Server and client share them.
//!
//! - Requests with unknown fields are invalid, so that a misspelt `ttl_ms` never means the default ttl.
//! - An older client can read the responses of a newer server: it ignores unknown fields, and reads unknown names as
//!   `Other`.
//! - Durations are integers in milliseconds; their names end in `_ms`.
//! - Wall-clock times are for people only. They are named `at` or end in `_at`.
//! - Fencing tokens are decimal strings: they have 63 bits, and JavaScript and jq round JSON numbers above 2^53.

mod access;
mod cluster;
mod event;
mod explain;
mod integer;
mod lease;
mod object;
mod problem;
mod request;
#[cfg(feature = "server")]
mod schema;
mod timestamp;
mod ttl;

pub use access::{
    AccessControl, CreatedToken, Permission, Principal, RoleDefinition, SetPrincipal, SetRole, TokenInfo,
};
pub use cluster::{
    AddMember, Addresses, Cluster, LeaderChange, MemberInfo, Members, NodeClock, ReplaceMember, Transfer, Transferred,
    Version,
};
pub use event::{Event, EventId, EventKind, InvalidEventId};
pub use explain::{Explanation, Standing};
pub use lease::{History, LeaseInfo, LeasePage, Queue, Released, RenewResult, Renewed, Revoked, Waiter};
#[cfg(feature = "server")]
pub(crate) use object::Object;
pub use problem::{Code, Problem};
pub use request::{Acquire, HandOver, Release, Renew, RenewBatch, RenewItem, UpdateMetadata};
pub use timestamp::Timestamp;
pub use ttl::TtlMs;

pub use crate::types::{DiskState, GrantCause, LeaseState, LostReason, MemberState, Role, StateFilter};

/// Most leases in one batched renewal.
pub const MAX_RENEW_ITEMS: usize = 10_000;
/// Largest body of a request about several leases, in bytes. A batch of [`MAX_RENEW_ITEMS`] with short names fits.
pub const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;
/// Largest body of a request about one lease, in bytes. The largest valid claim fits: its holder and metadata have
/// 4,296 bytes, and a JSON escape takes 6 bytes.
pub const MAX_LEASE_BODY_BYTES: usize = 32 * 1024;
/// Most leases on one page of a list.
pub const MAX_PAGE: u32 = 1_000;
/// Leases on a page of a list by default.
pub const DEFAULT_PAGE: u32 = 100;

/// Id of the node that executed the request, or else of the node that answered.
pub const NODE_HEADER: &str = "x-tenure-node";
/// The Raft term of the response.
pub const TERM_HEADER: &str = "x-tenure-term";
/// The log index that the response reflects.
pub const INDEX_HEADER: &str = "x-tenure-index";
/// On a stale read: the age of the state in milliseconds; absent if the node has not caught up since its start.
pub const STALE_HEADER: &str = "x-tenure-stale-ms";
/// In a request, with any value: the node does not forward to the leader, but answers 307 with the leader's address.
pub const NO_FORWARD_HEADER: &str = "x-tenure-no-forward";
