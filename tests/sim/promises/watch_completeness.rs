//! A watch delivers each transition once and in order, also when it resumes at another node.

use tenure::node::WatchPosition;

use crate::ledger::Ledger;

/// Checks that the watch has neither skipped nor repeated a transition.
pub fn check(ledger: &Ledger, after: Option<WatchPosition>, next: (u64, u32)) -> Result<(), String> {
    let position = after.map_or((0, u32::MAX), |after| (after.index, after.part.unwrap_or(u32::MAX)));
    let between = ledger.transitions().map(|(_, seen)| (seen.index, seen.part));
    let missed: Vec<_> = between.filter(|seen| *seen > position && *seen < next).collect();
    if next <= position || !missed.is_empty() {
        return Err(format!("{next:?} came after {position:?}: missed {missed:?}"));
    }
    Ok(())
}
