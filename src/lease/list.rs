//! Reads of many names, page by page.

use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::ended::Ended;
use super::holders::Grant;
use super::record::NameRecord;
use super::{HolderLease, LeaseState, Machine, StateFilter};
use crate::types::{HolderId, LeaseName};

/// Most names and leases that one call of [`Machine::list`] scans, whether they match or not. A filter with few matches
/// must not block the machine.
pub const LIST_SCAN: usize = 10_000;

/// A page is full when its leases have this many bytes, even below its limit, because nodes send a page as one message.
/// The last lease of a page can exceed the bound.
pub const PAGE_BYTES: usize = 1 << 20;

/// Most holders, and most waiters, in a read of one name.
pub const SHOWN: usize = 1_000;

/// Approximate size of a lease without its strings, in bytes.
const NUMBERS_BYTES: usize = 128;

/// Selects the leases of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFilter {
    /// Prefix of the names.
    pub prefix: String,
    pub holder: Option<HolderId>,
    /// A lease matches with any of these states. Empty: all states.
    pub states: Vec<StateFilter>,
}

/// The end of a page. The next page starts after this lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListCursor {
    pub name: LeaseName,
    /// The integer form of the token.
    pub token: u64,
}

impl Machine {
    /// Returns matching leases after `after` in the order of (name, token): at most `limit`, where 0 counts as 1.
    ///
    /// The list continues at the returned cursor; it is complete without one. A page with a cursor can be short or
    /// empty: one call scans at most [`LIST_SCAN`] names and leases, and [`PAGE_BYTES`] fill a page.
    pub fn list(
        &self,
        filter: &ListFilter,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> (Vec<HolderLease>, Option<ListCursor>) {
        let from = after.map_or(filter.prefix.as_str(), |cursor| cursor.name.as_str().max(&filter.prefix));
        let from = (Bound::Included(from), Bound::Unbounded);
        let names = self.records.range::<_, str>(from);
        let names = names.take_while(|(name, _)| name.as_str().starts_with(&filter.prefix));
        let mut page = ListPage::new(limit.max(1));
        let mut scanned = 0;
        let mut cursor = after.cloned();
        for (name, record) in names {
            let behind = after.filter(|cursor| cursor.name == *name).map_or(0, |cursor| cursor.token);
            // A name without leases, for example one with waiters only, also takes time to scan.
            scanned += 1;
            for grant in by_token(record, behind) {
                if scanned >= LIST_SCAN || page.is_full() {
                    // Without a lease since `after`, the next page begins at this name: the names before have none.
                    let here = || ListCursor { name: name.clone(), token: behind };
                    return (page.leases, cursor.filter(|cursor| Some(cursor) != after).or_else(|| Some(here())));
                }
                scanned += 1;
                cursor = Some(ListCursor { name: name.clone(), token: grant.token() });
                if filter.matches(&grant) {
                    page.push(grant.lease(name, record));
                }
            }
            if scanned >= LIST_SCAN {
                let token = cursor.filter(|cursor| cursor.name == *name).map_or(0, |cursor| cursor.token);
                return (page.leases, Some(ListCursor { name: name.clone(), token }));
            }
        }
        (page.leases, None)
    }

    /// Returns the holders of a name in token order, at most [`SHOWN`]. A [`list`](Machine::list) continues at the
    /// returned cursor; these are all holders without one.
    pub fn holders(&self, name: &LeaseName) -> (Vec<HolderLease>, Option<ListCursor>) {
        let mut page = ListPage::new(SHOWN);
        let grants = self.records.get(name).into_iter().flat_map(|record| {
            let lease = move |grant| record.lease(name, grant);
            record.holders.iter().map(lease)
        });
        for lease in grants {
            if page.is_full() {
                let last = page.leases.last().map_or(0, |lease| lease.token.as_u64());
                return (page.leases, Some(ListCursor { name: name.clone(), token: last }));
            }
            page.push(lease);
        }
        (page.leases, None)
    }
}

/// One page of leases.
struct ListPage {
    leases: Vec<HolderLease>,
    bytes: usize,
    limit: usize,
}

impl ListPage {
    fn new(limit: usize) -> ListPage {
        ListPage { leases: Vec::new(), bytes: 0, limit }
    }

    fn is_full(&self) -> bool {
        self.leases.len() >= self.limit || self.bytes >= PAGE_BYTES
    }

    fn push(&mut self, lease: HolderLease) {
        let metadata: usize = lease.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        self.bytes += NUMBERS_BYTES + lease.name.as_str().len() + lease.holder.as_str().len() + metadata;
        self.leases.push(lease);
    }
}

/// A candidate for a list. The list makes a [`HolderLease`] only from a match.
enum Listed<'r> {
    Held(&'r Grant),
    Ended(&'r Ended),
}

impl Listed<'_> {
    fn grant(&self) -> &Grant {
        match self {
            Listed::Held(grant) => grant,
            Listed::Ended(ended) => &ended.grant,
        }
    }

    fn token(&self) -> u64 {
        self.grant().token.as_u64()
    }

    fn state(&self) -> LeaseState {
        match self {
            Listed::Held(_) => LeaseState::Active,
            Listed::Ended(ended) => ended.state,
        }
    }

    fn lease(&self, name: &LeaseName, record: &NameRecord) -> HolderLease {
        match self {
            Listed::Held(grant) => record.lease(name, grant),
            Listed::Ended(ended) => record.ended_lease(name, ended),
        }
    }
}

/// Held and ended grants of one name, merged in token order.
fn by_token(record: &NameRecord, after: u64) -> impl Iterator<Item = Listed<'_>> {
    let from = after.saturating_add(1);
    let mut held = record.holders.from(from).peekable();
    let mut ended = record.ended.from(from).peekable();
    std::iter::from_fn(move || {
        let held_is_next = match (held.peek(), ended.peek()) {
            (Some(held), Some(ended)) => held.token.as_u64() < ended.grant.token.as_u64(),
            (held, _) => held.is_some(),
        };
        if held_is_next { held.next().map(Listed::Held) } else { ended.next().map(Listed::Ended) }
    })
}

impl ListFilter {
    fn matches(&self, listed: &Listed) -> bool {
        let state_fits = self.states.is_empty() || self.states.iter().any(|state| state.fits(listed));
        state_fits && self.holder.as_ref().is_none_or(|holder| listed.grant().holder == *holder)
    }
}

impl StateFilter {
    fn fits(self, listed: &Listed) -> bool {
        let state = listed.state();
        match self {
            StateFilter::Active => state == LeaseState::Active,
            StateFilter::Renewed => state == LeaseState::Active && listed.grant().renewals > 0,
            StateFilter::Expired => state == LeaseState::Expired,
            StateFilter::Released => state == LeaseState::Released,
            StateFilter::Revoked => state == LeaseState::Revoked,
            StateFilter::HandedOver => state == LeaseState::HandedOver,
            StateFilter::Restored => state == LeaseState::Restored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Acquire, Batch, Command, Limits, Stamp};
    use crate::token::FencingToken;
    use crate::types::{Metadata, Ttl};

    /// A machine with `names` held names. Each name has 10 bytes and the holder has 6.
    fn machine_of(names: usize, metadata: &Metadata) -> Machine {
        let mut machine = Machine::new();
        let claim = |number: usize| {
            Command::Acquire(Acquire {
                name: LeaseName::new(format!("name-{number:05}")).expect("a valid name"),
                holder: HolderId::new("holder").expect("a valid holder"),
                ttl: Ttl::INFINITE,
                wait_ms: None,
                lock_delay_ms: 0,
                limit: 1,
                metadata: metadata.clone(),
            })
        };
        let batch = Batch { stamp: Stamp::default(), commands: (0..names).map(claim).collect() };
        machine.apply(FencingToken { term: 1, index: 1 }, &batch);
        machine
    }

    #[test]
    fn one_list_call_scans_10_000_names_and_leases() {
        let machine = machine_of(LIST_SCAN / 2 + 3, &Metadata::default());
        let none = ListFilter { states: vec![StateFilter::Expired], ..ListFilter::default() };
        let (leases, cursor) = machine.list(&none, None, 100);
        // Each name and each lease counts. The cursor is at the last scanned lease.
        let name = LeaseName::new(format!("name-{:05}", LIST_SCAN / 2 - 1)).expect("a valid name");
        let token = FencingToken { term: 1, index: 1 }.as_u64();
        assert_eq!((leases.len(), cursor.as_ref()), (0, Some(&ListCursor { name, token })));
        let (rest, end) = machine.list(&ListFilter::default(), cursor.as_ref(), 100);
        assert_eq!((rest.len(), end), (3, None));
    }

    #[test]
    fn page_is_full_at_1_mib() {
        let metadata = [("first".to_owned(), "v".repeat(3_000)), ("key".to_owned(), "v".repeat(500))];
        let machine = machine_of(500, &Metadata::new(metadata.into()).expect("small metadata"));
        let bytes = 128 + 10 + 6 + (5 + 3_000) + (3 + 500);
        let (leases, cursor) = machine.list(&ListFilter::default(), None, 500);
        assert_eq!(leases.len(), PAGE_BYTES.div_ceil(bytes));
        assert!(cursor.is_some());
        assert!(machine.list(&ListFilter::default(), cursor.as_ref(), 500).1.is_none(), "the rest fits into one page");
    }

    #[test]
    fn only_a_name_with_more_than_1000_holders_has_a_cursor() {
        let name = LeaseName::new("pool").expect("a valid name");
        let mut machine = Machine::new();
        for number in 1..=1_001 {
            let claim = Acquire {
                name: name.clone(),
                holder: HolderId::new(format!("holder-{number}")).expect("a valid holder"),
                ttl: Ttl::INFINITE,
                wait_ms: None,
                lock_delay_ms: 0,
                limit: 1_001,
                metadata: Metadata::default(),
            };
            let batch = Batch { stamp: Stamp::default(), commands: vec![Command::Acquire(claim)] };
            machine.apply(FencingToken { term: 1, index: number }, &batch);
            if number >= 1_000 {
                let (held, cursor) = machine.holders(&name);
                let cursor = cursor.map(|cursor| (cursor.name, cursor.token));
                let last = FencingToken { term: 1, index: 1_000 }.as_u64();
                let expected = (number == 1_001).then(|| (name.clone(), last));
                assert_eq!((held.len(), cursor), (1_000, expected), "{number} holders");
            }
        }
    }

    /// Adds names of one kind to a machine. Each of them is `a-` and a number.
    fn add_names(machine: &mut Machine, kind: &str, count: usize, index: u64) {
        let name = |number: usize| LeaseName::new(format!("a-{number:05}")).expect("a valid name");
        let claim = |number: usize, holder: &str, wait_ms: Option<u64>| {
            Command::Acquire(Acquire {
                name: name(number),
                holder: HolderId::new(holder).expect("a valid holder"),
                ttl: Ttl::INFINITE,
                wait_ms,
                lock_delay_ms: 3_600_000,
                limit: 1,
                metadata: Metadata::default(),
            })
        };
        let revoke = |number: usize| Command::Revoke { name: name(number), reason: String::new() };
        let mut entry = index;
        let mut apply = |commands: Vec<Command>| {
            machine.apply(FencingToken { term: 1, index: entry }, &Batch { stamp: Stamp::default(), commands });
            entry += 1;
        };
        // The machine forgets an ended grant at once, except for the names that are to have one.
        let ended_keep = if kind == "ended" { count as u64 } else { 0 };
        apply(vec![Command::SetLimits(Limits { ended_keep, ..Limits::default() })]);
        apply((0..count).map(|number| claim(number, "holder", None)).collect());
        if kind != "held" {
            apply((0..count).map(revoke).collect());
        }
        if kind == "waited for" {
            apply((0..count).map(|number| claim(number, "waiter", Some(60_000))).collect());
        }
    }

    #[test]
    fn list_reaches_its_end_behind_each_kind_of_name() {
        let kinds = ["held", "ended", "delayed", "waited for"];
        // With some of the numbers, the scan of a page ends just before or behind a lease of another name.
        let numbers = [LIST_SCAN - 2, LIST_SCAN - 1, LIST_SCAN + 3];
        for (kind, number) in kinds.into_iter().flat_map(|kind| numbers.map(|number| (kind, number))) {
            let mut machine = Machine::new();
            add_names(&mut machine, kind, number, 1);
            for (index, name) in [(8, "a"), (9, "a-z")] {
                let claim = Acquire {
                    name: LeaseName::new(name).expect("a valid name"),
                    holder: HolderId::new("searched").expect("a valid holder"),
                    ttl: Ttl::INFINITE,
                    wait_ms: None,
                    lock_delay_ms: 0,
                    limit: 1,
                    metadata: Metadata::default(),
                };
                let batch = Batch { stamp: Stamp::default(), commands: vec![Command::Acquire(claim)] };
                machine.apply(FencingToken { term: 1, index }, &batch);
            }
            // With the first prefix the list begins at a lease, with the second at a name of the kind.
            for (prefix, expected) in [("", &["a", "a-z"][..]), ("a-", &["a-z"])] {
                let holder = Some(HolderId::new("searched").expect("a valid holder"));
                let filter = ListFilter { prefix: prefix.to_owned(), holder, ..ListFilter::default() };
                let (mut found, mut after) = (Vec::new(), None);
                for page in 1.. {
                    assert!(page <= 5, "{kind}: the list of {LIST_SCAN} names and a few has no end");
                    let (leases, cursor) = machine.list(&filter, after.as_ref(), 100);
                    found.extend(leases.iter().map(|lease| lease.name.to_string()));
                    if cursor.is_none() {
                        break;
                    }
                    after = cursor;
                }
                assert_eq!(found, expected, "{kind}, prefix {prefix:?}");
            }
        }
    }
}
