//! A fenced resource accepts no write from a former holder after a write of a newer one, at any delay and clock rate.

use std::collections::BTreeMap;

use crate::register::Write;
use crate::run::Evidence;

pub fn check(run: &Evidence) -> Result<(), String> {
    let mut highest = BTreeMap::new();
    for write in run.writes.iter().filter(|write| write.accepted) {
        let before = highest.insert(&write.name, write.token);
        if let Some(before) = before.filter(|before| *before > write.token) {
            return Err(format!("the resource accepted {write:?} after {before:?}"));
        }
    }
    Ok(())
}

/// Counts the writes that arrived after their lease ended: accepted, refused.
///
/// The resource accepts such a write if no newer one arrived before it.
pub fn late_writes(run: &Evidence) -> (u64, u64) {
    let is_late = |write: &&Write| {
        let count = run.ledger.entries.partition_point(|entry| entry.at <= write.at);
        let held = count.checked_sub(1).map(|last| run.ledger.entries[last].held(&write.name)).unwrap_or_default();
        !held.iter().any(|lease| lease.token == write.token)
    };
    let late: Vec<_> = run.writes.iter().filter(is_late).collect();
    let refused = late.iter().filter(|write| !write.accepted).count() as u64;
    (late.len() as u64 - refused, refused)
}
