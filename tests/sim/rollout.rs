//! A rolling change of the configuration.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

use super::faults::random_cut;
use super::world::World;

/// Restarts all nodes, one after the other, with the other leadership lease.
///
/// During the change, nodes with different leases refuse each other.
pub async fn change_timings(world: &Arc<World>, rng: &mut StdRng) {
    world.count_fault("new_timings");
    let lease_ms = world.plan.other_lease(world.lease_wanted());
    world.want_lease(lease_ms);
    for id in world.ids() {
        world.crash(id, random_cut(rng));
        world.set_lease(id, lease_ms);
        world.restart(id);
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..600))).await;
    }
}
