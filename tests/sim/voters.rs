//! The fault that changes who votes, and its end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tenure::testing::TestNode;
use tenure::types::NodeId;

use super::world::World;

/// Between two tries to give everybody the vote back.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes the vote of some, now and then of the leader itself, and gives it back a while later. As many keep it as make
/// a majority of all: then a node that is lost for good takes no majority of the voters with it.
pub async fn change(world: &Arc<World>, long: Duration, dice: &mut StdRng) {
    let Some((leader, node)) = leader(world) else { return };
    let mut voters: Vec<NodeId> = node.voters().into_iter().collect();
    let count = dice.random_range(1..=2);
    for _ in 0..count {
        let others: Vec<NodeId> = voters.iter().copied().filter(|id| *id != leader).collect();
        let lost = if dice.random_bool(0.25) { leader } else { *others.choose(dice).unwrap_or(&leader) };
        if voters.len() as u64 > world.plan.nodes / 2 + 1 {
            voters.retain(|id| *id != lost);
        }
    }
    set(world, &node, leader, voters.into_iter().collect(), long).await;
    tokio::time::sleep(long).await;
    if let Some((leader, node)) = self::leader(world) {
        set(world, &node, leader, world.living(), long).await;
    }
}

async fn set(world: &World, node: &TestNode, leader: NodeId, voters: BTreeSet<NodeId>, long: Duration) -> bool {
    world.note(|| format!("{leader} is to have {voters:?} vote"));
    let changed = tokio::time::timeout(long, world.inside(leader, node.set_voters(voters))).await;
    world.note(|| format!("{leader} has changed who votes: {changed:?}"));
    let is_done = matches!(changed, Ok(Ok(())));
    world.count_work(if is_done { "voters changed" } else { "voters not changed" });
    is_done
}

fn leader(world: &World) -> Option<(NodeId, TestNode)> {
    let leader = world.leader()?;
    Some((leader, world.node(leader)?))
}

/// Has everybody vote again who is still there, and nobody else.
pub async fn all_vote_again(world: &World, within: Duration) -> bool {
    let everybody = world.living();
    let changed = async {
        loop {
            if let Some((leader, node)) = leader(world)
                && (node.voters() == everybody || set(world, &node, leader, everybody.clone(), within).await)
            {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(within, changed).await.is_ok()
}
