//! Records the age that each node gives for its own state. [`check_ages`](crate::judge::reads_are_current::check_ages)
//! judges it.

use std::sync::Arc;
use std::time::Duration;

use tenure::node::{Consistency, Forward, Query, Request};
use tenure::raft::FeatureLevel;
use tenure::types::LeaseName;

use crate::judge::history::StateAge;
use crate::world::{World, lock};

/// Interval between two reads of all nodes.
const INTERVAL: Duration = Duration::from_millis(13);

pub async fn watch(world: Arc<World>) {
    let name = LeaseName::new("probe").expect("valid");
    loop {
        for id in world.ids() {
            // Below this level, a node does not know how long a message of the leader was on its way.
            let node = world.node(id).filter(|node| node.feature_level() >= FeatureLevel::DATED_APPENDS);
            let Some(node) = node else { continue };
            let read = Request::Read { query: Query::Lease(name.clone()), consistency: Consistency::Stale };
            let asked = world.now();
            let Ok(response) = world.on_node(id, node.request(read, Forward::Never)).await else { continue };
            let served = response.served;
            if let Some(age_ms) = served.stale_ms {
                let age = Duration::from_millis(age_ms);
                lock(&world.history).ages.push(StateAge { node: id, asked, age, index: served.applied });
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
