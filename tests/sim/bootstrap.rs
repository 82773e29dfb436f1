//! The first start of a cluster: nodes start on empty disks, some late, and crash during the start.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tenure::types::NodeId;
use tokio::task::JoinSet;

use super::faults::random_cut;
use super::world::World;

/// Probability of another crash during the first start of a node.
const CRASH_PROBABILITY: f64 = 0.4;

/// Starts each node with faults.
///
/// When this returns, all faults are over, but the cluster may not have formed yet.
pub async fn start_all(world: &Arc<World>) {
    let mut tasks = JoinSet::new();
    for id in world.ids() {
        tasks.spawn(start(world.clone(), id, world.rng(6_000 + id)));
    }
    tasks.spawn(cut_links(world.clone(), world.rng(6_999)));
    while tasks.join_next().await.is_some() {}
}

async fn start(world: Arc<World>, id: NodeId, mut rng: StdRng) {
    // Upper bounds in milliseconds: with most others, a little later, or after the others stopped waiting for it.
    let latest = [20, 20, 20, 20, 500, 500, 4_000][rng.random_range(0..7)];
    if latest == 4_000 {
        world.count_fault("late_first_start");
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..latest))).await;
    world.restart(id);
    while rng.random_bool(CRASH_PROBABILITY) {
        // Crash during the start, or while the cluster forms.
        let longest = [4, 40, 1_000][rng.random_range(0..3)];
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..longest))).await;
        world.count_fault("crash_in_first_start");
        world.crash(id, random_cut(&mut rng));
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..1_000))).await;
        world.restart(id);
    }
}

/// Cuts single directions between nodes, each for a while.
async fn cut_links(world: Arc<World>, mut rng: StdRng) {
    for _ in 0..rng.random_range(0..4) {
        let (from, to) = (rng.random_range(1..=world.plan.nodes), rng.random_range(1..=world.plan.nodes));
        if from != to {
            world.count_fault("cut_in_first_start");
            world.network.cut(from, to);
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..1_500))).await;
            world.network.reconnect(from, to);
        }
    }
}
