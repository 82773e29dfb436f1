//! No lease is made shorter by anybody but its holder: not by a new leader, and not by an old request. Cluster time never
//! runs back.

use tenure::lease::{Command, Lease};
use tenure::types::LeaseName;

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
            if due(is) < due(&was) && !is_asked_for(entry, &name, is) {
                return Err(format!("at {} {was:?} became {is:?} by {:?}", entry.index, entry.asked));
            }
        }
    }
    Ok(())
}

/// Whether the holder named another ttl.
fn is_asked_for(entry: &Entry, name: &LeaseName, lease: &Lease) -> bool {
    let commands = entry.asked.iter().flat_map(|asked| &asked.batch.commands);
    commands.into_iter().any(|command| match command {
        Command::Renew { holder, leases } => {
            let named =
                leases.iter().any(|asked| asked.name == *name && asked.token == lease.token && asked.ttl.is_some());
            *holder == lease.holder && named
        }
        _ => false,
    })
}
