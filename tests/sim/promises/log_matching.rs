//! Where two logs have an entry of the same index and term, they are the same up to it.

use std::collections::BTreeMap;

use tenure::storage::{LogRecord, Storage};

use crate::world::{World, lock};

pub fn check(world: &World) {
    let applied = lock(&world.ledger).last_index();
    let mut known: BTreeMap<u64, (u64, LogRecord)> = BTreeMap::new();
    for id in world.ids() {
        let disk = lock(&world.cluster).disk(id);
        let from = disk.log_bounds().0.map_or(0, |floor| floor.index + 1);
        let records = disk.read_log(from, applied + 1, usize::MAX).unwrap_or_default();
        for record in records {
            let (first, same) = known.entry(record.position.index).or_insert_with(|| (id, record.clone()));
            if *same != record {
                let how = format!("nodes {first} and {id} have {:?} and {:?}", same.position, record.position);
                return world.break_promise("log_matching", how);
            }
        }
    }
}
