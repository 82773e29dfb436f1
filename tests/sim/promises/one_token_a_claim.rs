//! A holder that acquires its lease again keeps its token, so a retried acquire never gets a second one.

use tenure::lease::{Change, Command};

use crate::ledger::{Entry, Ledger};

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    let (Some(input), Some(before)) = (&entry.input, ledger.before(entry)) else { return Ok(()) };
    for command in &input.batch.commands {
        let Command::Acquire(acquire) = command else { continue };
        let own = before.held(&acquire.name).into_iter().find(|lease| lease.holder == acquire.holder);
        let Some(token) = own.map(|lease| lease.token) else { continue };
        let has_ended = entry
            .transitions
            .iter()
            .any(|seen| seen.name == acquire.name && seen.token == token && !matches!(seen.change, Change::Granted(_)));
        if !has_ended && !entry.holds(&acquire.name, &acquire.holder, token) {
            return Err(format!("at {} {acquire:?} no longer has {token:?}: {:?}", entry.index, entry.transitions));
        }
    }
    Ok(())
}
