//! What one replica has applied at a position, every other applies there: nothing that was committed is lost or replaced.

use crate::ledger::Entry;

pub fn check(first: &Entry, other: &Entry) -> Result<(), String> {
    if first.asked == other.asked {
        return Ok(());
    }
    let (one, two) = (&first.asked, &other.asked);
    Err(format!("at {} nodes {} and {} applied {one:?} and {two:?}", first.index, first.by, other.by))
}
