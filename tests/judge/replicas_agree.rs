//! All replicas at the same index have the same state, from log entries or from a snapshot.

use tenure::lease::{DroppedWaiter, Machine, Outcome, Transition};

/// Applied entries: two replicas have these outcomes of the same entry.
pub fn check_outcomes(one: &[Outcome], other: &[Outcome]) -> Result<(), String> {
    if one == other { Ok(()) } else { Err(format!("outcomes {one:?} and {other:?}")) }
}

/// Applied entries: two replicas have these effects of the same entry.
pub fn check_effects(
    (transitions, dropped): (&[Transition], &[DroppedWaiter]),
    (other_transitions, other_dropped): (&[Transition], &[DroppedWaiter]),
) -> Result<(), String> {
    if transitions != other_transitions || dropped != other_dropped {
        return Err(format!(
            "{transitions:?} and {other_transitions:?}; dropped waiters {dropped:?} and {other_dropped:?}"
        ));
    }
    Ok(())
}

/// Two replicas that have applied the same entries.
pub fn check_state(one: &Machine, other: &Machine) -> Result<(), String> {
    if one.header() == other.header() && one.records().eq(other.records()) {
        return Ok(());
    }
    Err(format!("different states: {:?} and {:?}", one.header(), other.header()))
}
