//! The stored form of a machine, and a machine rebuilt from it.
//!
//! A snapshot is a [`SnapshotHeader`] followed by the [`StoredRecord`]s of each name, in the order of names. A large
//! name takes several records, each with at most [`PART_BYTES`] of items. Replicas with the same state make the same
//! bytes.
//!
//! A snapshot does not store derived state: timers, tombstones and counts.

#[cfg(test)]
pub(crate) mod old;
mod parts;
mod stored;

use std::sync::Arc;

use super::Machine;
use super::machine::Tombstone;
use super::record::NameRecord;
use super::timers::Timer;
use crate::token::FencingToken;
use crate::types::LeaseName;
#[cfg(any(test, feature = "testing"))]
pub use parts::PART_BYTES;
use parts::RecordBuilder;
use stored::{HEADER_VERSION, OwnersV1};
pub use stored::{SnapshotHeader, SnapshotHeaderV1, SnapshotHeaderV2, StoredRecord};

impl Machine {
    pub fn header(&self) -> SnapshotHeader {
        SnapshotHeader {
            version: HEADER_VERSION,
            now: self.now,
            applied: self.applied,
            limits: self.limits,
            names: self.records.len() as u64,
            term_began: self.term_began,
            no_grants_until: self.no_grants_until,
        }
    }

    /// The records of all names, in order. Encode them from a clone of the machine, so that applies can continue.
    pub fn records(&self) -> impl Iterator<Item = StoredRecord> {
        self.records.iter().flat_map(|(name, record)| parts::split(name, record))
    }
}

/// Rebuilds a machine record by record, for a snapshot that arrives in chunks.
#[derive(Debug)]
pub struct Rebuild {
    machine: Machine,
    expected: u64,
    found: u64,
    last: Option<LeaseName>,
    /// The current name, until the next name or the end.
    pending: Option<RecordBuilder>,
    keeps_records: bool,
}

impl Rebuild {
    pub fn new(header: SnapshotHeader) -> Result<Rebuild, BadSnapshot> {
        if header.version != HEADER_VERSION {
            return Err(BadSnapshot::Version(header.version));
        }
        let mut machine = Machine::new();
        machine.now = header.now;
        machine.applied = header.applied;
        machine.limits = header.limits;
        machine.term_began = header.term_began;
        machine.no_grants_until = header.no_grants_until;
        Ok(Rebuild { machine, expected: header.names, found: 0, last: None, pending: None, keeps_records: true })
    }

    /// From now on only checks the records and discards them. The finished machine then has no names.
    pub fn keep_nothing(&mut self) {
        self.keeps_records = false;
    }

    pub fn push(&mut self, record: StoredRecord) -> Result<(), BadSnapshot> {
        match record {
            StoredRecord::V1(record) => self.begin(record.into()),
            StoredRecord::V2(record) => self.begin(record.into()),
            StoredRecord::More(more) => match &mut self.pending {
                Some(pending) if pending.name == more.name => {
                    pending.extend(more.part);
                    Ok(())
                }
                _ => Err(BadSnapshot::Order(more.name)),
            },
            StoredRecord::Owners(OwnersV1 { name, owners }) => match &mut self.pending {
                Some(pending) if pending.name == name => {
                    pending.extend_owners(owners);
                    Ok(())
                }
                _ => Err(BadSnapshot::Order(name)),
            },
        }
    }

    fn begin(&mut self, record: RecordBuilder) -> Result<(), BadSnapshot> {
        self.complete()?;
        if self.last.as_ref().is_some_and(|last| *last >= record.name) {
            return Err(BadSnapshot::Order(record.name));
        }
        self.last = Some(record.name.clone());
        self.found += 1;
        self.pending = Some(record);
        Ok(())
    }

    /// Checks and adds the current name after its last part.
    fn complete(&mut self) -> Result<(), BadSnapshot> {
        let Some(builder) = self.pending.take() else { return Ok(()) };
        let name = builder.name.clone();
        let record = builder.build()?;
        let applied = self.machine.applied.map_or(0, FencingToken::as_u64);
        let last_held = record.holders.iter().map(|grant| grant.token.as_u64()).max().unwrap_or_default();
        if record.last_grant > applied || last_held > record.last_grant {
            return Err(BadSnapshot::Impossible(name));
        }
        if self.keeps_records {
            self.machine.index(&name, &record);
            self.machine.records.insert(name, Arc::new(record));
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<Machine, BadSnapshot> {
        self.complete()?;
        let Rebuild { machine, expected, found, .. } = self;
        if found != expected {
            return Err(BadSnapshot::Count { expected, found });
        }
        Ok(machine)
    }
}

impl Machine {
    /// Derives the indexes and counts of one record, with the same result as applying the entries.
    fn index(&mut self, name: &LeaseName, record: &NameRecord) {
        for grant in record.holders.iter() {
            if let Some(at) = grant.deadline {
                self.timers.add(at, name, Timer::Expiry(grant.token.as_u64()));
            }
        }
        for (ticket, waiter) in record.queue.iter() {
            self.timers.add(waiter.deadline(), name, Timer::WaitEnds(ticket));
        }
        if let Some(at) = record.delay_until {
            self.timers.add(at, name, Timer::DelayEnds);
        }
        // A free slot with a waiter means one of two cases: the last entry deferred the grant, or the first waiter is
        // unconfirmed. No older grant is open, because each entry fires the due timers first.
        self.timers.set_promotion(self.now, name, self.promotion(record));
        for ended in record.ended.iter() {
            let tombstone = Tombstone { at: ended.at, name: name.clone(), token: ended.grant.token.as_u64() };
            self.tombstones.insert(ended.ended_at(), tombstone);
        }
        self.counts.held += record.holders.len() as u64;
        self.counts.waiting += record.queue.len() as u64;
        self.counts.delayed += record.delay_until.is_some() as u64;
        self.counts.ended += record.ended.len() as u64;
        self.ended_bytes += record.ended.bytes();
        self.live += record.counted_live as u64;
    }
}

/// A snapshot that no machine can have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSnapshot {
    #[error("unknown snapshot header version {0}: this build reads versions 1 to {HEADER_VERSION}")]
    Version(u32),
    #[error("snapshot record {0} is out of order: expected rising names, and the parts of a name together")]
    Order(LeaseName),
    #[error("snapshot has {found} names: expected {expected}, from its header")]
    Count { expected: u64, found: u64 },
    #[error("snapshot record {0} has more holders than its limit")]
    TooManyHolders(LeaseName),
    #[error("snapshot record {0} has more or fewer items than its first part declares")]
    Incomplete(LeaseName),
    #[error("snapshot record {0} has grants after its last entry, or a repeated or unordered item")]
    Impossible(LeaseName),
}

#[cfg(test)]
mod tests;
