//! Somebody who watches all transitions, at one node after the other, and must miss none.

use std::sync::Arc;
use std::time::Duration;

use tenure::node::WatchPosition;

use super::promises::watch_completeness;
use super::world::{World, lock};

/// `watch_completeness`: every transition once and in order, across nodes that go away.
pub async fn watch(world: Arc<World>) {
    let mut after = None;
    let mut at = 1;
    loop {
        let start = after.unwrap_or(WatchPosition { index: 0, part: None });
        let from = (!world.plan.planted.late_watch).then_some(start);
        let watch = world.node(at).map(|node| node.watch(from));
        match watch {
            Some(Ok(mut watch)) => {
                while let Ok(transition) = watch.next().await {
                    let next = (transition.index, transition.part);
                    let checked = watch_completeness::check(&lock(&world.ledger), after, next);
                    if let Err(how) = checked {
                        world.break_promise("watch_completeness", how);
                    }
                    after = Some(WatchPosition { index: transition.index, part: Some(transition.part) });
                    world.count_work("watched");
                }
            }
            // What is gone cannot be resumed: it says so, and the watch begins behind it.
            Some(Err(compacted)) => {
                world.count_work("watch compacted");
                after = Some(WatchPosition { index: compacted.oldest, part: None });
            }
            None => {}
        }
        at = at % world.plan.nodes + 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
