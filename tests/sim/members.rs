//! The faults that change the members, and the state that the cluster must reach afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tenure::raft::FeatureLevel;
use tenure::testing::TestNode;
use tenure::types::{MemberChange, NodeId};

use super::world::{World, lock};

/// Pause between two attempts of the same change.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Makes one random change, while other faults can interrupt it.
///
/// A majority of all first nodes stays, so the permanent loss of one node leaves a majority of the voters.
pub async fn change(world: &Arc<World>, duration: Duration, rng: &mut StdRng) {
    let usable: Vec<NodeId> = world.usable_nodes().into_iter().collect();
    let leader = world.leader().filter(|leader| usable.contains(leader) && rng.random_bool(0.3));
    let one = leader.unwrap_or(*usable.choose(rng).expect("a cluster has usable nodes"));
    match rng.random_range(0..10) {
        0..3 => {
            let Some((_, add)) = world.start_joining() else { return };
            ask(world, add, duration, rng).await;
        }
        3..5 if may_remove(world, one) => {
            world.mark_removed(one);
            ask(world, MemberChange::Remove { id: one, force: rng.random_bool(0.3) }, duration, rng).await;
        }
        5..8 => {
            let Some((new, add)) = world.start_joining() else { return };
            if ask(world, add, duration, rng).await && may_remove(world, one) {
                world.mark_removed(one);
                let replaced = async {
                    while !ask(world, MemberChange::Replace { old: one, new }, duration, rng).await {
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                };
                // If the faults prevent it, both nodes are wanted or removed at the end.
                let _ = tokio::time::timeout(duration, replaced).await;
            }
        }
        _ => {
            let (http, peer) = (format!("node{one}:{}", rng.random_range(10..99)), format!("node{one}:2"));
            ask(world, MemberChange::Update { id: one, http, peer }, duration, rng).await;
        }
    }
}

/// Whether a majority of the other members stays usable, and enough of them.
fn may_remove(world: &World, id: NodeId) -> bool {
    let members = usable_members(world);
    let Some(all) = world.leader().and_then(|leader| Some(world.node(leader)?.members().len())) else { return false };
    let left = members.iter().filter(|member| **member != id).count();
    left > (all - 1) / 2 && left as u64 > world.plan.nodes / 2
}

/// The usable nodes that are members from the view of the leader.
pub fn usable_members(world: &World) -> BTreeSet<NodeId> {
    let members = world.leader().and_then(|leader| Some(world.node(leader)?.members())).unwrap_or_default();
    world.usable_nodes().intersection(&members).copied().collect()
}

/// Sends a change to a random node. Returns whether it was made.
async fn ask(world: &Arc<World>, change: MemberChange, within: Duration, rng: &mut StdRng) -> bool {
    ask_at(world, world.random_node(rng), change, within).await
}

async fn ask_at(world: &Arc<World>, at: NodeId, change: MemberChange, within: Duration) -> bool {
    let Some(node) = world.node(at) else { return false };
    world.trace(|| format!("node {at} is asked for {change:?}"));
    let asked = world.on_node(at, node.change_members(change.clone()));
    let answer = tokio::time::timeout(within, asked).await;
    world.trace(|| format!("{change:?}: {answer:?}"));
    let done = matches!(answer, Ok(Ok(_)));
    let work = match (&change, done) {
        (_, false) => "members not changed",
        (MemberChange::Add { .. }, _) => "member added",
        (MemberChange::Remove { .. }, _) => "member removed",
        (MemberChange::Replace { .. }, _) => "member replaced",
        _ => "addresses changed",
    };
    world.count_work(work);
    done
}

/// Completes all changes after the last fault: exactly the usable nodes become voters, and no other node is a member.
///
/// Learners become voters without a request, and a leader completes the change of an earlier one. The cluster then has
/// the highest feature level that all members support.
pub async fn wait_until_stable(world: &Arc<World>, within: Duration) -> Result<(), String> {
    let wanted = world.usable_nodes();
    let stable = async {
        loop {
            if let Some((leader, next)) = next_change(world, &wanted) {
                ask_at(world, leader, next, within).await;
            } else if all_know(world, &wanted) {
                return;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    tokio::time::timeout(within, stable).await.map_err(|_| {
        let seen: Vec<_> = wanted
            .iter()
            .map(|id| {
                (
                    *id,
                    world
                        .node(*id)
                        .map(|node| (node.members(), node.voters(), node.changes_voters(), node.feature_level())),
                )
            })
            .collect();
        let level = supported(world, &wanted);
        format!("the members are not exactly {wanted:?}, with feature level {level}, within {within:?}: {seen:?}")
    })
}

/// The leader, and the next change towards the wanted members from its view.
fn next_change(world: &Arc<World>, wanted: &BTreeSet<NodeId>) -> Option<(NodeId, MemberChange)> {
    let leader = world.leader()?;
    let members = world.node(leader)?.members();
    if let Some(id) = members.iter().find(|id| !wanted.contains(id)) {
        return Some((leader, MemberChange::Remove { id: *id, force: true }));
    }
    let id = *wanted.iter().find(|id| !members.contains(id))?;
    Some((leader, MemberChange::Add { id, http: format!("node{id}:1"), peer: format!("node{id}:2") }))
}

fn all_know(world: &World, wanted: &BTreeSet<NodeId>) -> bool {
    let level = supported(world, wanted);
    let knows = |node: TestNode| {
        let is_settled = node.voters() == *wanted && !node.changes_voters();
        node.members() == *wanted && is_settled && node.feature_level() == level
    };
    wanted.iter().all(|id| world.node(*id).is_some_and(knows))
}

/// The highest feature level that all these nodes support.
fn supported(world: &World, nodes: &BTreeSet<NodeId>) -> FeatureLevel {
    let cluster = lock(&world.cluster);
    nodes.iter().map(|id| cluster.supported_level(*id)).min().unwrap_or_default()
}

/// Checks that each node that the cluster removed has learned it: its process ended, or reports its removal.
///
/// Two kinds of nodes learn nothing: a node that knows no members, because it never heard from the cluster, and a node
/// whose addition was never committed.
pub fn check_removed(world: &World) {
    let usable = world.usable_nodes();
    let is_removed = |id: NodeId| usable.iter().any(|at| world.node(*at).is_some_and(|node| node.is_removed(id)));
    // The first nodes were members, and each run completes its removals. So no state needs to confirm these.
    let is_first = |id: NodeId| id <= world.plan.nodes;
    for id in world.ids().filter(|id| world.is_marked_removed(*id) && (is_first(*id) || is_removed(*id))) {
        let member = lock(&world.cluster).running(id).cloned().filter(|node| !node.members().is_empty());
        let running = member.map(|node| node.health().failed);
        match running {
            None => {}
            Some(Some(why)) if why.contains("removed from the cluster") => {}
            other => world.report_violation("removed_node_stops", format!("node {id} was removed and runs: {other:?}")),
        }
    }
}
