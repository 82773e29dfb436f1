//! No request and no new leader moves a deadline to an earlier time. Cluster time never goes back.

use tenure::lease::Lease;

use crate::client::leases;
use crate::ledger::{Entry, Ledger};

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    let Some(before) = ledger.before(entry) else { return Ok(()) };
    if entry.machine.now() < before.machine.now() {
        return Err(format!("at {} cluster time went back from {}", entry.index, before.machine.now()));
    }
    for name in leases() {
        let held = entry.held(&name);
        for old in before.held(&name) {
            let Some(new) = held.iter().find(|lease| lease.token == old.token) else { continue };
            let deadline = |lease: &Lease| lease.deadline.unwrap_or(u64::MAX);
            if deadline(new) < deadline(&old) {
                return Err(format!("at {} {old:?} became {new:?} by {:?}", entry.index, entry.input));
            }
        }
    }
    Ok(())
}
