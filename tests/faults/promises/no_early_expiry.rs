//! No lease ends by time before the ttl that was acknowledged. An infinite lease never ends by time.
//!
//! A watcher hears of an expiry after it was committed, and the ttl of a request counts from later than when it was sent. So
//! an expiry that is heard of sooner than the ttl after that was early for certain.

use tenure::api::EventKind;

use super::super::history::{Ended, What};
use super::{DRIFT, Evidence};

pub fn check(evidence: &Evidence) -> Result<(), String> {
    told_as_asked(evidence)?;
    for expiry in evidence.log.iter().filter(|seen| seen.event.event == EventKind::Expired) {
        if evidence.is_infinite(&expiry.event.holder) {
            return Err(format!("{:?}, and its holder asked for an infinite ttl", expiry.event));
        }
        for operation in evidence.operations.iter().filter(|operation| operation.by.as_str() == expiry.event.holder) {
            let Ended::Held(token, Some(ttl_ms)) = operation.ended else { continue };
            let due = operation.invoked.as_secs_f64() + ttl_ms as f64 / 1000.0 * (1.0 - DRIFT);
            if token == expiry.event.token && expiry.at.as_secs_f64() < due {
                return Err(format!("{:?} at {:?}, and it was told {operation:?}", expiry.event, expiry.at));
            }
        }
    }
    Ok(())
}

/// The holder of an infinite lease is told of no end, and the holder of a finite one is told when it ends.
fn told_as_asked(evidence: &Evidence) -> Result<(), String> {
    for operation in evidence.operations {
        let Ended::Held(_, left) = operation.ended else { continue };
        let (by, is_handover) = (operation.by.as_str(), matches!(operation.what, What::HandOver { .. }));
        // A handover is answered with the lease of the waiter.
        if !is_handover && evidence.first_claim(by).is_some() && left.is_none() != evidence.is_infinite(by) {
            return Err(format!("{operation:?} tells another kind of ttl than its holder asked for"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{acquired, did, evidence, expired, granted, token};
    use super::*;

    #[test]
    fn an_expiry_before_the_acknowledged_ttl_is_caught() {
        let renewed = did("a", What::Renew { token: token(5) }, (600, 610), Ended::Held(token(5), Some(1000)));
        let asked = [acquired("a", (0, 10), 5), renewed];
        check(&evidence(&asked, &[granted(5, "a", 5), expired(1600, "a", 5, 9)])).expect("a second after the renewal");
        check(&evidence(&asked, &[granted(5, "a", 5), expired(1500, "a", 5, 9)])).expect_err("100 ms early");
    }

    #[test]
    fn expiry_of_an_infinite_lease_is_caught() {
        let claim = What::Acquire { ttl_ms: None, limit: 1, wait: false, lock_delay_ms: 0 };
        let claimed = |ended| [did("a", claim.clone(), (0, 10), ended)];
        let log = [granted(5, "a", 5), expired(90_000, "a", 5, 9)];
        check(&evidence(&claimed(Ended::Held(token(5), None)), &log[..1])).expect("it is held on");
        check(&evidence(&claimed(Ended::Held(token(5), None)), &log)).expect_err("it expired");
        check(&evidence(&claimed(Ended::Unknown), &log)).expect_err("it expired, and its holder was never told of it");
        check(&evidence(&claimed(Ended::Held(token(5), Some(9))), &log[..1])).expect_err("a finite ttl was told");
    }

    #[test]
    fn finite_claim_that_is_told_an_infinite_ttl_is_caught() {
        let renewal = did("a", What::Renew { token: token(5) }, (20, 30), Ended::Held(token(5), None));
        let asked = [acquired("a", (0, 10), 5), renewal];
        check(&evidence(&asked[..1], &[granted(5, "a", 5)])).expect("as it was asked for");
        check(&evidence(&asked, &[granted(5, "a", 5)])).expect_err("the renewal made it infinite");
    }
}
