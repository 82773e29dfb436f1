//! Each grant has a higher token than all earlier grants of its name. The token is the position of the granting entry.

use tenure::lease::Change;

use crate::ledger::{Entry, Ledger};

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    let grants = ledger.transitions().filter(|(_, seen)| matches!(seen.change, Change::Granted(_)));
    let upto = grants.take_while(|(at, _)| at.index <= entry.index);
    let (own, earlier): (Vec<_>, Vec<_>) = upto.partition(|(at, _)| at.index == entry.index);
    for (_, grant) in own {
        let before = earlier.iter().filter(|(_, before)| before.name == grant.name).map(|(_, before)| before.token);
        if let Some(before) = before.max().filter(|before| before.as_u64() >= grant.token.as_u64()) {
            return Err(format!("{} got {:?} at {}, after {before:?}", grant.name, grant.token, entry.index));
        }
        if entry.input.as_ref().is_none_or(|input| input.position != grant.token) {
            return Err(format!("{} got {:?} at {:?}", grant.name, grant.token, entry.input));
        }
    }
    Ok(())
}
