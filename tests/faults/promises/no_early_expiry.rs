//! No lease expires before its acknowledged ttl. An infinite lease never expires.
//!
//! A watcher receives an expiry after its commit, and the ttl begins after the request was sent. So an expiry is
//! certainly early if its event comes before the request time plus the ttl.

use tenure::api::EventKind;

use super::super::history::{Ended, What};
use super::{DRIFT, Evidence};

pub fn check(evidence: &Evidence) -> Result<(), String> {
    answers_match_claims(evidence)?;
    for expiry in evidence.log.iter().filter(|seen| seen.event.event == EventKind::Expired) {
        if evidence.is_infinite(&expiry.event.holder) {
            return Err(format!("{:?}, but its holder claimed an infinite ttl", expiry.event));
        }
        for operation in evidence.operations.iter().filter(|operation| operation.by.as_str() == expiry.event.holder) {
            let Ended::Held(token, Some(ttl_ms)) = operation.ended else { continue };
            let due = operation.invoked.as_secs_f64() + ttl_ms as f64 / 1000.0 * (1.0 - DRIFT);
            if token == expiry.event.token && expiry.at.as_secs_f64() < due {
                return Err(format!(
                    "{:?} at {:?}, but the answer to its holder was {operation:?}",
                    expiry.event, expiry.at
                ));
            }
        }
    }
    Ok(())
}

/// The answer to an infinite claim has no expiry, and the answer to a finite claim has one.
fn answers_match_claims(evidence: &Evidence) -> Result<(), String> {
    for operation in evidence.operations {
        let Ended::Held(_, left) = operation.ended else { continue };
        let (by, is_handover) = (operation.by.as_str(), matches!(operation.what, What::HandOver { .. }));
        // The answer to a handover contains the lease of the waiter.
        if !is_handover && evidence.first_claim(by).is_some() && left.is_none() != evidence.is_infinite(by) {
            return Err(format!("{operation:?} has another kind of ttl than the claims of its holder"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{acquired, did, evidence, expired, granted, token};
    use super::*;

    #[test]
    fn expiry_before_the_acknowledged_ttl_is_caught() {
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
        check(&evidence(&claimed(Ended::Held(token(5), None)), &log[..1])).expect("the lease is still held");
        check(&evidence(&claimed(Ended::Held(token(5), None)), &log)).expect_err("it expired");
        check(&evidence(&claimed(Ended::Unknown), &log)).expect_err("it expired without an answer to its holder");
        check(&evidence(&claimed(Ended::Held(token(5), Some(9))), &log[..1])).expect_err("the answer has a finite ttl");
    }

    #[test]
    fn infinite_answer_to_a_finite_claim_is_caught() {
        let renewal = did("a", What::Renew { token: token(5) }, (20, 30), Ended::Held(token(5), None));
        let asked = [acquired("a", (0, 10), 5), renewal];
        check(&evidence(&asked[..1], &[granted(5, "a", 5)])).expect("the answer has the claimed ttl");
        check(&evidence(&asked, &[granted(5, "a", 5)])).expect_err("the renewal made it infinite");
    }
}
