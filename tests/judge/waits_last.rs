//! A wait in the queue lasts as long as its request says. A waiter whose node and leader live keeps its place.

use std::time::Duration;

use super::bounds::Observed;
use super::claims::LeaseHistory;
use super::history::{Ended, Operation, RequestKind};

/// Times are rounded down to milliseconds at the start and at the end of a wait.
const ROUNDING: Duration = Duration::from_millis(2);
/// The lowest `lease.waiter_timeout_ms`. A waiter without a request keeps its place for this time.
pub const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Client histories with exact times and correct timers: no answer says before the end of the wait that it is over.
pub fn check(history: &LeaseHistory) -> Result<(), String> {
    if !history.bounds.inside_drift || history.bounds.observed != Observed::AtApply {
        return Ok(());
    }
    for (wait, wait_ms, returned) in refused_waits(history, "wait_timeout") {
        let due = wait.invoked + history.bounds.shortest(Duration::from_millis(wait_ms));
        if returned + ROUNDING < due {
            return Err(format!("{wait:?} was over before {due:?}"));
        }
    }
    Ok(())
}

/// Client histories without delays between clients and nodes: from `calm` on, no fault happens, and no waiter loses its
/// place while one leader leads. `terms`: when the first entry of each term was applied.
pub fn check_kept(history: &LeaseHistory, calm: Duration, terms: &[Duration]) -> Result<(), String> {
    if !history.bounds.inside_drift {
        return Ok(());
    }
    for (wait, _, returned) in refused_waits(history, "wait_abandoned") {
        let has_one_leader = !terms.iter().any(|began| (wait.invoked..=returned).contains(began));
        let was_queued_in_time = returned.saturating_sub(wait.invoked) >= SHORTEST_TIMEOUT;
        if wait.invoked >= calm && has_one_leader && was_queued_in_time {
            return Err(format!("{wait:?} without a fault since {calm:?}"));
        }
    }
    Ok(())
}

/// The waiting claims that ended with this code, each with its wait and the time of the answer. Without those whose place
/// another request of the same holder may have changed.
fn refused_waits<'a>(
    history: &LeaseHistory<'a>,
    refusal: &'static str,
) -> impl Iterator<Item = (&'a Operation, u64, Duration)> {
    let history = *history;
    history.operations.iter().filter_map(move |operation| {
        let is_refused = matches!(&operation.ended, Ended::Refused(code) if code == refusal);
        let (RequestKind::Acquire { wait_ms: Some(wait_ms), .. }, Some(returned)) =
            (&operation.what, operation.returned)
        else {
            return None;
        };
        let has_other = history.by(operation.by.as_str()).any(|other| may_overlap(operation, other, returned));
        (is_refused && !has_other).then_some((operation, *wait_ms, returned))
    })
}

/// Whether another waiting claim of the holder may be in the queue during this one. A claim of unknown outcome can
/// arrive at any later time.
fn may_overlap(operation: &Operation, other: &Operation, returned: Duration) -> bool {
    let waits = matches!(other.what, RequestKind::Acquire { wait_ms: Some(_), .. });
    let has_ended =
        other.ended != Ended::Unknown && other.returned.is_some_and(|returned| returned < operation.invoked);
    !std::ptr::eq(operation, other) && waits && other.invoked <= returned && !has_ended
}
