//! Timer is stored of a machine, and a machine rebuilt from it.
//!
//! A snapshot is a [`SnapshotHeader`] and then the [`StoredRecord`]s of each name, in the order of names. A name that
//! keeps much takes several, none of them larger than [`PART_BYTES`]. Replicas with the same state make the same bytes.
//!
//! Derived state (what is due, what is forgotten next, the counts) is not stored.

#[cfg(test)]
pub(crate) mod old;
mod parts;
mod stored;

use std::sync::Arc;

use super::Machine;
use super::machine::Tombstone;
use super::record::Record;
use super::timers::Timer;
use crate::token::FencingToken;
use crate::types::LeaseName;
pub use parts::PART_BYTES;
use parts::RecordBuilder;
use stored::HEADER_VERSION;
pub use stored::{SnapshotHeader, SnapshotHeaderV1, StoredRecord};

impl Machine {
    pub fn header(&self) -> SnapshotHeader {
        SnapshotHeader {
            version: HEADER_VERSION,
            now: self.now,
            applied: self.applied,
            limits: self.limits,
            names: self.records.len() as u64,
            term_began: self.term_began,
        }
    }

    /// Every name, in order. Take a clone of the machine first, and applies go on beside the encoding.
    pub fn records(&self) -> impl Iterator<Item = StoredRecord> {
        self.records.iter().flat_map(|(name, record)| parts::split(name, record))
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
    found: u64,
    last: Option<LeaseName>,
    /// The name whose parts are arriving.
    pending: Option<RecordBuilder>,
    keeps: bool,
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
        Ok(Rebuild { machine, expected: header.names, found: 0, last: None, pending: None, keeps: true })
    }

    /// Checks the records that follow in the same way, and keeps none of them: the machine has no names in the end.
    pub fn keep_nothing(&mut self) {
        self.keeps = false;
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

    /// The parts of the last name are all there.
    fn complete(&mut self) -> Result<(), BadSnapshot> {
        let Some(builder) = self.pending.take() else { return Ok(()) };
        let name = builder.name.clone();
        let record = builder.build()?;
        let applied = self.machine.applied.map_or(0, FencingToken::as_u64);
        let last_held = record.holders.iter().map(|grant| grant.token.as_u64()).max().unwrap_or_default();
        if record.last_grant > applied || last_held > record.last_grant {
            return Err(BadSnapshot::Impossible(name));
        }
        if self.keeps {
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
    /// Derives from one record what applying the entries had derived.
    fn index(&mut self, name: &LeaseName, record: &Record) {
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
        // Put off by the last entry, since every entry sees to the ones before; or not confirmed yet.
        self.timers.set_turn(self.now, name, self.turn(record));
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
    #[error("snapshot header version {0} is unknown; this program reads versions 1 to {HEADER_VERSION}")]
    Version(u32),
    #[error("snapshot record {0} is out of order")]
    Order(LeaseName),
    #[error("snapshot has {found} names; its header says {expected}")]
    Count { expected: u64, found: u64 },
    #[error("snapshot record {0} has more holders than its limit")]
    TooManyHolders(LeaseName),
    #[error("snapshot record {0} has more or fewer parts than it says")]
    Incomplete(LeaseName),
    #[error("snapshot record {0} has grants of its future, or one holder or place twice")]
    Impossible(LeaseName),
}

#[cfg(test)]
mod tests;
