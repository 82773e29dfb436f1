//! How many bytes the state keeps, and how many it may.
//!
//! Apply decides by these numbers, so they are frozen: replicas of builds with different ones diverge.

use crate::types::{HolderId, Metadata};

/// Most bytes that the holders and waiters of one name keep together. 10,000 holders with the largest metadata keep
/// 46 MiB. Above it an acquire is refused with [`Refusal::LeaseFull`](super::Refusal::LeaseFull).
///
/// Ended grants of the name count, too, and never cause a refusal: the oldest are forgotten.
pub const MAX_NAME_BYTES_KEPT: u64 = 64 << 20;

/// Most bytes that the ended grants of all names keep together. Above it the oldest are forgotten.
pub const MAX_ENDED_BYTES_KEPT: u64 = 512 << 20;

/// Timer a grant, a waiter or an ended grant counts beside its texts: its numbers, and its places in the indexes.
const FIXED_BYTES: u64 = 512;

/// Timer a grant, a waiter or an ended grant counts.
pub(super) fn retained_bytes(holder: &HolderId, metadata: &Metadata) -> u64 {
    FIXED_BYTES + (holder.as_str().len() + metadata.bytes()) as u64
}
