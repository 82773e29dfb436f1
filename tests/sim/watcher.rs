//! A client that watches all transitions, at one node after the other, and must miss none.

use std::sync::Arc;
use std::time::Duration;

use tenure::node::WatchPosition;

use super::judge::each_transition_once;
use super::ledger::Ledger;
use super::world::{World, lock};

/// Checks `each_transition_once` while nodes crash: the watch delivers each transition once and in order.
pub async fn watch(world: Arc<World>) {
    let mut after = None;
    let mut node = 1;
    loop {
        let start = after.unwrap_or(WatchPosition { index: 0, part: None });
        let from = (!world.plan.planted.late_watch).then_some(start);
        let watch = world.node(node).map(|running| running.transitions(from));
        match watch {
            Some(Ok(mut watch)) => {
                while let Ok(transition) = watch.next().await {
                    let next = (transition.index, transition.part);
                    let checked = check(&lock(&world.ledger), after, next);
                    if let Err(how) = checked {
                        world.report_violation("each_transition_once", how);
                    }
                    after = Some(WatchPosition { index: transition.index, part: Some(transition.part) });
                    world.count_work("watched");
                }
            }
            // A watch cannot resume in the compacted part of the log, so it continues after it.
            Some(Err(compacted)) => {
                world.count_work("watch compacted");
                after = Some(WatchPosition { index: compacted.oldest, part: None });
            }
            None => {}
        }
        node = world.next_node(node);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn check(ledger: &Ledger, after: Option<WatchPosition>, next: (u64, u32)) -> Result<(), String> {
    let log = ledger.transitions().map(|(_, seen)| (seen.index, seen.part));
    let after = after.map_or((0, u32::MAX), |after| (after.index, after.part.unwrap_or(u32::MAX)));
    each_transition_once::check_watch(log, after, next)
}
