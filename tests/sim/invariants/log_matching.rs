//! A committed entry is identical in all logs that contain it.

use std::collections::BTreeMap;

use tenure::storage::{LogRecord, Storage};
use tenure::types::NodeId;

use crate::world::{World, lock};

pub fn check(world: &World) {
    let applied = lock(&world.ledger).last_index();
    let logs = world.ids().map(|id| {
        let disk = lock(&world.cluster).disk(id);
        let from = disk.log_bounds().0.map_or(0, |floor| floor.index + 1);
        (id, disk.read_log(from, applied + 1, usize::MAX).unwrap_or_default())
    });
    let usable_nodes = world.usable_nodes();
    if let Err(how) = compare(logs.filter(|(id, _)| usable_nodes.contains(id))) {
        world.report_violation("log_matching", how);
    }
}

/// Compares the committed parts of logs.
pub fn compare(logs: impl Iterator<Item = (NodeId, Vec<LogRecord>)>) -> Result<(), String> {
    let mut known: BTreeMap<u64, (NodeId, LogRecord)> = BTreeMap::new();
    for (id, record) in logs.flat_map(|(id, log)| log.into_iter().map(move |record| (id, record))) {
        let (first, same) = known.entry(record.position.index).or_insert_with(|| (id, record.clone()));
        if *same != record {
            return Err(format!("nodes {first} and {id} have {:?} and {:?}", same.position, record.position));
        }
    }
    Ok(())
}
