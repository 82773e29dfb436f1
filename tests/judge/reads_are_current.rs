//! A read returns the state of the log at its index, and no index below one that a client saw before.

use super::claims::LeaseHistory;
use super::history::{Ended, Operation};
use super::transition::held;

/// Client histories of one lease: a read returns the holders by the log at its index.
pub fn check(history: &LeaseHistory) -> Result<(), String> {
    for read in history.operations {
        let Ended::Saw(saw, index) = &read.ended else { continue };
        let holds = held(history.transitions.iter().take_while(|seen| seen.index <= *index));
        if !holds.iter().map(|grant| (&grant.holder, grant.token)).eq(saw.iter().map(|(by, token)| (by, *token))) {
            return Err(format!("{read:?}, but the log has {holds:?}"));
        }
    }
    Ok(())
}

/// All leases of a run: no answer shows an index below one that a client had seen before the call.
pub fn check_indexes<'a>(operations: impl Iterator<Item = &'a Operation> + Clone) -> Result<(), String> {
    let mut seen: Vec<_> = operations.clone().filter_map(|done| Some((done.returned?, known_index(done)?))).collect();
    seen.sort_unstable();
    // The highest index that an answer showed by each time.
    let mut highest = 0;
    seen.iter_mut().for_each(|(_, index)| {
        highest = highest.max(*index);
        *index = highest;
    });
    for operation in operations {
        let Some(shown) = shown_index(operation) else { continue };
        let before = seen.partition_point(|(returned, _)| *returned < operation.invoked);
        if let Some((when, floor)) = before.checked_sub(1).map(|last| seen[last]) {
            check_index(operation, shown, floor).map_err(|how| format!("{how}, at {when:?}"))?;
        }
    }
    Ok(())
}

/// An answer that shows the log up to `index`, to a call that began after a client had seen `floor`.
pub fn check_index(operation: &Operation, index: u64, floor: u64) -> Result<(), String> {
    if index < floor {
        return Err(format!(
            "{operation:?} shows the log up to {index}; expected at least {floor}, which a client saw before"
        ));
    }
    Ok(())
}

/// The log index of the state that an answer shows.
fn shown_index(operation: &Operation) -> Option<u64> {
    match &operation.ended {
        Ended::Saw(_, index) => Some(*index),
        _ => operation.index,
    }
}

/// A log index that the client knows from the answer. A grant is in the log at the index of its token.
fn known_index(operation: &Operation) -> Option<u64> {
    match &operation.ended {
        Ended::Held(token, _) => Some(operation.index.unwrap_or(0).max(token.index())),
        _ => shown_index(operation),
    }
}
