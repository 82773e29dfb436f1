//! All replicas apply the same entry at an index. A committed entry is never lost or replaced.

use crate::ledger::Entry;

pub fn check(first: &Entry, other: &Entry) -> Result<(), String> {
    if first.input == other.input {
        return Ok(());
    }
    let (one, two) = (&first.input, &other.input);
    Err(format!("at {} nodes {} and {} applied {one:?} and {two:?}", first.index, first.by, other.by))
}
