//! Somebody who watches all transitions, at one node after the other, and must miss none.

use std::sync::Arc;
use std::time::Duration;

use tenure::node::WatchPosition;

use super::world::{World, lock};

/// `watch_completeness`: every transition once and in order, across nodes that go away.
pub async fn watch(world: Arc<World>) {
    let mut after = None;
    let mut at = 1;
    loop {
        let watch =
            world.node(at).map(|node| node.watch(Some(after.unwrap_or(WatchPosition { index: 0, part: None }))));
        match watch {
            Some(Ok(mut watch)) => {
                while let Ok(transition) = watch.next().await {
                    check_next(&world, after, transition.index, transition.part);
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

/// That nothing lies between the place and the transition, and nothing comes twice.
fn check_next(world: &World, after: Option<WatchPosition>, index: u64, part: u32) {
    let ledger = lock(&world.ledger);
    let place = after.map_or((0, u32::MAX), |after| (after.index, after.part.unwrap_or(u32::MAX)));
    let from = ledger.entry(place.0).map_or(0, |entry| (entry.index - ledger.first_index()) as usize);
    let between = ledger.entries[from..].iter().take_while(|entry| entry.index <= index);
    let places = between.flat_map(|entry| entry.transitions.iter().map(|seen| (seen.index, seen.part)));
    let missed: Vec<_> = places.filter(|seen| *seen > place && *seen < (index, part)).collect();
    if (index, part) <= place || !missed.is_empty() {
        drop(ledger);
        world.break_promise(
            "watch_completeness",
            format!("{:?} came behind {place:?}: missed {missed:?}", (index, part)),
        );
    }
}
