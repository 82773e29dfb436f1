//! No grant follows an expiry or a revoke before the end of its lock delay, except a handover.
//!
//! The delay begins at the cluster time of the entry that ended the grant. The harness knows a time before that entry.
//! A claim is sent before its grant, a ttl ends before its expiry, and a revoke is sent before its effect. The harness
//! also knows a time after the next grant: the event of a watcher, or the answer to the holder. If less time than the
//! delay lies between the two, the grant came too early.

use std::time::Duration;

use tenure::api::{EventKind, GrantCause};

use super::super::history::{Ended, What};
use super::super::log::Seen;
use super::{DRIFT, Evidence, is_told};

pub fn check(evidence: &Evidence) -> Result<(), String> {
    for (place, ended) in evidence.log.iter().enumerate() {
        let Some((delay, _)) = evidence.lock_delays_behind(&ended.event) else { continue };
        let due = not_before(evidence, place) + delay.mul_f64(1.0 - DRIFT);
        for granted in evidence.log[place..].iter().filter(|seen| is_free_grant(seen)) {
            let by = known_by(evidence, granted);
            if by < due {
                let how = format!(
                    "{:?}, known at {by:?}; the lock delay of {delay:?} after {:?} ends at {due:?} or later",
                    granted.event, ended.event
                );
                return Err(how);
            }
        }
    }
    Ok(())
}

/// The number of lock delays with a later grant. [`check`] has checked them.
pub fn judged(evidence: &Evidence) -> u64 {
    let is_judged = |place: usize| {
        evidence.lock_delays_behind(&evidence.log[place].event).is_some()
            && evidence.log[place..].iter().any(is_free_grant)
    };
    (0..evidence.log.len()).filter(|place| is_judged(*place)).count() as u64
}

/// Whether the grant must wait for the end of a lock delay.
fn is_free_grant(seen: &Seen) -> bool {
    seen.event.event == EventKind::Granted && seen.event.cause != Some(GrantCause::HandOver)
}

/// The transition at this position did not happen before this time.
fn not_before(evidence: &Evidence, place: usize) -> Duration {
    let ended = &evidence.log[place];
    let earlier = evidence.log[..place].iter().filter_map(|seen| evidence.first_claim(&seen.event.holder));
    let own = match ended.event.event {
        EventKind::Expired => ttl_over(evidence, ended),
        _ => revoke_sent(evidence, ended),
    };
    earlier.chain(own).max().unwrap_or_default()
}

/// The earliest possible end of the ttl: by the claims of the holder, and by each answer to it.
fn ttl_over(evidence: &Evidence, expired: &Seen) -> Option<Duration> {
    let over = |from: Duration, ttl_ms: u64| from + Duration::from_millis(ttl_ms).mul_f64(1.0 - DRIFT);
    let asked = evidence.claims(&expired.event.holder).map(|(claim, ttl_ms, _)| Some(over(claim.invoked, ttl_ms?)));
    let answered = evidence.operations.iter().filter(|operation| is_told(operation, &expired.event));
    let answered = answered.filter_map(|operation| match operation.ended {
        Ended::Held(_, Some(left)) => Some(over(operation.invoked, left)),
        _ => None,
    });
    asked.min().flatten().into_iter().chain(answered).max()
}

/// When the first revoke that may have ended this grant was sent.
fn revoke_sent(evidence: &Evidence, revoked: &Seen) -> Option<Duration> {
    let revokes = evidence.operations.iter().filter(|operation| operation.what == What::Revoke);
    let may_be = revokes.filter(|operation| matches!(operation.ended, Ended::Unknown | Ended::Changed(true)));
    let after_grant = evidence.first_claim(&revoked.event.holder).unwrap_or_default();
    may_be.map(|operation| operation.invoked.max(after_grant)).filter(|sent| *sent <= revoked.at).min()
}

/// The grant happened before this time.
fn known_by(evidence: &Evidence, granted: &Seen) -> Duration {
    let answered = evidence.operations.iter().filter(|operation| is_told(operation, &granted.event));
    answered
        .filter_map(|operation| operation.returned)
        .chain([granted.at])
        .min()
        .expect("the log has the time of the event")
}

#[cfg(test)]
mod tests {
    use super::super::super::history::Operation;
    use super::super::evidence::{did, evidence, expired, from_queue, granted, handed_over, released, revoked, token};
    use super::*;

    fn claimed(by: &str, times: (u64, u64), index: u64, ttl_ms: Option<u64>) -> Operation {
        let what = What::Acquire { ttl_ms, limit: 1, wait: false, lock_delay_ms: 500 };
        did(by, what, times, Ended::Held(token(index), ttl_ms))
    }

    #[test]
    fn grant_inside_the_delay_of_an_expiry_is_caught() {
        let asked = [claimed("a", (0, 10), 5, Some(1_000))];
        let log = |at| [granted(5, "a", 5), expired(1_005, "a", 5, 8), granted(at, "b", 9)];
        check(&evidence(&asked, &log(1_500))).expect("500 ms after the end of the ttl");
        check(&evidence(&asked, &log(1_480))).expect_err("15 ms early, the drift taken off");
        check(&evidence(&asked, &[log(0)[0].clone(), log(0)[1].clone(), from_queue(1_480, "b", 9)]))
            .expect_err("the delay applies to waiters, too");
        assert_eq!((judged(&evidence(&asked, &log(1_500))), judged(&evidence(&asked, &log(0)[..2]))), (1, 0));
    }

    #[test]
    fn grant_answered_inside_the_delay_is_caught() {
        let asked = [claimed("a", (0, 10), 5, Some(1_000)), claimed("b", (1_400, 1_450), 9, Some(1_000))];
        let log = [granted(5, "a", 5), expired(1_005, "a", 5, 8), granted(1_700, "b", 9)];
        check(&evidence(&asked[..1], &log)).expect("the watchers saw it after the delay");
        check(&evidence(&asked, &log)).expect_err("the answer to its holder came 50 ms before the end of the delay");
    }

    #[test]
    fn renewed_ttl_moves_the_delay() {
        let renewal = did("a", What::Renew { token: token(5) }, (600, 610), Ended::Held(token(5), Some(1_000)));
        let asked = [claimed("a", (0, 10), 5, Some(1_000)), renewal];
        let log = |at| [granted(5, "a", 5), expired(1_610, "a", 5, 8), granted(at, "b", 9)];
        check(&evidence(&asked, &log(2_100))).expect("500 ms after the renewed ttl");
        check(&evidence(&asked, &log(2_060))).expect_err("25 ms early");
    }

    #[test]
    fn grant_inside_the_delay_of_a_revoke_is_caught() {
        let revoke = |sent, ended| did("x", What::Revoke, (sent, sent + 10), ended);
        let log = |at| [granted(5, "a", 5), revoked(2_005, "a", 5, 8), granted(at, "b", 9)];
        let asked = [claimed("a", (0, 10), 5, None), revoke(2_000, Ended::Changed(true))];
        check(&evidence(&asked, &log(2_500))).expect("500 ms after the revoke");
        check(&evidence(&asked, &log(2_490))).expect_err("5 ms early, the drift taken off");
        let early = [asked[0].clone(), revoke(1_000, Ended::Unknown), asked[1].clone()];
        check(&evidence(&early, &log(2_490))).expect("the revoke of unknown outcome may have ended the grant earlier");
        let refused = [asked[0].clone(), revoke(1_000, Ended::Changed(false)), asked[1].clone()];
        check(&evidence(&refused, &log(2_490))).expect_err("the first revoke found nothing");
    }

    #[test]
    fn handover_may_come_inside_the_delay() {
        let asked = [claimed("a", (0, 10), 5, Some(1_000))];
        let log = |cause| {
            let mut to_c = granted(1_101, "c", 9);
            to_c.event.cause = Some(cause);
            [granted(5, "a", 5), granted(6, "b", 6), expired(1_005, "a", 5, 8), handed_over(1_100, "b", 6, 9), to_c]
        };
        check(&evidence(&asked, &log(GrantCause::HandOver))).expect("the holder chose the waiter");
        check(&evidence(&asked, &log(GrantCause::Queue))).expect_err("the delay applies to the queue");
    }

    #[test]
    fn release_has_no_delay() {
        let asked = [claimed("a", (0, 10), 5, Some(1_000))];
        let log = [granted(5, "a", 5), released(500, "a", 5, 8), granted(501, "b", 9)];
        check(&evidence(&asked, &log)).expect("a release has no lock delay");
        assert_eq!(judged(&evidence(&asked, &log)), 0);
    }
}
