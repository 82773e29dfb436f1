//! The lease of a dead holder is free again after its ttl plus a bound.

use std::time::Duration;

use tenure::token::FencingToken;

use crate::client::{LEASES, leases};
use crate::ledger::Ledger;

/// Checks that no client lease is held `bound` after its grant. All holders died `bound` ago.
pub fn check(ledger: &Ledger, now: Duration, bound: Duration) -> Result<(), String> {
    // Probes take leases with an infinite ttl, so they are excluded.
    let client_leases = leases().filter(|name| LEASES.iter().any(|(known, _)| *known == name.as_str()));
    for name in client_leases {
        let held = ledger.held_at(ledger.last_index(), &name);
        // A waiter that died while its request was in flight can still be granted a lease. That lease expires, too.
        let granted = |token: FencingToken| ledger.entry(token.index()).map_or(Duration::ZERO, |entry| entry.at);
        let late: Vec<_> = held.iter().filter(|(_, token)| granted(*token) + bound < now).collect();
        if !late.is_empty() {
            return Err(format!("{name} is still held by {late:?}"));
        }
    }
    Ok(())
}
