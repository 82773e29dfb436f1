//! Retained bytes: the size of grants and waiters in the state, and its bounds.
//!
//! These numbers are frozen: apply reads them, so replicas of builds with different numbers diverge.

use crate::types::{HolderId, Metadata};

/// Most retained bytes of the holders and waiters of one name: 64 MiB. 10,000 holders with the largest metadata retain
/// 46 MiB. Above the bound the machine refuses an acquire with [`Refusal::LeaseFull`](super::Refusal::LeaseFull).
///
/// Ended grants of the name count too, but never cause a refusal: the machine forgets the oldest.
pub const MAX_RETAINED_NAME_BYTES: u64 = 64 << 20;

/// Most retained bytes of the ended grants of all names: 512 MiB. Above it the machine forgets the oldest.
pub const MAX_RETAINED_ENDED_BYTES: u64 = 512 << 20;

/// Retained bytes of a grant or waiter without its strings: an estimate for its numbers and its index entries.
const FIXED_BYTES: u64 = 512;

/// Retained bytes of a grant, a waiter or an ended grant.
pub(super) fn retained_bytes(holder: &HolderId, metadata: &Metadata) -> u64 {
    FIXED_BYTES + (holder.as_str().len() + metadata.bytes()) as u64
}
