//! The log contains every acknowledged operation.

use tenure::api::EventKind;
use tenure::token::FencingToken;

use super::super::history::{Ended, What};
use super::Evidence;

pub fn check(evidence: &Evidence) -> Result<(), String> {
    let is_there = |by: &str, token: FencingToken, kind: EventKind| {
        let is_it =
            |seen: &super::Seen| seen.event.token == token && seen.event.event == kind && seen.event.holder == by;
        evidence.log.iter().any(is_it)
    };
    for operation in evidence.operations {
        let by = operation.by.as_str();
        let survives = match (&operation.what, &operation.ended) {
            (What::Acquire { .. } | What::Renew { .. }, Ended::Held(token, _)) => {
                is_there(by, *token, EventKind::Granted)
            }
            (What::Release { token }, Ended::Changed(true)) => is_there(by, *token, EventKind::Released),
            (What::HandOver { token }, Ended::Held(..)) => is_there(by, *token, EventKind::HandedOver),
            (What::Revoke, Ended::Changed(true)) => {
                // A watcher receives the event after the request was sent.
                let revoked =
                    |seen: &super::Seen| seen.event.event == EventKind::Revoked && seen.at >= operation.invoked;
                evidence.log.iter().any(revoked)
            }
            _ => true,
        };
        if !survives {
            return Err(format!("{operation:?} was acknowledged, but the log does not contain it"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{acquired, did, evidence, granted, released, token};
    use super::*;

    #[test]
    fn lost_acknowledged_operation_is_caught() {
        let release = did("a", What::Release { token: token(5) }, (10, 11), Ended::Changed(true));
        let asked = [acquired("a", (0, 1), 5), release];
        check(&evidence(&asked, &[granted(1, "a", 5), released(11, "a", 5, 6)])).expect("the log has both");
        check(&evidence(&asked, &[granted(1, "a", 5)])).expect_err("the release is lost");
        check(&evidence(&asked[..1], &[])).expect_err("the grant is lost");
        check(&evidence(&asked[..1], &[granted(1, "b", 5)])).expect_err("the grant has another holder");
        let revoke = [did("x", What::Revoke, (10, 11), Ended::Changed(true))];
        check(&evidence(&revoke, &[granted(1, "a", 5)])).expect_err("the revoke is lost");
    }
}
