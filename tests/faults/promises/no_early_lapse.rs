//! No lease ends by time before the ttl that was acknowledged.
//!
//! A watcher hears of a lapse after it was committed, and the ttl of a request counts from later than when it was sent. So
//! a lapse that is heard of sooner than the ttl after that was early for certain.

use tenure::api::EventKind;

use super::super::history::Ended;
use super::Evidence;

/// The drift that the cluster is configured with.
const DRIFT: f64 = 0.01;

pub fn check(evidence: &Evidence) -> Result<(), String> {
    for lapse in evidence.log.iter().filter(|seen| seen.event.event == EventKind::Expired) {
        for operation in evidence.operations.iter().filter(|operation| operation.by.as_str() == lapse.event.holder) {
            let Ended::Held(token, Some(ttl_ms)) = operation.ended else { continue };
            let due = operation.invoked.as_secs_f64() + ttl_ms as f64 / 1000.0 * (1.0 - DRIFT);
            if token == lapse.event.token && lapse.at.as_secs_f64() < due {
                return Err(format!("{:?} at {:?}, and it was told {operation:?}", lapse.event, lapse.at));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::history::What;
    use super::super::evidence::{acquired, did, evidence, expired, granted, token};
    use super::*;

    #[test]
    fn a_lapse_before_the_acknowledged_ttl_is_caught() {
        let renewed = did("a", What::Renew { token: token(5) }, (600, 610), Ended::Held(token(5), Some(1000)));
        let asked = [acquired("a", (0, 10), 5), renewed];
        check(&evidence(&asked, &[granted(5, "a", 5), expired(1600, "a", 5, 9)])).expect("a second after the renewal");
        check(&evidence(&asked, &[granted(5, "a", 5), expired(1500, "a", 5, 9)])).expect_err("100 ms early");
    }
}
