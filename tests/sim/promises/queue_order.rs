//! A grant from the queue goes to the first holder that still waits.

use tenure::lease::{Change, GrantCause};

use crate::ledger::{Entry, Ledger};

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    for grant in entry.transitions.iter().filter(|seen| seen.change == Change::Granted(GrantCause::Queue)) {
        let left = |holder: &_| {
            entry.dropped.iter().any(|left| left.waiter.name == grant.name && left.waiter.holder == *holder)
        };
        let queue = ledger.queue_before(entry, &grant.name);
        let granted = |holder: &_| {
            entry.transitions.iter().any(|seen| {
                seen.part < grant.part
                    && seen.name == grant.name
                    && seen.holder == *holder
                    && matches!(seen.change, Change::Granted(_))
            })
        };
        let first = queue.iter().find(|waiter| !left(&waiter.holder) && !granted(&waiter.holder));
        let is_new = !queue.iter().any(|waiter| waiter.holder == grant.holder);
        // A waiter that joined in this entry is behind all earlier waiters.
        let fits = if is_new { first.is_none() } else { first.is_some_and(|first| first.holder == grant.holder) };
        if !fits {
            return Err(format!("{grant:?}, but the queue was {queue:?}"));
        }
    }
    Ok(())
}
