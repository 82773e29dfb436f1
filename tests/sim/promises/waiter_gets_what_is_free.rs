//! A waiter is granted only what is free at that position, and only while its wait lasts: as the log says, whatever the
//! machine remembers of it. A timer fires at the first stamp after its deadline: at the deadline itself a wait still
//! lasts, and so does a lock delay.

use tenure::lease::{Change, Command, GrantCause, Transition};

use super::one_holder::limit;
use crate::ledger::{Entry, Ledger};

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    for grant in entry.transitions.iter().filter(|seen| seen.change == Change::Granted(GrantCause::Queue)) {
        let held = held_before(ledger, entry, grant);
        if held >= limit(&grant.name) as i64 {
            return Err(format!("{grant:?}, and {held} held it"));
        }
        let delay = ledger.before(entry).and_then(|before| before.machine.get(&grant.name)?.delay_until);
        if let Some(until) = delay.filter(|until| *until >= entry.machine.now()) {
            return Err(format!("{grant:?} under a lock delay until {until}"));
        }
        match wait_ends(ledger, entry, grant) {
            None => return Err(format!("{grant:?}, and it never asked to wait")),
            Some(ends) if ends < entry.machine.now() => {
                return Err(format!("{grant:?} at {}, and its wait was over at {ends}", entry.machine.now()));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// How many held the lease when this grant was made.
fn held_before(ledger: &Ledger, entry: &Entry, grant: &Transition) -> i64 {
    let held = ledger.before(entry).map_or(0, |before| before.held(&grant.name).len() as i64);
    let earlier = entry.transitions.iter().filter(|seen| seen.name == grant.name && seen.part < grant.part);
    held + earlier.map(|seen| if matches!(seen.change, Change::Granted(_)) { 1 } else { -1 }).sum::<i64>()
}

/// When the wait ends that the holder asked for last. What it asks for in this very entry can have come behind the grant,
/// which time made, and is not over yet in any case.
fn wait_ends(ledger: &Ledger, entry: &Entry, grant: &Transition) -> Option<u64> {
    let wait = |seen: &Entry| {
        let commands = seen.asked.iter().flat_map(|asked| asked.batch.commands.iter().rev());
        let mut waits = commands.filter_map(|command| match command {
            Command::Acquire(asked) if asked.name == grant.name && asked.holder == grant.holder => asked.wait_ms,
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
