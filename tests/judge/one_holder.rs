//! At each log position a lease has at most one holder, or at most its limit. A transition that ends a grant names a
//! current holder.

use std::collections::BTreeSet;

use tenure::lease::HolderLease;
use tenure::types::LeaseName;

use super::claims::LeaseHistory;
use super::replay::ObservedName;

/// Applied entries: the holders of a name after a grant.
pub fn check_holders(name: &LeaseName, observed: &ObservedName) -> Result<(), String> {
    let holders: BTreeSet<_> = observed.held.values().map(|held| &held.holder).collect();
    let limit = observed.limit.max(1);
    if observed.held.len() > limit || holders.len() < observed.held.len() {
        return Err(format!("{name} is held by {:?}; its limit is {limit}", observed.held));
    }
    Ok(())
}

/// Applied entries: a replica has exactly the grants that have not ended. An ended grant never comes back.
pub fn check_grants(held: &[HolderLease], observed: &ObservedName) -> Result<(), String> {
    let allowed = observed.held.iter().map(|(token, held)| (*token, &held.holder));
    if held.iter().map(|lease| (lease.token, &lease.holder)).eq(allowed) {
        return Ok(());
    }
    Err(format!("the holders are {held:?}; expected {:?}", observed.held))
}

/// Applied entries: a replica has this number of grants, of all names.
pub fn check_count(held: u64, allowed: usize) -> Result<(), String> {
    if held == allowed as u64 { Ok(()) } else { Err(format!("{held} grants are held; expected {allowed}")) }
}

/// Client histories.
pub fn check(history: &LeaseHistory) -> Result<(), String> {
    let mut held = BTreeSet::new();
    for transition in history.transitions {
        let named = (&transition.holder, transition.token);
        if !transition.is_grant() {
            if !held.remove(&named) {
                return Err(format!("{transition:?}, but the log has no such grant"));
            }
        } else if !held.insert(named) || held.len() > history.limit() {
            return Err(format!("{transition:?}, but the holders were {held:?}"));
        }
    }
    Ok(())
}
