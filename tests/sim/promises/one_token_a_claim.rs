//! Whoever holds a lease and asks for it again keeps the token, so that a request that is sent again is harmless: a
//! retried acquire never gets two.

use tenure::lease::{Change, Command};

use crate::ledger::{Entry, Ledger};

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    let (Some(asked), Some(before)) = (&entry.asked, ledger.before(entry)) else { return Ok(()) };
    for command in &asked.batch.commands {
        let Command::Acquire(acquire) = command else { continue };
        let own = before.held(&acquire.name).into_iter().find(|lease| lease.holder == acquire.holder);
        let Some(token) = own.map(|lease| lease.token) else { continue };
        let has_ended = entry
            .transitions
            .iter()
            .any(|seen| seen.name == acquire.name && seen.token == token && !matches!(seen.change, Change::Granted(_)));
        if !has_ended && !entry.holds(&acquire.name, &acquire.holder, token) {
            return Err(format!("at {} {acquire:?} lost {token:?} and got {:?}", entry.index, entry.transitions));
        }
    }
    Ok(())
}
