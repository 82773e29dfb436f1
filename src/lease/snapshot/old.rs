//! Timer version 1 wrote: each name in one record.

use super::parts::Whole;
use super::stored::{EndedV1, EndedV2, PlaceV1, PlaceV2, RecordV1};
use super::{SnapshotHeader, SnapshotHeaderV1, StoredRecord};
use crate::lease::Machine;

/// A snapshot of this machine as version 1 wrote it.
pub(crate) fn snapshot(machine: &Machine) -> (SnapshotHeaderV1, Vec<StoredRecord>) {
    let SnapshotHeader { now, applied, limits, names, .. } = machine.header();
    let header = SnapshotHeaderV1 { version: 1, now, applied, limits, records: names };
    let mut wholes: Vec<Whole> = Vec::new();
    for record in machine.records() {
        match record {
            StoredRecord::V1(_) => unreachable!("it is not written any more"),
            StoredRecord::V2(record) => wholes.push(record.into()),
            StoredRecord::More(more) => wholes.last_mut().expect("a name comes first").extend(more.part),
        }
    }
    (header, wholes.into_iter().map(|whole| StoredRecord::V1(record(whole))).collect())
}

fn record(whole: Whole) -> RecordV1 {
    let Whole { name, limit, last_grant, delay_until, items, .. } = whole;
    let waiting = items.waiting.into_iter().map(place).collect();
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

fn place(place: PlaceV2) -> PlaceV1 {
    let PlaceV2 { ticket, holder, ttl, lock_delay_ms, metadata, since, since_wall_ms, until, patience_until, .. } =
        place;
    PlaceV1 { ticket, holder, ttl, lock_delay_ms, metadata, since, since_wall_ms, until, patience_until }
}

/// Puts back ended grants that were forgotten since an older snapshot of the same name.
pub(crate) fn put_back_ended(record: &mut StoredRecord, older: &StoredRecord) {
    if let (StoredRecord::V1(record), StoredRecord::V1(older)) = (record, older) {
        record.ended.clone_from(&older.ended);
    }
}
