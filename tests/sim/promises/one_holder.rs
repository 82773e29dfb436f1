//! At any log position a lease has at most as many holders as its limit.

use std::collections::{BTreeMap, BTreeSet};

use tenure::lease::Change;
use tenure::types::LeaseName;

use crate::client::LEASES;
use crate::run::Evidence;

pub fn limit(name: &LeaseName) -> usize {
    LEASES.iter().find(|(known, _)| *known == name.as_str()).map_or(1, |(_, limit)| *limit as usize)
}

pub fn check(run: &Evidence) -> Result<(), String> {
    let mut held: BTreeMap<&LeaseName, BTreeSet<_>> = BTreeMap::new();
    for (entry, transition) in run.ledger.transitions() {
        let (name, index) = (&transition.name, entry.index);
        let holders = held.entry(name).or_default();
        let held = (&transition.holder, transition.token);
        let is_grant = matches!(transition.change, Change::Granted(_));
        let fits = if is_grant { holders.insert(held) } else { holders.remove(&held) };
        if !fits || holders.len() > limit(name) {
            return Err(format!("at {index} {transition:?}, and then it is held by {holders:?}"));
        }
    }
    Ok(())
}
