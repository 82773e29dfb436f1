//! What was refused did not happen: every grant and every release in the log is explained by a request that was done or
//! may have been.

use std::time::Duration;

use tenure::lease::{Change, Transition};
use tenure::types::HolderId;

use crate::history::{Ended, Operation, What};
use crate::run::Evidence;

pub fn check(run: &Evidence) -> Result<(), String> {
    for (entry, transition) in run.ledger.transitions() {
        // The entry that granted the lease ended it, too: a claim that waited is told that it was lost.
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
            let asked = run.history.operations.iter().filter(|asked| {
                asked.name == transition.name && asked.by == transition.holder && asked.invoked <= entry.at
            });
            let last: Vec<_> = asked.rev().take(3).collect();
            return Err(format!("nobody asked for {transition:?} at {index}, {:?}: {last:?}", entry.at));
        }
    }
    Ok(())
}

fn explains(operation: &Operation, transition: &Transition, at: Duration) -> bool {
    let (is_done, own) = (done(operation, at), operation.by == transition.holder);
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

/// Whether a request may have been carried out at this time.
fn done(operation: &Operation, at: Duration) -> bool {
    let begun = operation.invoked <= at;
    match operation.ended {
        Ended::Unknown => begun,
        Ended::Held(..) | Ended::Changed(true) => begun && operation.returned.is_none_or(|returned| at <= returned),
        _ => false,
    }
}
