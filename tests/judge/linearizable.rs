//! The calls on a lease are linearizable. The search uses the requests and their answers. From the log it takes only
//! transitions that no answer shows: expiries, and grants whose answers were lost.

use std::time::Duration;

use tenure::api::EventKind;

use super::claims::LeaseHistory;
use super::history::{Ended, Operation, RequestKind};
use super::search::{Call, Doubt, Effect, is_linearizable, is_told};

/// The result of the search.
#[derive(Debug, PartialEq, Eq)]
pub enum SearchResult {
    Possible,
    Impossible(String),
    TooHard,
}

pub fn check(history: &LeaseHistory) -> SearchResult {
    match is_linearizable(&calls(history), history.limit()) {
        Ok(()) => SearchResult::Possible,
        Err(Doubt::Impossible(how)) => SearchResult::Impossible(how),
        Err(Doubt::TooHard) => SearchResult::TooHard,
    }
}

fn calls(history: &LeaseHistory) -> Vec<Call> {
    let happened = |operation: &&Operation| operation.ended != Ended::Unknown || is_in_log(history, operation);
    // A leader also refuses from memory. Outside the drift such a refusal proves nothing.
    let counts = |call: &Call| history.bounds.inside_drift || call.what != Effect::IsFull;
    let mut calls: Vec<Call> = history.operations.iter().filter(happened).filter_map(Call::of).filter(counts).collect();
    for seen in history.transitions {
        let holder = seen.holder.clone();
        let what = match seen.event {
            EventKind::Expired => Effect::End(holder, seen.token),
            EventKind::Granted if !is_told(&calls, seen.token, seen.at) => Effect::Grant(holder, seen.token),
            _ => continue,
        };
        calls.push(Call { what, invoked: Duration::ZERO, returned: Some(seen.at) });
    }
    calls
}

/// Whether the log has a transition that this request may have caused. Without one, a request of unknown outcome had no
/// effect.
fn is_in_log(history: &LeaseHistory, operation: &Operation) -> bool {
    history.transitions.iter().any(|seen| {
        let is_its = match (&operation.what, seen.event) {
            (RequestKind::Revoke, EventKind::Revoked) => true,
            (RequestKind::Release { token }, EventKind::Released) => *token == seen.token,
            (RequestKind::HandOver { token, .. }, EventKind::HandedOver) => *token == seen.token,
            _ => false,
        };
        is_its && seen.at >= operation.invoked
    })
}
