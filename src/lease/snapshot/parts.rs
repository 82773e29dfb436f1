//! Splits a name into parts and joins them again. The items of one stored record take at most [`PART_BYTES`].

use super::BadSnapshot;
use super::stored::{
    CountsV2, EndedV2, EventV1, GrantV2, MoreV2, OwnersV1, PartV2, QueueEntryV2, RecordV1, RecordV2, StoredRecord,
};
use crate::lease::history::NameHistory;
use crate::lease::record::NameRecord;
use crate::types::{AccessName, ClusterMs, HolderId, LeaseName, MAX_ACCESS_NAME_BYTES, MAX_HOLDER_BYTES, Metadata};

/// Most bytes of grants, waiters and transitions in one stored record: 256 KiB.
pub const PART_BYTES: usize = 256 << 10;
/// Upper bound for the numbers and lengths in one encoded grant, waiter or transition, in bytes.
const NUMBERS_BYTES: usize = 128;
/// Most owners in one stored record: with the longest names they take less than [`PART_BYTES`].
const MAX_OWNERS: usize = PART_BYTES / (MAX_HOLDER_BYTES + MAX_ACCESS_NAME_BYTES + 2);
/// Upper bound for the encoded lengths of one key and one value of metadata, in bytes.
const ENTRY_BYTES: usize = 6;

/// The records of one name, in order.
pub(super) fn split<'r>(name: &'r LeaseName, record: &'r NameRecord) -> impl Iterator<Item = StoredRecord> + 'r {
    let mut items = items(record).peekable();
    let mut is_first = true;
    let parts = std::iter::from_fn(move || {
        let mut part = PartV2::default();
        let mut bytes = 0;
        while let Some(item) = items.next_if(|item| bytes == 0 || bytes + item.bytes() <= PART_BYTES) {
            bytes += item.bytes();
            part.push(item);
        }
        if std::mem::take(&mut is_first) {
            return Some(StoredRecord::V2(RecordV2::new(name, record, part)));
        }
        (bytes > 0).then(|| StoredRecord::More(MoreV2 { name: name.clone(), part }))
    });
    parts.chain(owners(name, record))
}

/// The records of the owners. A name without owners has none, as in builds without access control.
fn owners<'r>(name: &'r LeaseName, record: &'r NameRecord) -> impl Iterator<Item = StoredRecord> + 'r {
    let mut all = record.owners.iter().map(|(holder, owner)| (holder.clone(), owner.clone())).peekable();
    std::iter::from_fn(move || {
        all.peek()?;
        let owners = all.by_ref().take(MAX_OWNERS).collect();
        Some(StoredRecord::Owners(OwnersV1 { name: name.clone(), owners }))
    })
}

/// One item of a name.
enum RecordItem {
    Held(GrantV2),
    Waiting(QueueEntryV2),
    Ended(EndedV2),
    Event(EventV1),
}

fn items(record: &NameRecord) -> impl Iterator<Item = RecordItem> {
    let held = record.holders.iter().map(|grant| RecordItem::Held(GrantV2::new(grant)));
    let waiting = record.queue.iter().map(|(ticket, waiter)| RecordItem::Waiting(QueueEntryV2::new(ticket, waiter)));
    let ended = record.ended.iter().map(|ended| RecordItem::Ended(EndedV2::new(ended)));
    let events =
        record.history.events(&record.holders).into_iter().map(|event| RecordItem::Event(EventV1::new(&event)));
    held.chain(waiting).chain(ended).chain(events)
}

impl RecordItem {
    /// An upper bound for its encoded size.
    fn bytes(&self) -> usize {
        let text_bytes = match self {
            RecordItem::Held(GrantV2 { grant, .. })
            | RecordItem::Ended(EndedV2 { grant: GrantV2 { grant, .. }, .. }) => {
                grant.holder.as_str().len() + metadata_bytes(&grant.metadata)
            }
            RecordItem::Waiting(waiter) => waiter.holder.as_str().len() + metadata_bytes(&waiter.metadata),
            RecordItem::Event(event) => event.holder.as_str().len() + event.change.text().len(),
        };
        NUMBERS_BYTES + text_bytes
    }
}

fn metadata_bytes(metadata: &Metadata) -> usize {
    metadata.bytes() + metadata.iter().count() * ENTRY_BYTES
}

impl PartV2 {
    fn push(&mut self, item: RecordItem) {
        match item {
            RecordItem::Held(grant) => self.held.push(grant),
            RecordItem::Waiting(waiter) => self.waiting.push(waiter),
            RecordItem::Ended(ended) => self.ended.push(ended),
            RecordItem::Event(event) => self.history.push(event),
        }
    }

    fn counts(&self) -> CountsV2 {
        CountsV2 {
            held: self.held.len() as u64,
            waiting: self.waiting.len() as u64,
            ended: self.ended.len() as u64,
            history: self.history.len() as u64,
        }
    }
}

impl RecordV2 {
    fn new(name: &LeaseName, record: &NameRecord, part: PartV2) -> RecordV2 {
        let counts = CountsV2 {
            held: record.holders.len() as u64,
            waiting: record.queue.len() as u64,
            ended: record.ended.len() as u64,
            history: record.history.len() as u64,
        };
        let NameRecord { limit, last_grant, delay_until, .. } = *record;
        RecordV2 { name: name.clone(), limit, last_grant, delay_until, counts, part }
    }
}

/// Collects the parts of one name.
#[derive(Debug, PartialEq)]
pub(super) struct RecordBuilder {
    pub name: LeaseName,
    pub limit: u32,
    pub last_grant: u64,
    pub delay_until: Option<ClusterMs>,
    counts: CountsV2,
    pub items: PartV2,
    owners: Vec<(HolderId, AccessName)>,
}

impl From<RecordV1> for RecordBuilder {
    fn from(record: RecordV1) -> RecordBuilder {
        let RecordV1 { name, limit, last_grant, delay_until, held, waiting, ended, history } = record;
        let held = held.into_iter().map(GrantV2::from).collect();
        let waiting = waiting.into_iter().map(QueueEntryV2::from).collect();
        let ended = ended.into_iter().map(EndedV2::from).collect();
        let items = PartV2 { held, waiting, ended, history };
        RecordBuilder { name, limit, last_grant, delay_until, counts: items.counts(), items, owners: Vec::new() }
    }
}

impl From<RecordV2> for RecordBuilder {
    fn from(record: RecordV2) -> RecordBuilder {
        let RecordV2 { name, limit, last_grant, delay_until, counts, part } = record;
        RecordBuilder { name, limit, last_grant, delay_until, counts, items: part, owners: Vec::new() }
    }
}

impl RecordBuilder {
    /// Adds the next part.
    pub fn extend(&mut self, part: PartV2) {
        self.items.held.extend(part.held);
        self.items.waiting.extend(part.waiting);
        self.items.ended.extend(part.ended);
        self.items.history.extend(part.history);
    }

    pub fn extend_owners(&mut self, owners: Vec<(HolderId, AccessName)>) {
        self.owners.extend(owners);
    }

    /// Builds the record. Encoding the record again must give the same items: none repeated, missing or out of order.
    pub fn build(self) -> Result<NameRecord, BadSnapshot> {
        if self.items.counts() != self.counts {
            return Err(BadSnapshot::Incomplete(self.name));
        }
        let record = self.record();
        if record.holders.len() > record.limit as usize {
            return Err(BadSnapshot::TooManyHolders(self.name));
        }
        if !self.matches(&record) {
            return Err(BadSnapshot::Impossible(self.name));
        }
        Ok(record)
    }

    fn record(&self) -> NameRecord {
        let mut record = NameRecord::new(self.limit);
        record.last_grant = self.last_grant;
        record.delay_until = self.delay_until;
        for held in self.items.held.iter().cloned() {
            record.holders.insert(held.into_grant());
        }
        for waiter in self.items.waiting.iter().cloned() {
            record.queue.insert(waiter.ticket, waiter.into_entry());
        }
        for ended in self.items.ended.iter().cloned() {
            record.ended.insert(ended.into_ended());
        }
        let events = self.items.history.iter().cloned().map(EventV1::into_event).collect();
        record.history = NameHistory::of(events, &record.holders);
        for (holder, owner) in self.owners.iter().cloned() {
            record.owners.insert(holder, owner);
        }
        record.counted_live = record.is_live();
        record
    }

    fn matches(&self, record: &NameRecord) -> bool {
        let events = record.history.events(&record.holders);
        let owners = record.owners.iter().map(|(holder, owner)| (holder.clone(), owner.clone()));
        self.owners.iter().cloned().eq(owners)
            && self.owners.iter().all(|(holder, _)| record.has(holder))
            && self.items.held.iter().cloned().eq(record.holders.iter().map(GrantV2::new))
            && self
                .items
                .waiting
                .iter()
                .cloned()
                .eq(record.queue.iter().map(|(ticket, at)| QueueEntryV2::new(ticket, at)))
            && self.items.ended.iter().cloned().eq(record.ended.iter().map(EndedV2::new))
            && self.items.history.iter().cloned().eq(events.iter().map(EventV1::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::holders::Grant;
    use crate::lease::queue::{QueueEntry, WaitRequest};
    use crate::lease::snapshot::stored::GrantV1;
    use crate::lease::{Change, LeaseState};
    use crate::storage::codec;
    use crate::token::FencingToken;
    use crate::types::{HolderId, MAX_TTL_MS, Ttl};

    /// Encoded size in the format of the disk store.
    fn encoded(value: impl serde::Serialize) -> usize {
        codec::encode(&value).len()
    }

    /// Items with the largest numbers and 32 entries of metadata, each with its encoded size.
    fn largest() -> [(RecordItem, usize); 5] {
        let metadata = (0..32).map(|number| (format!("key-{number:02}"), "v".repeat(122))).collect();
        let metadata = Metadata::new(metadata).expect("metadata within its bounds");
        let holder = HolderId::new("h".repeat(200)).expect("a valid holder");
        let (token, ttl) =
            (FencingToken { term: u64::MAX, index: u64::MAX }, Ttl::millis(MAX_TTL_MS).expect("the longest ttl"));
        let grant = Grant {
            holder: holder.clone(),
            token,
            ttl,
            deadline: Some(u64::MAX),
            granted_at: u64::MAX,
            granted_wall_ms: u64::MAX,
            renewed_at: u64::MAX,
            renewed_wall_ms: u64::MAX,
            renewals: u64::MAX,
            lock_delay_ms: u64::MAX,
            metadata: metadata.clone(),
            metadata_version: u64::MAX,
        };
        let waiting = QueueEntry {
            request: WaitRequest { holder: holder.clone(), ttl, lock_delay_ms: u64::MAX, metadata },
            since: u64::MAX,
            since_wall_ms: u64::MAX,
            until: u64::MAX,
            confirmed_until: u64::MAX,
            confirmed_term: u64::MAX,
        };
        let (held, waiting) = (GrantV2::new(&grant), QueueEntryV2::new(u64::MAX, &waiting));
        let ended = EndedV2 {
            grant: GrantV2 { grant: GrantV1 { lock_delay_ms: 0, ..held.grant.clone() }, metadata_version: 0 },
            limit: u32::MAX,
            state: LeaseState::Expired,
            at: u64::MAX,
            index: u64::MAX,
            part: u32::MAX,
        };
        let event = |change| EventV1 {
            index: u64::MAX,
            part: u32::MAX,
            holder: holder.clone(),
            token,
            change,
            at: u64::MAX,
            wall_ms: u64::MAX,
        };
        let revoked = event(Change::Revoked { reason: "r".repeat(500) });
        let handed_over = event(Change::HandedOver { to: holder.clone() });
        let (bytes_held, bytes_waiting, bytes_ended) = (encoded(&held), encoded(&waiting), encoded(&ended));
        let (bytes_revoked, bytes_handed_over) = (encoded(&revoked), encoded(&handed_over));
        [
            (RecordItem::Held(held), bytes_held),
            (RecordItem::Waiting(waiting), bytes_waiting),
            (RecordItem::Ended(ended), bytes_ended),
            (RecordItem::Event(revoked), bytes_revoked),
            (RecordItem::Event(handed_over), bytes_handed_over),
        ]
    }

    #[test]
    fn item_size_is_an_upper_bound() {
        for (number, (item, encoded)) in largest().into_iter().enumerate() {
            let most = encoded + NUMBERS_BYTES + 32 * ENTRY_BYTES;
            assert!((encoded..most).contains(&item.bytes()), "item {number}: {encoded} bytes, bound {}", item.bytes());
        }
    }
}
