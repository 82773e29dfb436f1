//! A watch delivers every transition once and in order, also when it is taken up again at another node.

use tenure::node::WatchPosition;

use crate::ledger::Ledger;

/// That nothing lies between the place and what came next, and nothing comes twice.
pub fn check(ledger: &Ledger, after: Option<WatchPosition>, next: (u64, u32)) -> Result<(), String> {
    let place = after.map_or((0, u32::MAX), |after| (after.index, after.part.unwrap_or(u32::MAX)));
    let between = ledger.transitions().map(|(_, seen)| (seen.index, seen.part));
    let missed: Vec<_> = between.filter(|seen| *seen > place && *seen < next).collect();
    if next <= place || !missed.is_empty() {
        return Err(format!("{next:?} came behind {place:?}: missed {missed:?}"));
    }
    Ok(())
}
