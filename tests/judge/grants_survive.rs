//! The log contains every acknowledged operation. A hand-over makes the grant of its answer.

use tenure::api::{EventKind, GrantCause};
use tenure::token::FencingToken;
use tenure::types::HolderId;

use super::claims::LeaseHistory;
use super::history::{Ended, RequestKind};

pub fn check(history: &LeaseHistory) -> Result<(), String> {
    let is_there = |by: &str, token: FencingToken, event: EventKind| {
        history.transitions.iter().any(|seen| (seen.token, seen.event, seen.holder.as_str()) == (token, event, by))
    };
    for operation in history.operations {
        let by = operation.by.as_str();
        let survives = match (&operation.what, &operation.ended) {
            (RequestKind::Acquire { .. } | RequestKind::Renew { .. }, Ended::Held(token, _)) => {
                is_there(by, *token, EventKind::Granted)
            }
            (RequestKind::Release { token }, Ended::Changed(true)) => is_there(by, *token, EventKind::Released),
            (RequestKind::HandOver { token, to }, Ended::Held(new, _)) => {
                is_there(by, *token, EventKind::HandedOver) && is_handed_over(history, *token, to.as_ref(), *new)
            }
            // An answer without the new grant.
            (RequestKind::HandOver { token, .. }, Ended::Changed(true)) => is_there(by, *token, EventKind::HandedOver),
            (RequestKind::Revoke, Ended::Changed(true)) => {
                // The observer sees the revoke after the request was sent.
                let revokes = history.transitions.iter().filter(|seen| seen.event == EventKind::Revoked);
                revokes.map(|seen| seen.at).any(|at| at >= operation.invoked)
            }
            _ => true,
        };
        if !survives {
            return Err(format!("{operation:?} was acknowledged, but the log does not contain it"));
        }
    }
    Ok(())
}

/// Whether the entry that ended this grant by a hand-over made the new one, to the waiter that the holder chose.
fn is_handed_over(history: &LeaseHistory, token: FencingToken, to: Option<&HolderId>, new: FencingToken) -> bool {
    let mut ends = history.transitions.iter().filter(|seen| (seen.token, seen.event) == (token, EventKind::HandedOver));
    ends.any(|end| {
        history.grants().any(|grant| {
            (grant.index, grant.token, grant.cause) == (end.index, new, Some(GrantCause::HandOver))
                && to.is_none_or(|to| grant.holder == to.as_str())
        })
    })
}
