//! What is stored of a machine, and a machine rebuilt from it.
//!
//! A snapshot is a [`SnapshotHeader`] and then one [`StoredRecord`] for each name, in the order of names. Replicas
//! with the same state make the same bytes. **The types here are on disks and on the wire: their fields are frozen**,
//! in number, order and type (the same holds for what they contain: tokens, names, `Change`, `Limits`). A change of
//! shape is a new variant of [`StoredRecord`] at the end, or a new header version; old ones stay readable.
//!
//! Derived state (what is due, what is forgotten next, the counts) is not stored.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::agenda::What;
use super::ended::Ended;
use super::history::{Event, History};
use super::holders::Grant;
use super::machine::Fading;
use super::queue::{Ask, Place};
use super::record::Record;
use super::{Change, LeaseState, Limits, Machine};
use crate::token::FencingToken;
use crate::types::{ClusterMs, HolderId, LeaseName, Metadata, Ttl};

/// The version of [`SnapshotHeader`] that this code writes and reads.
const HEADER_VERSION: u32 = 1;

/// What a snapshot begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    pub version: u32,
    pub now: ClusterMs,
    /// Position of the last entry in it.
    pub applied: Option<FencingToken>,
    pub limits: Limits,
    /// How many records follow.
    pub records: u64,
}

/// One name as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredRecord {
    V1(RecordV1),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordV1 {
    name: LeaseName,
    limit: u32,
    last_grant: u64,
    delay_until: Option<ClusterMs>,
    held: Vec<GrantV1>,
    waiting: Vec<PlaceV1>,
    ended: Vec<EndedV1>,
    history: Vec<EventV1>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GrantV1 {
    holder: HolderId,
    token: FencingToken,
    ttl: Ttl,
    deadline: Option<ClusterMs>,
    granted_at: ClusterMs,
    granted_wall_ms: u64,
    renewed_at: ClusterMs,
    renewed_wall_ms: u64,
    renewals: u64,
    lock_delay_ms: u64,
    metadata: Metadata,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PlaceV1 {
    ticket: u64,
    holder: HolderId,
    ttl: Ttl,
    lock_delay_ms: u64,
    metadata: Metadata,
    since: ClusterMs,
    since_wall_ms: u64,
    until: ClusterMs,
    patience_until: ClusterMs,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EndedV1 {
    grant: GrantV1,
    limit: u32,
    state: LeaseState,
    at: ClusterMs,
    index: u64,
    part: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EventV1 {
    index: u64,
    part: u32,
    holder: HolderId,
    token: FencingToken,
    change: Change,
    at: ClusterMs,
    wall_ms: u64,
}

impl Machine {
    pub fn header(&self) -> SnapshotHeader {
        SnapshotHeader {
            version: HEADER_VERSION,
            now: self.now,
            applied: self.applied,
            limits: self.limits,
            records: self.records.len() as u64,
        }
    }

    /// Every name, in order. Take a clone of the machine first, and applies go on beside the encoding.
    pub fn records(&self) -> impl Iterator<Item = StoredRecord> {
        self.records.iter().map(|(name, record)| StoredRecord::V1(RecordV1::new(name, record)))
    }

    /// The machine that a snapshot was taken of.
    pub fn from_records(
        header: SnapshotHeader,
        records: impl IntoIterator<Item = StoredRecord>,
    ) -> Result<Machine, BadSnapshot> {
        let mut rebuild = Rebuild::new(header)?;
        records.into_iter().try_for_each(|record| rebuild.push(record))?;
        rebuild.finish()
    }
}

/// A machine that is being rebuilt, record by record: for a snapshot that arrives in pieces.
#[derive(Debug)]
pub struct Rebuild {
    machine: Machine,
    expected: u64,
}

impl Rebuild {
    pub fn new(header: SnapshotHeader) -> Result<Rebuild, BadSnapshot> {
        if header.version != HEADER_VERSION {
            return Err(BadSnapshot::Version(header.version));
        }
        let mut machine = Machine::new(header.limits);
        machine.now = header.now;
        machine.applied = header.applied;
        Ok(Rebuild { machine, expected: header.records })
    }

    pub fn push(&mut self, record: StoredRecord) -> Result<(), BadSnapshot> {
        let StoredRecord::V1(stored) = record;
        let name = stored.name.clone();
        if self.machine.records.get_max().is_some_and(|(last, _)| *last >= name) {
            return Err(BadSnapshot::Order(name));
        }
        let record = stored.clone().into_record()?;
        let applied = self.machine.applied.map_or(0, FencingToken::as_u64);
        let last_held = record.holders.iter().map(|grant| grant.token.as_u64()).max().unwrap_or_default();
        // What does not come back as it was is in doubt: a holder or a place twice, or out of order.
        if record.last_grant > applied || last_held > record.last_grant || RecordV1::new(&name, &record) != stored {
            return Err(BadSnapshot::Impossible(name));
        }
        self.machine.index(&name, &record);
        self.machine.records.insert(name, Arc::new(record));
        Ok(())
    }

    pub fn finish(self) -> Result<Machine, BadSnapshot> {
        let found = self.machine.records.len() as u64;
        if found != self.expected {
            return Err(BadSnapshot::Count { expected: self.expected, found });
        }
        Ok(self.machine)
    }
}

impl Machine {
    /// Derives from one record what applying the entries had derived.
    fn index(&mut self, name: &LeaseName, record: &Record) {
        for grant in record.holders.iter() {
            if let Some(at) = grant.deadline {
                self.agenda.add(at, name, What::Lapse(grant.token.as_u64()));
            }
        }
        for (ticket, place) in record.queue.iter() {
            self.agenda.add(place.due(), name, What::WaitEnds(ticket));
        }
        if let Some(at) = record.delay_until {
            self.agenda.add(at, name, What::DelayEnds);
        }
        if record.has_turn() {
            // Put off by the last entry, since every entry sees to the ones before.
            self.agenda.add(self.now, name, What::Turn);
        }
        for ended in record.ended.iter() {
            let fading = Fading { at: ended.at, name: name.clone(), token: ended.grant.token.as_u64() };
            self.fading.insert((ended.index, ended.part), fading);
        }
        self.counts.held += record.holders.len() as u64;
        self.counts.waiting += record.queue.len() as u64;
        self.counts.delayed += record.delay_until.is_some() as u64;
        self.counts.ended += record.ended.len() as u64;
        self.live += record.counted_live as u64;
    }
}

impl RecordV1 {
    fn new(name: &LeaseName, record: &Record) -> RecordV1 {
        RecordV1 {
            name: name.clone(),
            limit: record.limit,
            last_grant: record.last_grant,
            delay_until: record.delay_until,
            held: record.holders.iter().map(GrantV1::new).collect(),
            waiting: record.queue.iter().map(|(ticket, place)| PlaceV1::new(ticket, place)).collect(),
            ended: record.ended.iter().map(EndedV1::new).collect(),
            history: record.history.events(&record.holders).iter().map(EventV1::new).collect(),
        }
    }

    fn into_record(self) -> Result<Record, BadSnapshot> {
        let mut record = Record::new(self.limit);
        record.last_grant = self.last_grant;
        record.delay_until = self.delay_until;
        for held in self.held {
            record.holders.insert(held.into_grant());
        }
        for place in self.waiting {
            record.queue.put(place.ticket, place.into_place());
        }
        for ended in self.ended {
            record.ended.insert(ended.into_ended());
        }
        record.history = History::of(self.history.into_iter().map(EventV1::into_event).collect(), &record.holders);
        record.counted_live = record.is_live();
        if record.holders.len() > record.limit as usize {
            return Err(BadSnapshot::TooManyHolders(self.name));
        }
        Ok(record)
    }
}

impl GrantV1 {
    fn new(grant: &Grant) -> GrantV1 {
        let Grant {
            holder,
            token,
            ttl,
            deadline,
            granted_at,
            granted_wall_ms,
            renewed_at,
            renewed_wall_ms,
            renewals,
            lock_delay_ms,
            metadata,
        } = grant.clone();
        GrantV1 {
            holder,
            token,
            ttl,
            deadline,
            granted_at,
            granted_wall_ms,
            renewed_at,
            renewed_wall_ms,
            renewals,
            lock_delay_ms,
            metadata,
        }
    }

    fn into_grant(self) -> Grant {
        Grant {
            holder: self.holder,
            token: self.token,
            ttl: self.ttl,
            deadline: self.deadline,
            granted_at: self.granted_at,
            granted_wall_ms: self.granted_wall_ms,
            renewed_at: self.renewed_at,
            renewed_wall_ms: self.renewed_wall_ms,
            renewals: self.renewals,
            lock_delay_ms: self.lock_delay_ms,
            metadata: self.metadata,
        }
    }
}

impl PlaceV1 {
    fn new(ticket: u64, place: &Place) -> PlaceV1 {
        let Ask { holder, ttl, lock_delay_ms, metadata } = place.ask.clone();
        let Place { since, since_wall_ms, until, patience_until, .. } = *place;
        PlaceV1 { ticket, holder, ttl, lock_delay_ms, metadata, since, since_wall_ms, until, patience_until }
    }

    fn into_place(self) -> Place {
        let PlaceV1 { holder, ttl, lock_delay_ms, metadata, since, since_wall_ms, until, patience_until, .. } = self;
        Place { ask: Ask { holder, ttl, lock_delay_ms, metadata }, since, since_wall_ms, until, patience_until }
    }
}

impl EndedV1 {
    fn new(ended: &Ended) -> EndedV1 {
        let Ended { ref grant, limit, state, at, index, part } = *ended;
        EndedV1 { grant: GrantV1::new(grant), limit, state, at, index, part }
    }

    fn into_ended(self) -> Ended {
        let EndedV1 { grant, limit, state, at, index, part } = self;
        Ended { grant: grant.into_grant(), limit, state, at, index, part }
    }
}

impl EventV1 {
    fn new(event: &Event) -> EventV1 {
        let Event { index, part, holder, token, change, at, wall_ms } = event.clone();
        EventV1 { index, part, holder, token, change, at, wall_ms }
    }

    fn into_event(self) -> Event {
        let EventV1 { index, part, holder, token, change, at, wall_ms } = self;
        Event { index, part, holder, token, change, at, wall_ms }
    }
}

/// A snapshot that no machine can have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSnapshot {
    #[error("snapshot header version {0} is unknown; this program reads version {HEADER_VERSION}")]
    Version(u32),
    #[error("snapshot record {0} is out of order")]
    Order(LeaseName),
    #[error("snapshot has {found} records; its header says {expected}")]
    Count { expected: u64, found: u64 },
    #[error("snapshot record {0} has more holders than its limit")]
    TooManyHolders(LeaseName),
    #[error("snapshot record {0} has grants of its future, or one holder or place twice")]
    Impossible(LeaseName),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Acquire, Batch, Command, Stamp};

    fn acquire(name: String) -> Command {
        Command::Acquire(Acquire {
            name: LeaseName::new(name).expect("a valid name"),
            holder: HolderId::new("holder").expect("a valid holder"),
            ttl: Ttl::Finite(60_000),
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: Metadata::default(),
        })
    }

    fn machine_of(leases: u64) -> Machine {
        let mut machine = Machine::new(Limits::default());
        let commands = (0..leases).map(|n| acquire(format!("lease-{n}"))).collect();
        machine.apply(FencingToken { term: 1, index: 1 }, &Batch { stamp: Stamp::default(), commands });
        machine
    }

    #[test]
    fn a_view_of_100_000_leases_shares_them_and_stands_still() {
        let mut machine = machine_of(100_000);
        let view = machine.clone();
        assert!(view.records.ptr_eq(&machine.records), "taking a view copies no record");
        assert!(view.fading.ptr_eq(&machine.fading), "nor an index");
        let lapse_all = Batch { stamp: Stamp { now: 60_000, wall_ms: 0 }, commands: vec![acquire("new".to_string())] };
        machine.apply(FencingToken { term: 1, index: 2 }, &lapse_all);
        assert_eq!((machine.counts().held, machine.now()), (1, 60_000));
        assert_eq!((view.counts().held, view.now()), (100_000, 0));
        assert_eq!(view.records().count(), 100_000);
    }

    #[test]
    fn a_snapshot_that_no_machine_wrote_is_refused() {
        let machine = machine_of(2);
        let records: Vec<StoredRecord> = machine.records().collect();
        let rebuild = |header: SnapshotHeader, records: Vec<StoredRecord>| {
            Machine::from_records(header, records).expect_err("it is refused")
        };
        let swapped = vec![records[1].clone(), records[0].clone()];
        assert!(matches!(rebuild(machine.header(), swapped), BadSnapshot::Order(_)));
        let short = records[..1].to_vec();
        assert_eq!(rebuild(machine.header(), short), BadSnapshot::Count { expected: 2, found: 1 });
        let old = SnapshotHeader { applied: None, ..machine.header() };
        assert!(matches!(rebuild(old, records.clone()), BadSnapshot::Impossible(_)), "granted after its last entry");
        let StoredRecord::V1(mut twice) = records[0].clone();
        (twice.limit, twice.held) = (2, [twice.held.clone(), twice.held].concat());
        assert!(matches!(rebuild(machine.header(), vec![StoredRecord::V1(twice)]), BadSnapshot::Impossible(_)));
        let newer = SnapshotHeader { version: 2, ..machine.header() };
        assert_eq!(rebuild(newer, records), BadSnapshot::Version(2));
    }
}
