//! A read never returns a state older than one that any client has already seen, and tells that state truly.

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
            return Err(format!("{read:?}, and {newer} was seen at {when:?}"));
        }
        // What no replica told the ledger of is from before the first entry.
        if run.ledger.entry(*at).is_some() && run.ledger.held_at(*at, &read.name) != *held {
            return Err(format!("{read:?}, and the log says {:?}", run.ledger.held_at(*at, &read.name)));
        }
    }
    Ok(())
}

/// Up to where an answer shows the log.
fn index(operation: &Operation) -> Option<u64> {
    match &operation.ended {
        Ended::Held(token, _) => Some(token.index),
        Ended::Saw(_, index) => Some(*index),
        _ => None,
    }
}
