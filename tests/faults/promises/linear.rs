//! The calls on a lease are linearizable. The search uses the requests and their answers. From the log it takes only
//! transitions that no answer shows: expiries, and grants whose answers were lost.

use std::time::Duration;

use tenure::api::EventKind;

use super::super::history::{Ended, Operation, What};
use super::super::linear::{Call, Doubt, Effect, is_linearizable, is_told};
use super::Evidence;

/// The result of the search.
#[derive(Debug, PartialEq, Eq)]
pub enum SearchResult {
    Possible,
    Impossible(String),
    TooHard,
}

pub fn check(evidence: &Evidence) -> SearchResult {
    match is_linearizable(&calls(evidence), evidence.limit()) {
        Ok(()) => SearchResult::Possible,
        Err(Doubt::Impossible(how)) => SearchResult::Impossible(how),
        Err(Doubt::TooHard) => SearchResult::TooHard,
    }
}

fn calls(evidence: &Evidence) -> Vec<Call> {
    let happened = |operation: &&Operation| operation.ended != Ended::Unknown || is_in_log(evidence, operation);
    let mut calls: Vec<Call> = evidence.operations.iter().filter(happened).filter_map(Call::of).collect();
    for seen in evidence.log {
        let holder = seen.event.holder.clone();
        let what = match seen.event.event {
            EventKind::Expired => Effect::End(holder, seen.event.token),
            EventKind::Granted if !is_told(&calls, seen.event.token, seen.at) => {
                Effect::Grant(holder, seen.event.token)
            }
            _ => continue,
        };
        calls.push(Call { what, invoked: Duration::ZERO, returned: Some(seen.at) });
    }
    calls
}

/// Whether the log has a transition that this request may have caused. Without one, a request of unknown outcome had no
/// effect.
fn is_in_log(evidence: &Evidence, operation: &Operation) -> bool {
    evidence.log.iter().any(|seen| {
        let is_its = match (&operation.what, seen.event.event) {
            (What::Revoke, EventKind::Revoked) => true,
            (What::Release { token }, EventKind::Released) => *token == seen.event.token,
            (What::HandOver { token }, EventKind::HandedOver) => *token == seen.event.token,
            _ => false,
        };
        is_its && seen.at >= operation.invoked
    })
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{acquired, did, evidence, expired, granted, saw, token};
    use super::*;

    #[test]
    fn only_a_logged_expiry_explains_the_next_grant() {
        let asked = [acquired("a", (0, 10), 5), acquired("b", (1500, 1510), 9)];
        let log = [granted(5, "a", 5), expired(1400, "a", 5, 8), granted(1505, "b", 9)];
        assert_eq!(check(&evidence(&asked, &log)), SearchResult::Possible);
        let without = [log[0].clone(), log[2].clone()];
        assert!(matches!(check(&evidence(&asked, &without)), SearchResult::Impossible(_)));
    }

    #[test]
    fn logged_unknown_release_explains_the_next_grant() {
        let release = did("a", What::Release { token: token(5) }, (20, 30), Ended::Unknown);
        let asked = [acquired("a", (0, 10), 5), release, acquired("b", (40, 50), 9)];
        let log = [granted(5, "a", 5), super::super::evidence::released(60, "a", 5, 8), granted(45, "b", 9)];
        assert_eq!(check(&evidence(&asked, &log)), SearchResult::Possible);
        let read = [acquired("a", (0, 10), 5), saw((20, 30), &[], 6)];
        assert!(matches!(check(&evidence(&read, &log[..1])), SearchResult::Impossible(_)), "a stale read");
    }
}
