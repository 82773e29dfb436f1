//! The periods in which clients believe that they hold one lease do not overlap, and end before the lease expires. Work
//! under a guard stops before the expiry, too. All times are true times.

use std::time::Duration;

use tenure::lease::Change;

use super::one_holder::limit;
use crate::history::Belief;
use crate::run::Evidence;
use crate::world::WorkStep;

pub fn check(run: &Evidence) -> Result<(), String> {
    if !run.plan.inside_drift {
        return Ok(());
    }
    for (entry, ended) in run.ledger.transitions().filter(|(_, seen)| seen.change == Change::Expired) {
        let late =
            |belief: &&Belief| belief.name == ended.name && belief.token == ended.token && belief.until > entry.at;
        if let Some(belief) = run.history.beliefs.iter().find(late) {
            return Err(format!("{belief:?} ends after {ended:?} at {:?}", entry.at));
        }
        let late = |step: &&WorkStep| step.name == ended.name && step.token == ended.token && step.at > entry.at;
        if let Some(step) = run.steps.iter().find(late) {
            return Err(format!("{step:?} under a guard is after {ended:?} at {:?}", entry.at));
        }
    }
    // A holder learns of a revoke only later, so its belief counts until the revoke.
    let revoked = |belief: &Belief| {
        let mut seen = run.ledger.transitions().filter(|(_, seen)| matches!(seen.change, Change::Revoked { .. }));
        seen.find(|(_, seen)| seen.name == belief.name && seen.token == belief.token).map(|(entry, _)| entry.at)
    };
    let until = |belief: &Belief| revoked(belief).map_or(belief.until, |at| at.min(belief.until));
    let exclusive = run.history.beliefs.iter().filter(|belief| limit(&belief.name) == 1);
    let mut beliefs: Vec<(&Belief, Duration)> = exclusive.map(|belief| (belief, until(belief))).collect();
    beliefs.sort_by_key(|(belief, _)| (&belief.name, belief.from));
    for (index, (first, until)) in beliefs.iter().enumerate() {
        let later = beliefs[index + 1..].iter().filter(|(later, until)| later.from < *until);
        let mut overlapping = later.take_while(|(later, _)| later.name == first.name && later.from < *until);
        if let Some((second, _)) = overlapping.find(|(later, _)| later.by != first.by) {
            return Err(format!("{first:?} and {second:?} overlap"));
        }
    }
    Ok(())
}
