//! The times in which holders of one lease believe to hold it do not meet, and end before the lease lapses.

use tenure::lease::Change;

use super::one_holder::limit;
use crate::history::Belief;
use crate::run::Evidence;

pub fn check(run: &Evidence) -> Result<(), String> {
    if !run.plan.inside_drift {
        return Ok(());
    }
    for (entry, ended) in run.ledger.transitions().filter(|(_, seen)| seen.change == Change::Expired) {
        let late =
            |belief: &&Belief| belief.name == ended.name && belief.token == ended.token && belief.until > entry.at;
        if let Some(belief) = run.history.beliefs.iter().find(late) {
            return Err(format!("{belief:?} outlives {ended:?} at {:?}", entry.at));
        }
    }
    let mut beliefs: Vec<&Belief> = run.history.beliefs.iter().filter(|belief| limit(&belief.name) == 1).collect();
    beliefs.sort_by_key(|belief| (&belief.name, belief.from));
    // A revoke takes a lease from a holder that hears of it later.
    let revoked = |belief: &Belief| {
        let mut seen = run.ledger.transitions();
        seen.any(|(_, seen)| seen.token == belief.token && matches!(seen.change, Change::Revoked { .. }))
    };
    for pair in beliefs.windows(2) {
        let meet = pair[0].name == pair[1].name && pair[1].from < pair[0].until;
        if meet && pair[0].by != pair[1].by && !revoked(pair[0]) {
            return Err(format!("{:?} and {:?}", pair[0], pair[1]));
        }
    }
    Ok(())
}
