//! A refused request has no effect. Every transition in the log needs a request that was done or may have been done.

use tenure::api::EventKind;

use super::bounds::Observed;
use super::claims::LeaseHistory;
use super::history::{Ended, Operation, RequestKind};
use super::transition::Transition;

pub fn check(history: &LeaseHistory) -> Result<(), String> {
    for transition in history.transitions {
        let is_ended_by_its_entry = is_ended_by_its_entry(history, transition);
        let explains = |operation: &Operation| {
            explains(history, operation, transition)
                || is_ended_by_its_entry
                    && is_answered_lost(operation, &transition.holder)
                    && operation.invoked <= transition.at
        };
        if !history.operations.iter().any(explains) {
            let last: Vec<_> = history.by(&transition.holder).rev().take(3).collect();
            return Err(format!("no request explains {transition:?}; the last requests of its holder are {last:?}"));
        }
    }
    Ok(())
}

/// Whether a request explains a transition.
fn explains(history: &LeaseHistory, operation: &Operation, transition: &Transition) -> bool {
    let may_be_done = may_be_done(history, operation, transition);
    let own = operation.by.as_str() == transition.holder;
    match (transition.event, &operation.what) {
        (EventKind::Expired, _) => true,
        (EventKind::Granted, RequestKind::Acquire { .. }) => own && may_be_done,
        (EventKind::Released, RequestKind::Release { token })
        | (EventKind::HandedOver, RequestKind::HandOver { token, .. }) => {
            own && *token == transition.token && may_be_done
        }
        (EventKind::Revoked, RequestKind::Revoke) => may_be_done,
        _ => false,
    }
}

/// Whether the request may have caused the transition. It began before the observer saw the transition.
fn may_be_done(history: &LeaseHistory, operation: &Operation, transition: &Transition) -> bool {
    let is_before_answer = match history.bounds.observed {
        Observed::AtApply => operation.returned.is_none_or(|returned| transition.at <= returned),
        // A waiting claim may be granted, revoked before its answer, and granted again. The answer contains the last
        // grant. No grant follows it.
        Observed::Later => {
            !(transition.is_grant() && matches!(operation.ended, Ended::Held(token, _) if token < transition.token))
        }
    };
    operation.invoked <= transition.at
        && match operation.ended {
            Ended::Unknown => true,
            Ended::Held(..) | Ended::Changed(true) => is_before_answer,
            _ => false,
        }
}

/// Whether the entry that granted the lease also ended it.
fn is_ended_by_its_entry(history: &LeaseHistory, grant: &Transition) -> bool {
    let ends = |seen: &Transition| !seen.is_grant() && seen.token == grant.token && seen.index == grant.index;
    grant.is_grant() && history.transitions.iter().any(ends)
}

/// Whether a waiting claim was answered with `lost`: it was granted, and the grant had ended.
fn is_answered_lost(operation: &Operation, holder: &str) -> bool {
    let is_lost = matches!(&operation.ended, Ended::Refused(code) if code == "lost");
    operation.by.as_str() == holder
        && matches!(operation.what, RequestKind::Acquire { wait_ms: Some(_), .. })
        && is_lost
}
