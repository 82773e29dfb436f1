//! No grant follows an expiry or a revoke before the end of its lock delay, except a handover.

use std::time::Duration;

use tenure::api::{EventKind, GrantCause as ApiCause};
use tenure::lease::{self, GrantCause};
use tenure::types::ClusterMs;

use super::claims::{LeaseHistory, is_told};
use super::history::{Ended, RequestKind};
use super::replay::ObservedName;
use super::transition::Transition;

/// Applied entries: a grant at `now`.
pub fn check_grant(
    grant: &lease::Transition,
    cause: GrantCause,
    observed: &ObservedName,
    now: ClusterMs,
) -> Result<(), String> {
    if now < observed.not_before && cause != GrantCause::HandOver {
        return Err(format!("{grant:?} before {}", observed.not_before));
    }
    Ok(())
}

/// Client histories.
///
/// The delay begins at the cluster time of the entry that ended the grant. The harness knows a time before that entry.
/// A claim is sent before its grant, a ttl ends before its expiry, and a revoke is sent before its effect. The harness
/// also knows a time after the next grant: the event of a watcher, or the answer to the holder. If less time than the
/// delay lies between the two, the grant came too early.
pub fn check(history: &LeaseHistory) -> Result<(), String> {
    if !history.bounds.inside_drift {
        return Ok(());
    }
    for (place, ended) in history.transitions.iter().enumerate() {
        let Some((delay, _)) = history.lock_delays_behind(ended) else { continue };
        let due = not_before(history, place) + history.bounds.shortest(delay);
        for granted in history.transitions[place..].iter().filter(|seen| is_free_grant(seen)) {
            let by = known_by(history, granted);
            if by + history.bounds.rounding < due {
                return Err(format!(
                    "{granted:?}, known at {by:?}; the lock delay of {delay:?} after {ended:?} ends at {due:?} or later"
                ));
            }
        }
    }
    Ok(())
}

/// The number of lock delays with a later grant. [`check`] has checked them.
pub fn judged(history: &LeaseHistory) -> u64 {
    let is_judged = |place: usize| {
        history.lock_delays_behind(&history.transitions[place]).is_some()
            && history.transitions[place..].iter().any(is_free_grant)
    };
    (0..history.transitions.len()).filter(|place| is_judged(*place)).count() as u64
}

/// Whether the grant must wait for the end of a lock delay.
fn is_free_grant(seen: &Transition) -> bool {
    seen.is_grant() && seen.cause != Some(ApiCause::HandOver)
}

/// The transition at this position did not happen before this time.
fn not_before(history: &LeaseHistory, place: usize) -> Duration {
    let ended = &history.transitions[place];
    let earlier = history.transitions[..place].iter().filter_map(|seen| history.first_claim(&seen.holder));
    let own = match ended.event {
        EventKind::Expired => ttl_over(history, ended),
        _ => revoke_sent(history, ended),
    };
    earlier.chain(own).max().unwrap_or_default()
}

/// The earliest possible end of the ttl: by the claims of the holder, and by each answer to it.
fn ttl_over(history: &LeaseHistory, expired: &Transition) -> Option<Duration> {
    let over = |from: Duration, ttl_ms: u64| from + history.bounds.shortest(Duration::from_millis(ttl_ms));
    let asked = history.claims(&expired.holder).map(|(claim, ttl_ms, _)| Some(over(claim.invoked, ttl_ms?)));
    let answered = history.operations.iter().filter(|operation| is_told(operation, expired));
    let answered = answered.filter_map(|operation| match operation.ended {
        Ended::Held(_, Some(left)) => Some(over(operation.invoked, left)),
        _ => None,
    });
    asked.min().flatten().into_iter().chain(answered).max()
}

/// When the first revoke that may have ended this grant was sent.
fn revoke_sent(history: &LeaseHistory, revoked: &Transition) -> Option<Duration> {
    let revokes = history.operations.iter().filter(|operation| operation.what == RequestKind::Revoke);
    let may_be = revokes.filter(|operation| matches!(operation.ended, Ended::Unknown | Ended::Changed(true)));
    let after_grant = history.first_claim(&revoked.holder).unwrap_or_default();
    may_be.map(|operation| operation.invoked.max(after_grant)).filter(|sent| *sent <= revoked.at).min()
}

/// The grant happened before this time.
fn known_by(history: &LeaseHistory, granted: &Transition) -> Duration {
    let answered = history.operations.iter().filter(|operation| is_told(operation, granted));
    answered.filter_map(|operation| operation.returned).fold(granted.at, Duration::min)
}
