//! The fault that changes the voters, and its recovery.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tenure::testing::TestNode;
use tenure::types::NodeId;

use super::world::World;

/// Pause between two attempts to restore all voters.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Removes one or two voters for a while, sometimes the leader itself.
///
/// A majority of all nodes keeps the vote, so the permanent loss of one node leaves a majority of the voters.
pub async fn change(world: &Arc<World>, duration: Duration, rng: &mut StdRng) {
    let Some((leader, node)) = leader(world) else { return };
    let mut voters: Vec<NodeId> = node.voters().into_iter().collect();
    let count = rng.random_range(1..=2);
    for _ in 0..count {
        let others: Vec<NodeId> = voters.iter().copied().filter(|id| *id != leader).collect();
        let lost = if rng.random_bool(0.25) { leader } else { *others.choose(rng).unwrap_or(&leader) };
        if voters.len() as u64 > world.plan.nodes / 2 + 1 {
            voters.retain(|id| *id != lost);
        }
    }
    set(world, &node, leader, voters.into_iter().collect(), duration).await;
    tokio::time::sleep(duration).await;
    if let Some((leader, node)) = self::leader(world) {
        set(world, &node, leader, world.usable_nodes(), duration).await;
    }
}

async fn set(world: &World, node: &TestNode, leader: NodeId, voters: BTreeSet<NodeId>, duration: Duration) -> bool {
    world.trace(|| format!("leader {leader} sets the voters {voters:?}"));
    let changed = tokio::time::timeout(duration, world.on_node(leader, node.set_voters(voters))).await;
    world.trace(|| format!("leader {leader} set the voters: {changed:?}"));
    let is_done = matches!(changed, Ok(Ok(())));
    world.count_work(if is_done { "voters changed" } else { "voters not changed" });
    is_done
}

fn leader(world: &World) -> Option<(NodeId, TestNode)> {
    let leader = world.leader()?;
    Some((leader, world.node(leader)?))
}

/// Makes exactly the usable nodes voters. Returns whether this succeeded in time.
pub async fn all_vote_again(world: &World, within: Duration) -> bool {
    let wanted = world.usable_nodes();
    let changed = async {
        loop {
            if let Some((leader, node)) = leader(world)
                && (node.voters() == wanted || set(world, &node, leader, wanted.clone(), within).await)
            {
                return;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    tokio::time::timeout(within, changed).await.is_ok()
}
