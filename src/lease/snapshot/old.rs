//! Writes snapshots of version 1, with one record per name, for tests.

use super::parts::RecordBuilder;
use super::stored::{EndedV1, EndedV2, QueueEntryV1, QueueEntryV2, RecordV1};
use super::{SnapshotHeader, SnapshotHeaderV1, StoredRecord};
use crate::lease::Machine;

/// A snapshot of this machine in version 1.
pub(crate) fn snapshot(machine: &Machine) -> (SnapshotHeaderV1, Vec<StoredRecord>) {
    let SnapshotHeader { now, applied, limits, names, .. } = machine.header();
    let header = SnapshotHeaderV1 { version: 1, now, applied, limits, records: names };
    let mut builders: Vec<RecordBuilder> = Vec::new();
    for record in machine.records() {
        match record {
            StoredRecord::V1(_) => unreachable!("this build writes no V1 records"),
            StoredRecord::V2(record) => builders.push(record.into()),
            StoredRecord::Owners(_) => unreachable!("the leases of these tests have no owners"),
            StoredRecord::More(more) => builders.last_mut().expect("a V2 record precedes its parts").extend(more.part),
        }
    }
    (header, builders.into_iter().map(|builder| StoredRecord::V1(record(builder))).collect())
}

fn record(builder: RecordBuilder) -> RecordV1 {
    let RecordBuilder { name, limit, last_grant, delay_until, items, .. } = builder;
    let waiting = items.waiting.into_iter().map(waiter).collect();
    RecordV1 {
        name,
        limit,
        last_grant,
        delay_until,
        held: items.held.into_iter().map(|held| held.grant).collect(),
        waiting,
        ended: items.ended.into_iter().map(ended).collect(),
        history: items.history,
    }
}

fn ended(ended: EndedV2) -> EndedV1 {
    let EndedV2 { grant, limit, state, at, index, part } = ended;
    EndedV1 { grant: grant.grant, limit, state, at, index, part }
}

fn waiter(waiter: QueueEntryV2) -> QueueEntryV1 {
    let QueueEntryV2 {
        ticket, holder, ttl, lock_delay_ms, metadata, since, since_wall_ms, until, confirmed_until, ..
    } = waiter;
    QueueEntryV1 { ticket, holder, ttl, lock_delay_ms, metadata, since, since_wall_ms, until, confirmed_until }
}

/// Restores the ended grants of an older snapshot of the same name.
pub(crate) fn put_back_ended(record: &mut StoredRecord, older: &StoredRecord) {
    if let (StoredRecord::V1(record), StoredRecord::V1(older)) = (record, older) {
        record.ended.clone_from(&older.ended);
    }
}
