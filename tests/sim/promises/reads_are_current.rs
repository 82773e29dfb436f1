//! A read returns no state older than one that a client has already seen. Its answer equals the log at that index.

use crate::history::{Ended, Operation};
use crate::run::Evidence;

pub fn check(run: &Evidence) -> Result<(), String> {
    let mut seen: Vec<_> =
        run.history.operations.iter().filter_map(|done| Some((done.returned?, index(done)?))).collect();
    seen.sort();
    for read in &run.history.operations {
        let Ended::Saw(held, at) = &read.ended else { continue };
        let before = seen[..seen.partition_point(|(returned, _)| *returned < read.invoked)].iter();
        if let Some((when, newer)) = before.max_by_key(|(_, index)| index).filter(|(_, index)| index > at) {
            return Err(format!("{read:?}, but a client had seen index {newer} at {when:?}"));
        }
        // An index that is missing in the ledger is before its first entry.
        if run.ledger.entry(*at).is_some() && run.ledger.held_at(*at, &read.name) != *held {
            return Err(format!("{read:?}, but the log has {:?}", run.ledger.held_at(*at, &read.name)));
        }
    }
    Ok(())
}

/// The log index that an answer includes.
fn index(operation: &Operation) -> Option<u64> {
    match &operation.ended {
        Ended::Held(token, _) => Some(token.index()),
        Ended::Saw(_, index) => Some(*index),
        _ => None,
    }
}
