//! No request and no new leader moves an expiry to an earlier moment. Cluster time never runs back.

use tenure::lease::Lease;

use crate::client::leases;
use crate::ledger::{Entry, Ledger};

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    let Some(before) = ledger.before(entry) else { return Ok(()) };
    if entry.machine.now() < before.machine.now() {
        return Err(format!("at {} cluster time ran back from {}", entry.index, before.machine.now()));
    }
    for name in leases() {
        let held = entry.held(&name);
        for was in before.held(&name) {
            let Some(is) = held.iter().find(|lease| lease.token == was.token) else { continue };
            let due = |lease: &Lease| lease.deadline.unwrap_or(u64::MAX);
            if due(is) < due(&was) {
                return Err(format!("at {} {was:?} became {is:?} by {:?}", entry.index, entry.asked));
            }
        }
    }
    Ok(())
}
