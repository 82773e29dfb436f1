//! A waiter is granted a lease only if it is free at that index, and only before its wait ends.
//!
//! The check uses the commands of the log, not the queue of the lease machine. A timer fires at the first stamp after
//! its deadline: at the deadline itself a wait and a lock delay are still active.

use tenure::lease::{Change, Command, GrantCause, Transition};

use super::one_holder::limit;
use crate::ledger::{Entry, Ledger};

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    for grant in entry.transitions.iter().filter(|seen| seen.change == Change::Granted(GrantCause::Queue)) {
        let held = held_before(ledger, entry, grant);
        if held >= limit(&grant.name) as i64 {
            return Err(format!("{grant:?}, but the lease had {held} holders"));
        }
        let delay = ledger.before(entry).and_then(|before| before.machine.get(&grant.name)?.delay_until);
        if let Some(until) = delay.filter(|until| *until >= entry.machine.now()) {
            return Err(format!("{grant:?} during the lock delay until {until}"));
        }
        match wait_ends(ledger, entry, grant) {
            None => return Err(format!("{grant:?}, but the holder sent no waiting claim")),
            Some(ends) if ends < entry.machine.now() => {
                return Err(format!("{grant:?} at {}, but its wait ended at {ends}", entry.machine.now()));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The number of holders immediately before this grant.
fn held_before(ledger: &Ledger, entry: &Entry, grant: &Transition) -> i64 {
    let held = ledger.before(entry).map_or(0, |before| before.held(&grant.name).len() as i64);
    let earlier = entry.transitions.iter().filter(|seen| seen.name == grant.name && seen.part < grant.part);
    held + earlier.map(|seen| if matches!(seen.change, Change::Granted(_)) { 1 } else { -1 }).sum::<i64>()
}

/// The end of the wait in the holder's last waiting claim.
///
/// A claim in this entry may be after a grant that a timer made. Its wait has not ended in either case.
fn wait_ends(ledger: &Ledger, entry: &Entry, grant: &Transition) -> Option<u64> {
    let wait = |seen: &Entry| {
        let commands = seen.input.iter().flat_map(|input| input.batch.commands.iter().rev());
        let mut waits = commands.filter_map(|command| match command {
            Command::Acquire(claim) if claim.name == grant.name && claim.holder == grant.holder => claim.wait_ms,
            _ => None,
        });
        waits.next()
    };
    if wait(entry).is_some() {
        return Some(u64::MAX);
    }
    let before = ledger.entries.iter().rev().skip_while(|seen| seen.index >= entry.index);
    before.filter_map(|seen| Some(seen.machine.now().saturating_add(wait(seen)?))).next()
}
