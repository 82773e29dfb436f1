//! A term has one leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::world::{World, lock};

/// Between two looks at all nodes.
const LOOK: Duration = Duration::from_millis(5);

pub async fn watch(world: Arc<World>) {
    let mut leaders = BTreeMap::new();
    loop {
        for id in world.ids() {
            let seen = lock(&world.cluster).running(id).map(|node| node.leadership());
            let Some(term) = seen.filter(|seen| seen.leader == Some(id)).map(|seen| seen.term) else { continue };
            let first = *leaders.entry(term).or_insert_with(|| {
                world.count_work("led");
                world.note(|| format!("node {id} leads in term {term}"));
                id
            });
            if first != id {
                world.break_promise("one_leader", format!("nodes {first} and {id} lead in term {term}"));
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
