//! The lease of a holder that died is free again at its ttl plus a bound.

use std::time::Duration;

use tenure::token::FencingToken;

use crate::client::{LEASES, leases};
use crate::ledger::Ledger;

/// Every holder died `bound` ago.
pub fn check(ledger: &Ledger, now: Duration, bound: Duration) -> Result<(), String> {
    // The leases of clients; whoever probes takes them without an end.
    let of_clients = leases().filter(|name| LEASES.iter().any(|(known, _)| *known == name.as_str()));
    for name in of_clients {
        let held = ledger.held_at(ledger.last_index(), &name);
        // A waiter that died on its way into the queue is granted what expires within its patience, and expires too.
        let granted = |token: FencingToken| ledger.entry(token.index).map_or(Duration::ZERO, |entry| entry.at);
        let late: Vec<_> = held.iter().filter(|(_, token)| granted(*token) + bound < now).collect();
        if !late.is_empty() {
            return Err(format!("{name} is still held by {late:?}"));
        }
    }
    Ok(())
}
