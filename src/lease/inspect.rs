//! Reads and constructors that only tests use.

use serde::{Deserialize, Serialize};

use super::record::NameRecord;
use super::{BadSnapshot, HolderLease, Machine, Rebuild, SnapshotHeader, StoredRecord, Waiter};
use crate::types::{ClusterMs, LeaseName};

/// The state of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Its holders in token order: at most one for a plain lease.
    pub held: Vec<HolderLease>,
    /// Its ended grants that the machine remembers, in token order.
    pub ended: Vec<HolderLease>,
    /// The last millisecond of the lock delay, in cluster time.
    pub delay_until: Option<ClusterMs>,
    pub waiters: u32,
}

impl Machine {
    /// The state of one name; `None` if the machine remembers nothing of it.
    pub fn get(&self, name: &LeaseName) -> Option<LeaseView> {
        self.records.get(name).map(|record| LeaseView {
            held: held(name, record),
            ended: record.ended.iter().map(|ended| record.ended_lease(name, ended)).collect(),
            delay_until: record.delay_until,
            waiters: record.queue.len() as u32,
        })
    }

    /// The waiters in the order of the queue.
    pub fn queue(&self, name: &LeaseName) -> Vec<Waiter> {
        self.next_waiters(name, usize::MAX).0
    }

    /// Rebuilds a machine from a snapshot.
    ///
    /// # Errors
    ///
    /// [`BadSnapshot`] if no machine can have written this snapshot.
    pub fn from_records(
        header: SnapshotHeader,
        records: impl IntoIterator<Item = StoredRecord>,
    ) -> Result<Machine, BadSnapshot> {
        let mut rebuild = Rebuild::new(header)?;
        records.into_iter().try_for_each(|record| rebuild.push(record))?;
        rebuild.finish()
    }
}

fn held(name: &LeaseName, record: &NameRecord) -> Vec<HolderLease> {
    record.holders.iter().map(|grant| record.lease(name, grant)).collect()
}
