//! What travels over HTTP: the JSON of requests, answers, problems and watch events, shared by server and client.
//!
//! Requests refuse unknown fields, so that a misspelt `ttl_ms` is never a default ttl. Answers accept them, so that
//! an older client reads a newer server. Durations are integers whose name ends in `_ms`; wall-clock times are for
//! people only and end in `_at` or are named `at`. Fencing tokens are decimal strings: they are 63-bit integers, and
//! JSON numbers above 2^53 do not survive JavaScript and jq.

mod cluster;
mod decimal;
mod event;
mod explain;
mod integer;
mod lease;
mod object;
mod problem;
mod request;
mod timestamp;
mod ttl;

pub use cluster::{Cluster, Member, Role, Version};
pub use event::{Event, EventId, EventKind, GrantCause, InvalidEventId};
pub use explain::{Explanation, Standing};
pub use lease::{
    History, Lease, LeasePage, LeaseState, LostReason, Queue, Released, RenewResult, Renewed, Revoked, Waiter,
};
#[cfg(feature = "server")]
pub(crate) use object::Object;
pub use problem::{Code, Problem};
pub use request::{Acquire, HandOver, Release, Renew, RenewBatch, RenewItem, StateFilter, UpdateMetadata};
pub use timestamp::Timestamp;
pub use ttl::TtlMs;

/// Most leases of one batched renewal.
pub const MAX_RENEW_ITEMS: usize = 10_000;
/// Largest body of a request about many leases, in bytes. A batch of [`MAX_RENEW_ITEMS`] with ordinary names fits.
pub const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;
/// Largest body of a request about one lease, in bytes. The largest valid claim fits: its holder and metadata take
/// 4,296 bytes, and JSON may write each of them as an escape of 6.
pub const MAX_LEASE_BODY_BYTES: usize = 32 * 1024;
/// Most leases on one page of a list.
pub const MAX_PAGE: u32 = 1_000;
/// Leases on a page when the request does not say.
pub const DEFAULT_PAGE: u32 = 100;

/// Which node carried the request out, or else which one answered.
pub const NODE_HEADER: &str = "x-tenure-node";
/// The term in which the answer was made.
pub const TERM_HEADER: &str = "x-tenure-term";
/// The log index that the answer reflects.
pub const INDEX_HEADER: &str = "x-tenure-index";
/// On a stale read: milliseconds since the node last heard from the leader; absent if it never did.
pub const STALE_HEADER: &str = "x-tenure-stale-ms";
/// In a request, with any value: do not forward to the leader, answer 307 with its address.
pub const NO_FORWARD_HEADER: &str = "x-tenure-no-forward";
