//! Reads of many names, page by page.

use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::record::Record;
use super::{Lease, LeaseState, Machine};
use crate::types::{HolderId, LeaseName};

/// Most leases that one call of [`Machine::list`] looks at, whether they match or not: a filter that matches little
/// must not hold up the machine.
pub const LIST_SCAN: usize = 10_000;

/// Which leases to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFilter {
    /// Names that start with this.
    pub prefix: String,
    pub holder: Option<HolderId>,
    /// Any of these; none means all.
    pub states: Vec<ListState>,
}

/// A state to list by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListState {
    Active,
    /// Active, and renewed at least once.
    Renewed,
    Expired,
    Released,
    Revoked,
    HandedOver,
}

/// Where a page ended: the next one begins behind this lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListCursor {
    pub name: LeaseName,
    /// The integer form of the token.
    pub token: u64,
}

impl Machine {
    /// Leases that match, in the order of (name, token), at most `limit` of them (0 counts as 1),
    /// after `after`.
    ///
    /// With the cursor that comes back the listing goes on; without one it is complete. A page can be short, or
    /// empty, and still have a cursor: one call looks at [`LIST_SCAN`] leases at most.
    pub fn list(
        &self,
        filter: &ListFilter,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> (Vec<Lease>, Option<ListCursor>) {
        let from = after.map_or(filter.prefix.as_str(), |cursor| cursor.name.as_str().max(&filter.prefix));
        let from = (Bound::Included(from), Bound::Unbounded);
        let names = self.records.range::<_, str>(from);
        let names = names.take_while(|(name, _)| name.as_str().starts_with(&filter.prefix));
        let mut leases = Vec::new();
        let mut looked_at = 0;
        let mut cursor = after.cloned();
        for (name, record) in names {
            let behind = after.filter(|cursor| cursor.name == *name).map_or(0, |cursor| cursor.token);
            // A name that is only waited for has no lease to show, and costs a look all the same.
            looked_at += 1;
            for lease in by_token(name, record, behind) {
                if looked_at >= LIST_SCAN || leases.len() == limit.max(1) {
                    return (leases, cursor);
                }
                looked_at += 1;
                cursor = Some(ListCursor { name: name.clone(), token: lease.token.as_u64() });
                if filter.matches(&lease) {
                    leases.push(lease);
                }
            }
            if looked_at >= LIST_SCAN {
                let token = cursor.filter(|cursor| cursor.name == *name).map_or(0, |cursor| cursor.token);
                return (leases, Some(ListCursor { name: name.clone(), token }));
            }
        }
        (leases, None)
    }
}

/// Held and ended leases of one name, merged in the order of their tokens.
fn by_token<'r>(name: &'r LeaseName, record: &'r Record, after: u64) -> impl Iterator<Item = Lease> + 'r {
    let from = after.saturating_add(1);
    let mut held = record.holders.from(from).peekable();
    let mut ended = record.ended.from(from).peekable();
    std::iter::from_fn(move || {
        let held_is_next = match (held.peek(), ended.peek()) {
            (Some(held), Some(ended)) => held.token.as_u64() < ended.grant.token.as_u64(),
            (held, _) => held.is_some(),
        };
        if held_is_next {
            held.next().map(|grant| record.lease(name, grant))
        } else {
            ended.next().map(|ended| record.ended_lease(name, ended))
        }
    })
}

impl ListFilter {
    fn matches(&self, lease: &Lease) -> bool {
        let state_fits = self.states.is_empty() || self.states.iter().any(|state| state.fits(lease));
        state_fits && self.holder.as_ref().is_none_or(|holder| lease.holder == *holder)
    }
}

impl ListState {
    fn fits(self, lease: &Lease) -> bool {
        match self {
            ListState::Active => lease.state == LeaseState::Active,
            ListState::Renewed => lease.state == LeaseState::Active && lease.renewals > 0,
            ListState::Expired => lease.state == LeaseState::Expired,
            ListState::Released => lease.state == LeaseState::Released,
            ListState::Revoked => lease.state == LeaseState::Revoked,
            ListState::HandedOver => lease.state == LeaseState::HandedOver,
        }
    }
}
