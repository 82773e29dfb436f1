//! A fenced resource outside takes no write from a holder that was overtaken, however late it comes and whatever the
//! clocks do.

use std::collections::BTreeMap;

use crate::register::Write;
use crate::run::Evidence;

pub fn check(run: &Evidence) -> Result<(), String> {
    let mut highest = BTreeMap::new();
    for write in run.writes.iter().filter(|write| write.taken) {
        let before = highest.insert(&write.name, write.token);
        if let Some(before) = before.filter(|before| *before > write.token) {
            return Err(format!("{write:?} was taken behind {before:?}"));
        }
    }
    Ok(())
}

/// Writes that came when their lease was over: what the fence is for. Those that were taken came before anything newer.
pub fn late(run: &Evidence) -> (u64, u64) {
    let is_late = |write: &&Write| {
        let behind = run.ledger.entries.partition_point(|entry| entry.at <= write.at);
        let held = behind.checked_sub(1).map(|last| run.ledger.entries[last].held(&write.name)).unwrap_or_default();
        !held.iter().any(|lease| lease.token == write.token)
    };
    let late: Vec<_> = run.writes.iter().filter(is_late).collect();
    let refused = late.iter().filter(|write| !write.taken).count() as u64;
    (late.len() as u64 - refused, refused)
}
