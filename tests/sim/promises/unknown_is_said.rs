//! A refused request has no effect. Each change in the log has a request that succeeded or has an unknown outcome.

use std::time::Duration;

use tenure::lease::{Change, Transition};
use tenure::types::HolderId;

use crate::history::{Ended, Operation, What};
use crate::run::Evidence;

pub fn check(run: &Evidence) -> Result<(), String> {
    for (entry, transition) in run.ledger.transitions() {
        // If one entry grants and ends a lease, the answer to the waiting claim is `lost`.
        let ended_at_once = entry.transitions.iter().any(|end| {
            matches!(transition.change, Change::Granted(_))
                && end.token == transition.token
                && end.part > transition.part
        });
        let explains = |operation: &Operation| {
            operation.name == transition.name
                && (explains(operation, transition, entry.at)
                    || ended_at_once && says_lost(operation, &transition.holder) && operation.invoked <= entry.at)
        };
        if !run.history.operations.iter().any(explains) {
            let index = entry.index;
            let earlier = run.history.operations.iter().filter(|operation| {
                operation.name == transition.name && operation.by == transition.holder && operation.invoked <= entry.at
            });
            let last: Vec<_> = earlier.rev().take(3).collect();
            return Err(format!("no request explains {transition:?} at {index}, {:?}: {last:?}", entry.at));
        }
    }
    Ok(())
}

fn explains(operation: &Operation, transition: &Transition, at: Duration) -> bool {
    let (is_done, own) = (may_be_applied(operation, at), operation.by == transition.holder);
    match (&transition.change, &operation.what) {
        (Change::Granted(_), What::Acquire { .. }) => own && is_done,
        (Change::Released, What::Release { token }) => own && *token == transition.token && is_done,
        (Change::HandedOver { .. }, What::HandOver { token }) => own && *token == transition.token && is_done,
        (Change::Revoked { .. }, What::Revoke) => is_done,
        (Change::Expired, _) => true,
        _ => false,
    }
}

fn says_lost(operation: &Operation, holder: &HolderId) -> bool {
    let is_lost = matches!(&operation.ended, Ended::Refused(code) if code == "lost");
    operation.by == *holder && matches!(operation.what, What::Acquire { wait: true, .. }) && is_lost
}

/// Whether a request may have been applied at this time.
fn may_be_applied(operation: &Operation, at: Duration) -> bool {
    let begun = operation.invoked <= at;
    match operation.ended {
        Ended::Unknown => begun,
        Ended::Held(..) | Ended::Changed(true) => begun && operation.returned.is_none_or(|returned| at <= returned),
        _ => false,
    }
}
