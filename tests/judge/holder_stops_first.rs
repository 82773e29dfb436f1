//! The holder's own deadline comes before the cluster's expiry: the periods in which clients believe that they hold a
//! lease end before the lease expires, and do not overlap.

use std::fmt::Debug;
use std::time::Duration;

use tenure::api::EventKind;
use tenure::token::FencingToken;

use super::history::Belief;
use super::transition::Transition;

/// Client histories: something that a holder believed or did with this token, until `until`. If the observer saw the
/// expiry by then, the holder believed too long.
pub fn check(
    transitions: &[Transition],
    token: FencingToken,
    until: Duration,
    evidence: &dyn Debug,
) -> Result<(), String> {
    let expiries = transitions.iter().filter(|seen| seen.event == EventKind::Expired && seen.token == token);
    match expiries.min_by_key(|expiry| expiry.at).filter(|expiry| expiry.at < until) {
        Some(expiry) => Err(format!("{evidence:?} is after {expiry:?}")),
        None => Ok(()),
    }
}

/// The beliefs in a lease with one holder do not overlap. The times of the transitions must be exact.
pub fn check_overlaps(transitions: &[Transition], beliefs: &[Belief]) -> Result<(), String> {
    // A holder learns of a revoke only later, so its belief counts until the revoke.
    let revoked = |belief: &Belief| {
        let mut ends = transitions.iter().filter(|seen| seen.event == EventKind::Revoked);
        ends.find(|seen| seen.token == belief.token).map(|seen| seen.at)
    };
    let until = |belief: &Belief| revoked(belief).map_or(belief.until, |at| at.min(belief.until));
    let mut beliefs: Vec<(&Belief, Duration)> = beliefs.iter().map(|belief| (belief, until(belief))).collect();
    beliefs.sort_by_key(|(belief, _)| belief.from);
    for (index, (first, until)) in beliefs.iter().enumerate() {
        let mut overlapping = beliefs[index + 1..].iter().take_while(|(later, _)| later.from < *until);
        if let Some((second, _)) =
            overlapping.find(|(later, later_until)| later.from < *later_until && later.by != first.by)
        {
            return Err(format!("{first:?} and {second:?} overlap"));
        }
    }
    Ok(())
}
