//! A read returns the state of the log at its index, and no index below one that a client saw before. The age of a stale
//! read is not too low.

use std::time::Duration;

use super::claims::LeaseHistory;
use super::history::{Ended, Operation, StateAge};
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
    let seen = SeenIndexes::new(operations.clone());
    for operation in operations {
        let Some(shown) = shown_index(operation) else { continue };
        if let Some((when, floor)) = seen.before(operation.invoked) {
            check_index(operation, shown, floor).map_err(|how| format!("{how}, at {when:?}"))?;
        }
    }
    Ok(())
}

/// A node's state has all that a client had seen before the age that the node gives. `slowest`: the lowest rate of a
/// node's clock.
pub fn check_ages<'a>(
    ages: &[StateAge],
    operations: impl Iterator<Item = &'a Operation>,
    slowest: f64,
) -> Result<(), String> {
    let seen = SeenIndexes::new(operations);
    for state in ages {
        // Ages are rounded down to milliseconds.
        let longest = (state.age + Duration::from_millis(1)).div_f64(slowest);
        let Some((when, floor)) = state.asked.checked_sub(longest).and_then(|since| seen.before(since)) else {
            continue;
        };
        if state.index < floor {
            return Err(format!("{state:?}; but a client saw {floor} at {when:?}, which is longer ago"));
        }
    }
    Ok(())
}

/// The times of answers, each with the highest log index that clients have seen by then.
struct SeenIndexes(Vec<(Duration, u64)>);

impl SeenIndexes {
    fn new<'a>(operations: impl Iterator<Item = &'a Operation>) -> SeenIndexes {
        let mut seen: Vec<_> = operations.filter_map(|done| Some((done.returned?, known_index(done)?))).collect();
        seen.sort_unstable();
        let mut highest = 0;
        seen.iter_mut().for_each(|(_, index)| {
            highest = highest.max(*index);
            *index = highest;
        });
        SeenIndexes(seen)
    }

    /// The last answer before this time, and the highest index by then.
    fn before(&self, time: Duration) -> Option<(Duration, u64)> {
        let before = self.0.partition_point(|(returned, _)| *returned < time);
        before.checked_sub(1).map(|last| self.0[last])
    }
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
