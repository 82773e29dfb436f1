//! At each log index, a lease has at most as many holders as its limit. Each holder has a grant in the log.

use std::collections::BTreeSet;

use tenure::lease::Change;
use tenure::types::LeaseName;

use crate::client::{LEASES, leases};
use crate::ledger::{Entry, Ledger};

pub fn limit(name: &LeaseName) -> usize {
    LEASES.iter().find(|(known, _)| *known == name.as_str()).map_or(1, |(_, limit)| *limit as usize)
}

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    for name in leases() {
        let pairs = |entry: &Entry| entry.held(&name).into_iter().map(|lease| (lease.holder, lease.token));
        let mut held: BTreeSet<_> = ledger.before(entry).into_iter().flat_map(pairs).collect();
        for seen in entry.transitions.iter().filter(|seen| seen.name == name) {
            let pair = (seen.holder.clone(), seen.token);
            let is_grant = matches!(seen.change, Change::Granted(_));
            let fits = if is_grant { held.insert(pair) } else { held.remove(&pair) };
            if !fits || held.len() > limit(&name) {
                return Err(format!("at {} {seen:?}: the holders are {held:?}", entry.index));
            }
        }
        let found: BTreeSet<_> = pairs(entry).collect();
        if found != held {
            return Err(format!("at {} {name} is held by {found:?}: the log grants it to {held:?}", entry.index));
        }
    }
    Ok(())
}
