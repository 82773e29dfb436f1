//! The record of a grant, as the lease service shows it.

use serde::Serialize;

use super::names;
use crate::api::Timestamp;
use crate::lease::{Change, HolderLease, LeaseState, Transition};

/// Bits of the id for the position within a log entry. The log index has the 48 bits above them.
///
/// An entry has at most 1,024 commands, but any number of leases can expire in it before the first command.
const PART_BITS: u32 = 13;
const MAX_PART: u32 = (1 << PART_BITS) - 1;

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct ResourceRecord {
    pub id: u64,
    resource: String,
    holder: String,
    created_at: Timestamp,
    renewed_at: Option<Timestamp>,
    released_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

impl ResourceRecord {
    /// `transitions` are those of the lease's name. They can be newer than `lease`.
    pub fn of(lease: &HolderLease, transitions: &[Transition]) -> ResourceRecord {
        let own = |transition: &&Transition| transition.token == lease.token && transition.holder == lease.holder;
        let is_grant = |transition: &Transition| matches!(transition.change, Change::Granted(_));
        let own = || transitions.iter().filter(own);
        let granted = own().find(|transition| is_grant(transition));
        let ended = own().find(|transition| !is_grant(transition));
        let ended_at = ended.map(|ended| Timestamp::from_millis(ended.wall_ms));
        let has_expired = match ended {
            Some(ended) => ended.change == Change::Expired,
            None => lease.state == LeaseState::Expired,
        };
        let ttl: Option<u64> = lease.ttl.into();
        let deadline = ttl.map(|ttl| Timestamp::from_millis(lease.renewed_wall_ms.saturating_add(ttl)));
        ResourceRecord {
            id: id(lease.token.index, granted.map_or(0, |granted| granted.part)),
            resource: names::resource(lease),
            holder: lease.holder.to_string(),
            created_at: Timestamp::from_millis(lease.granted_wall_ms),
            renewed_at: (lease.renewals > 0).then(|| Timestamp::from_millis(lease.renewed_wall_ms)),
            released_at: ended_at.filter(|_| !has_expired),
            expires_at: ended_at.or(deadline),
        }
    }
}

/// The id of the grant at this position. It rises with the log. Up to index 2^40 it is exact as a double.
fn id(index: u64, part: u32) -> u64 {
    (index << PART_BITS) | u64::from(part.min(MAX_PART))
}

/// Whether no later grant of the name is known.
pub(super) fn is_last(lease: &HolderLease, transitions: &[Transition]) -> bool {
    transitions.iter().all(|transition| transition.token <= lease.token)
}

/// Whether the grant of the lease can have this id.
pub(super) fn may_have(lease: &HolderLease, id: u64) -> bool {
    lease.token.index == id >> PART_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_rises_with_the_position_and_is_exact() {
        let ids = [id(1, 0), id(1, 1), id(1, u32::MAX), id(2, 0), id((1 << 40) - 1, 7)];
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
        assert_eq!(id(5, 3), 5 * 8192 + 3);
        assert!(ids.iter().all(|id| *id as f64 as u64 == *id));
    }

    #[test]
    fn ids_of_a_restored_cluster_rise() {
        // A restore in the year 2026 begins at this index.
        let index = 1_790_000_000_000 << 6;
        let ids = [id((1 << 40) - 1, 0), id(index, 0), id(index, 1), id(index + 1, 0), id((1 << 48) - 1, 0)];
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    }
}
