//! The log contains every acknowledged operation.

use tenure::api::EventKind;
use tenure::token::FencingToken;

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
            (RequestKind::HandOver { token }, Ended::Held(..)) => is_there(by, *token, EventKind::HandedOver),
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
