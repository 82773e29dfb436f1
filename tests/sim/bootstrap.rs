//! The birth of a cluster: nodes start on empty disks, late, one after the other, and crash while they do.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tenure::types::NodeId;
use tokio::task::JoinSet;

use super::faults::any_cut;
use super::world::World;

/// How often a node crashes again while it starts for the first time.
const CRASH: f64 = 0.4;

/// Starts every node with faults. All faults are over when it returns; the cluster may not have formed yet.
pub async fn begin(world: &Arc<World>) {
    let mut births = JoinSet::new();
    for id in world.ids() {
        births.spawn(start(world.clone(), id, world.dice(6_000 + id)));
    }
    births.spawn(cut_links(world.clone(), world.dice(6_999)));
    while births.join_next().await.is_some() {}
}

async fn start(world: Arc<World>, id: NodeId, mut rng: StdRng) {
    // Together with most others, a little later, or when they have given up waiting for it.
    let latest = [20, 20, 20, 20, 500, 500, 4_000][rng.random_range(0..7)];
    if latest == 4_000 {
        world.count_fault("late_first_start");
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..latest))).await;
    world.restart(id);
    while rng.random_bool(CRASH) {
        // Somewhere in the start, or while the cluster forms.
        let longest = [4, 40, 1_000][rng.random_range(0..3)];
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..longest))).await;
        world.count_fault("crash_in_first_start");
        world.crash(id, any_cut(&mut rng));
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..1_000))).await;
        world.restart(id);
    }
}

/// Cuts directions between nodes, each for a while.
async fn cut_links(world: Arc<World>, mut rng: StdRng) {
    for _ in 0..rng.random_range(0..4) {
        let (from, to) = (rng.random_range(1..=world.plan.nodes), rng.random_range(1..=world.plan.nodes));
        if from != to {
            world.count_fault("cut_in_first_start");
            world.board.cut(from, to);
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..1_500))).await;
            world.board.join(from, to);
        }
    }
}
