//! No lease expires before its acknowledged ttl. No request and no new leader moves a deadline to an earlier time. An
//! infinite lease never expires.

use std::time::Duration;

use tenure::lease::{self, Change};
use tenure::types::ClusterMs;

use super::claims::LeaseHistory;
use super::history::{Ended, RequestKind};
use super::replay::HeldGrant;

/// Applied entries: the end of this grant at `now`.
pub fn check_end(ended: &lease::Transition, held: &HeldGrant, now: ClusterMs) -> Result<(), String> {
    if ended.change == Change::Expired && held.until.is_none_or(|until| until >= now) {
        return Err(format!("{ended:?}, acknowledged until {:?}", held.until));
    }
    Ok(())
}

/// Applied entries: a replica has the deadline that the answers acknowledged.
pub fn check_deadline(lease: &lease::HolderLease, held: &HeldGrant) -> Result<(), String> {
    if lease.deadline != held.until {
        return Err(format!("{lease:?}, acknowledged until {:?}", held.until));
    }
    Ok(())
}

/// Client histories. The observer sees an expiry when it is committed or later, and the ttl begins after the request
/// was sent. So an expiry is certainly early if it is seen before the request time plus the ttl.
pub fn check(history: &LeaseHistory) -> Result<(), String> {
    answers_match_claims(history)?;
    for expiry in history.expiries() {
        if history.is_infinite(&expiry.holder) {
            return Err(format!("{expiry:?}, but its holder claimed an infinite ttl"));
        }
        for operation in history.operations.iter().filter(|_| history.bounds.inside_drift) {
            let Ended::Held(token, Some(ttl_ms)) = operation.ended else { continue };
            let due = operation.invoked + history.bounds.shortest(Duration::from_millis(ttl_ms));
            if token == expiry.token && expiry.at + history.bounds.rounding < due {
                return Err(format!("{expiry:?}, but the answer to its holder was {operation:?}"));
            }
        }
    }
    Ok(())
}

/// The answer to an infinite claim has no expiry, and the answer to a finite claim has one.
fn answers_match_claims(history: &LeaseHistory) -> Result<(), String> {
    for operation in history.operations {
        let Ended::Held(_, left) = operation.ended else { continue };
        let (by, is_handover) = (operation.by.as_str(), matches!(operation.what, RequestKind::HandOver { .. }));
        // The answer to a handover contains the lease of the waiter.
        if !is_handover && history.first_claim(by).is_some() && left.is_none() != history.is_infinite(by) {
            return Err(format!("{operation:?} has another kind of ttl than the claims of its holder"));
        }
    }
    Ok(())
}
