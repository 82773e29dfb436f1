//! The faults that change the members, and the state that the cluster must reach afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tenure::types::{MemberChange, NodeId};

use super::world::{World, lock};

/// Pause between two attempts of the same change.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Makes one random change, while other faults can interrupt it.
///
/// A majority of all first nodes stays, so the permanent loss of one node leaves a majority of the voters.
pub async fn change(world: &Arc<World>, duration: Duration, rng: &mut StdRng) {
    let usable: Vec<NodeId> = world.usable_nodes().into_iter().collect();
    let can_remove = usable.len() as u64 > world.plan.nodes / 2 + 1 + u64::from(world.has_lost_nodes());
    let leader = world.leader().filter(|leader| usable.contains(leader) && rng.random_bool(0.3));
    let one = leader.unwrap_or(*usable.choose(rng).expect("a cluster has usable nodes"));
    match rng.random_range(0..10) {
        0..3 => {
            let Some((_, add)) = world.start_joining() else { return };
            ask(world, add, duration, rng).await;
        }
        3..5 if can_remove => {
            world.mark_removed(one);
            ask(world, MemberChange::Remove { id: one, force: rng.random_bool(0.3) }, duration, rng).await;
        }
        5..8 => {
            let Some((new, add)) = world.start_joining() else { return };
            if ask(world, add, duration, rng).await {
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

/// Sends a change to a random node. Returns whether it was made.
async fn ask(world: &Arc<World>, change: MemberChange, within: Duration, rng: &mut StdRng) -> bool {
    let at = world.random_node(rng);
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
/// Learners become voters without a request, and a leader completes the change of an earlier one.
pub async fn settle(world: &Arc<World>, within: Duration) -> Result<(), String> {
    let wanted = world.usable_nodes();
    let mut rng = world.rng(8_000);
    let settled = async {
        loop {
            if let Some(next) = next_change(world, &wanted) {
                ask(world, next, within, &mut rng).await;
            } else if all_know(world, &wanted) {
                return;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    tokio::time::timeout(within, settled).await.map_err(|_| {
        let seen: Vec<_> = wanted
            .iter()
            .map(|id| (*id, world.node(*id).map(|node| (node.members(), node.voters(), node.changes_voters()))))
            .collect();
        format!("the members are not exactly {wanted:?} within {within:?}: {seen:?}")
    })
}

/// The next change towards the wanted members, from the view of the leader.
fn next_change(world: &Arc<World>, wanted: &BTreeSet<NodeId>) -> Option<MemberChange> {
    let members = world.node(world.leader()?)?.members();
    if let Some(id) = members.iter().find(|id| !wanted.contains(id)) {
        return Some(MemberChange::Remove { id: *id, force: true });
    }
    let id = *wanted.iter().find(|id| !members.contains(id))?;
    Some(MemberChange::Add { id, http: format!("node{id}:1"), peer: format!("node{id}:2") })
}

fn all_know(world: &World, wanted: &BTreeSet<NodeId>) -> bool {
    wanted.iter().all(|id| {
        world
            .node(*id)
            .is_some_and(|node| node.members() == *wanted && node.voters() == *wanted && !node.changes_voters())
    })
}

/// Checks that each removed node has learned it: its process ended, or reports its removal.
pub fn check_removed(world: &World) {
    for id in world.ids().filter(|id| world.is_marked_removed(*id)) {
        let running = lock(&world.cluster).running(id).map(|node| node.health().failed);
        match running {
            None => {}
            Some(Some(why)) if why.contains("removed from the cluster") => {}
            other => world.report_violation("removed_node_stops", format!("node {id} was removed and runs: {other:?}")),
        }
    }
}
