//! All replicas at the same index have byte-identical state, from log entries or from a snapshot.

use tenure::lease::Machine;
use tenure::types::NodeId;

use crate::ledger::Entry;

pub fn check(first: &Entry, other: &Entry) -> Result<(), String> {
    if first.transitions != other.transitions || first.dropped != other.dropped {
        let (one, two) = (&first.transitions, &other.transitions);
        return Err(format!(
            "at {} nodes {} and {} have the transitions {one:?} and {two:?}",
            first.index, first.by, other.by
        ));
    }
    if first.outcomes != other.outcomes {
        let (one, two) = (&first.outcomes, &other.outcomes);
        return Err(format!("at {} nodes {} and {} answer {one:?} and {two:?}", first.index, first.by, other.by));
    }
    check_state(first, other.by, &other.machine)
}

pub fn check_state(first: &Entry, by: NodeId, machine: &Machine) -> Result<(), String> {
    if first.machine.header() == machine.header() && first.machine.records().eq(machine.records()) {
        return Ok(());
    }
    let (one, two) = (first.machine.header(), machine.header());
    Err(format!("at {} nodes {} and {by} have different states: {one:?} and {two:?}", first.index, first.by))
}
