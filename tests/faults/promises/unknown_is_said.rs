//! A refused request has no effect. Every transition in the log needs a request that was done or may have been done.

use std::time::Duration;

use tenure::api::{Event, EventKind};

use super::super::history::{Ended, Operation, What};
use super::Evidence;

pub fn check(evidence: &Evidence) -> Result<(), String> {
    for seen in evidence.log {
        let is_ended_by_its_entry = is_ended_by_its_entry(evidence, &seen.event);
        let explains = |operation: &Operation| {
            explains(operation, &seen.event, seen.at)
                || is_ended_by_its_entry
                    && is_answered_lost(operation, &seen.event.holder)
                    && operation.invoked <= seen.at
        };
        if !evidence.operations.iter().any(explains) {
            let own = evidence.operations.iter().filter(|asked| asked.by.as_str() == seen.event.holder);
            let last: Vec<_> = own.rev().take(3).collect();
            return Err(format!(
                "no request explains {:?}, seen at {:?}; the last requests of its holder are {last:?}",
                seen.event, seen.at
            ));
        }
    }
    Ok(())
}

/// Whether a request explains a transition. A watcher receives a transition after its commit, so the request began
/// earlier.
fn explains(operation: &Operation, event: &Event, at: Duration) -> bool {
    let may_be_done =
        operation.invoked <= at && matches!(operation.ended, Ended::Unknown | Ended::Held(..) | Ended::Changed(true));
    let own = operation.by.as_str() == event.holder;
    match (event.event, &operation.what) {
        (EventKind::Expired, _) => true,
        (EventKind::Granted, What::Acquire { .. }) => {
            // A waiting claim may be granted, revoked before its answer, and granted again. The answer contains the
            // last grant. No grant follows it.
            own && may_be_done && !matches!(operation.ended, Ended::Held(token, _) if token < event.token)
        }
        (EventKind::Released, What::Release { token }) | (EventKind::HandedOver, What::HandOver { token }) => {
            own && *token == event.token && may_be_done
        }
        (EventKind::Revoked, What::Revoke) => may_be_done,
        _ => false,
    }
}

/// Whether the entry that granted the lease also ended it.
fn is_ended_by_its_entry(evidence: &Evidence, grant: &Event) -> bool {
    let ends = |event: &Event| event.event != EventKind::Granted && event.token == grant.token;
    evidence.log.iter().any(|seen| ends(&seen.event) && seen.event.index == grant.index)
}

/// Whether a waiting claim was answered with `lost`: it was granted, and the grant had ended.
fn is_answered_lost(operation: &Operation, holder: &str) -> bool {
    let is_lost = matches!(&operation.ended, Ended::Refused(code) if code == "lost");
    operation.by.as_str() == holder && matches!(operation.what, What::Acquire { wait: true, .. }) && is_lost
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{acquire, acquired, did, evidence, expired, granted, released, token};
    use super::*;

    #[test]
    fn effect_of_a_refused_request_is_caught() {
        let log = [granted(5, "a", 5)];
        let ended = |ended| [did("a", acquire(), (0, 10), ended)];
        check(&evidence(&[acquired("a", (0, 10), 5)], &log)).expect("the answer has the grant");
        check(&evidence(&ended(Ended::Unknown), &log)).expect("the claim may have been applied");
        check(&evidence(&ended(Ended::Refused("held".into())), &log)).expect_err("the claim was refused");
        check(&evidence(&[acquired("a", (0, 10), 6)], &log)).expect("the answer has a later grant");
        check(&evidence(&[acquired("a", (0, 10), 4)], &log)).expect_err("the answer has an earlier grant");
        check(&evidence(&[acquired("a", (6, 10), 5)], &log)).expect_err("the event came before the request");
        check(&evidence(&[], &log)).expect_err("no request");
        let waits = What::Acquire { ttl_ms: Some(1000), limit: 1, wait: true, lock_delay_ms: 0 };
        let lost = [did("a", waits, (0, 10), Ended::Refused("lost".into()))];
        check(&evidence(&lost, &log)).expect_err("the answer says lost, but the grant has not ended");
        check(&evidence(&lost, &[granted(5, "a", 5), expired(5, "a", 5, 5)]))
            .expect("the entry that granted the lease ended it");
        check(&evidence(&lost, &[granted(5, "a", 5), expired(8, "a", 5, 6)]))
            .expect_err("a later entry ended the grant");
        let release = did("a", What::Release { token: token(5) }, (6, 7), Ended::Changed(false));
        let asked = [acquired("a", (0, 1), 5), release];
        check(&evidence(&asked, &[granted(5, "a", 5), released(7, "a", 5, 6)]))
            .expect_err("the answer says that nothing was released");
    }
}
