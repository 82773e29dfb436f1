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
        // A renewal with a shorter ttl leaves the deadline and the ttl as they were.
        let rest = |ttl: u64| lease.deadline.map_or(ttl, |at| at.saturating_sub(lease.renewed_at).min(ttl));
        let deadline = ttl.map(|ttl| Timestamp::from_millis(lease.renewed_wall_ms.saturating_add(rest(ttl))));
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

/// The transitions up to this log index, at which the lease was read. So a page has each of its resources once, even
/// if their holders change before their histories are read.
///
/// A history that has forgotten the grant may have forgotten other transitions up to the index, so it stays whole.
pub(super) fn up_to(index: u64, lease: &HolderLease, mut transitions: Vec<Transition>) -> Vec<Transition> {
    if transitions.iter().any(|transition| transition.index == lease.token.index) {
        transitions.retain(|transition| transition.index <= index);
    }
    transitions
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
pub(super) mod tests {
    use super::*;
    use crate::lease::GrantCause;
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, Metadata, Ttl};

    /// A held lease, granted at this log index.
    pub fn lease(index: u64) -> HolderLease {
        HolderLease {
            name: LeaseName::new("compat/job").expect("valid"),
            holder: HolderId::new("a").expect("valid"),
            token: FencingToken { term: 1, index },
            ttl: Ttl::millis(30_000).expect("valid"),
            deadline: Some(40_000),
            state: LeaseState::Active,
            granted_at: 10_000,
            granted_wall_ms: 1_000,
            renewed_at: 10_000,
            renewed_wall_ms: 1_000,
            renewals: 0,
            metadata: Metadata::default(),
            limit: 1,
            lock_delay_ms: 0,
            waiters: 0,
            metadata_version: 0,
        }
    }

    fn transition(index: u64, holder: &str, granted: u64, change: Change) -> Transition {
        Transition {
            index,
            part: 0,
            name: LeaseName::new("compat/job").expect("valid"),
            holder: HolderId::new(holder).expect("valid"),
            token: FencingToken { term: 1, index: granted },
            change,
            at: 10_000,
            wall_ms: index,
        }
    }

    /// The lease of `a` ends, and `b` gets it, between the read of the list and the read of the history.
    #[test]
    fn listed_lease_has_no_later_transition() {
        let lease = lease(5);
        let history = [
            transition(5, "a", 5, Change::Granted(GrantCause::Asked)),
            transition(7, "a", 5, Change::Released),
            transition(8, "b", 8, Change::Granted(GrantCause::Asked)),
        ];
        for (listed_at, last, released) in [(5, true, false), (6, true, false), (7, true, true), (8, false, true)] {
            let shown = up_to(listed_at, &lease, history.to_vec());
            let record = ResourceRecord::of(&lease, &shown);
            let found = (is_last(&lease, &shown), record.released_at.is_some());
            assert_eq!(found, (last, released), "listed at {listed_at}");
            assert_eq!(record.id, id(5, 0));
        }
        let forgotten = up_to(6, &lease, history[1..].to_vec());
        assert!(!is_last(&lease, &forgotten), "the history may have forgotten other grants");
    }

    /// The last renewal came 20 s after the grant, and asked for a ttl that ends before the deadline.
    #[test]
    fn renewed_lease_expires_no_later_than_its_deadline() {
        let renewed = HolderLease { renewed_at: 30_000, renewed_wall_ms: 21_000, renewals: 1, ..lease(5) };
        for lease in [lease(5), renewed] {
            let record = ResourceRecord::of(&lease, &[]);
            assert_eq!(record.expires_at, Some(Timestamp::from_millis(31_000)), "{lease:?}");
        }
    }

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
