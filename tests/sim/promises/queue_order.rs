//! Who is granted a lease from the queue is the first who still waited.

use tenure::lease::{Change, GrantCause};

use crate::run::Evidence;

pub fn check(run: &Evidence) -> Result<(), String> {
    for (entry, grant) in run.ledger.transitions() {
        if grant.change != Change::Granted(GrantCause::Queue) {
            continue;
        }
        let left = |holder: &_| {
            entry.dropped.iter().any(|left| left.waiter.name == grant.name && left.waiter.holder == *holder)
        };
        let queue = run.ledger.queue_before(entry.index, &grant.name);
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
        if !is_new && first.is_none_or(|first| first.holder != grant.holder) {
            return Err(format!("{grant:?}, and the queue was {queue:?}"));
        }
    }
    Ok(())
}
