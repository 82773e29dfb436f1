//! Makes faults, as the seed says, and counts them.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use tenure::testing::{Cut, Flip, NetworkFaults};
use tenure::types::NodeId;
use tokio::task::JoinSet;

use super::world::{World, lock};

/// Every kind of fault, and how often it is chosen beside the others.
pub const KINDS: [(&str, u32); 26] = [
    ("crash_one", 4),
    ("crash_minority", 2),
    ("crash_all", 1),
    ("crash_leader", 3),
    ("restart_in_promise", 4),
    ("isolate_leader", 3),
    ("isolate_follower", 2),
    ("split", 2),
    ("one_way", 3),
    ("bridge", 2),
    ("flapping", 1),
    ("bad_weather", 3),
    ("slow_link", 2),
    ("slow_disk", 2),
    ("stopped_node", 3),
    ("suspended_node", 3),
    ("suspended_client", 4),
    ("read_after_suspend", 3),
    ("transfer", 3),
    ("snapshot", 2),
    ("voters", 2),
    ("read_at_old_leader", 3),
    ("spoiled_disk", 1),
    ("wiped_disk", 1),
    ("new_timings", 1),
    ("shortened_in_promise", 4),
];

/// Makes faults until it is dropped, several at once now and then.
pub async fn rage(world: Arc<World>) {
    let mut dice = world.dice(3_000);
    let mut faults = JoinSet::new();
    for number in 0.. {
        tokio::time::sleep(Duration::from_millis(dice.random_range(50..1_500))).await;
        while faults.try_join_next().is_some() {}
        let (kind, _) = KINDS.choose_weighted(&mut dice, |(_, weight)| *weight).expect("some");
        faults.spawn(make(world.clone(), kind, world.dice(4_000 + number)));
    }
}

async fn make(world: Arc<World>, kind: &'static str, mut dice: StdRng) {
    let ids: Vec<NodeId> = world.ids().collect();
    let one = *ids.choose(&mut dice).expect("some");
    let leader = world.leader();
    let long = Duration::from_millis(dice.random_range(50..3_000));
    match kind {
        "crash_one" => crash(&world, kind, &[one], &mut dice).await,
        "crash_minority" => {
            let some = chosen(&ids, (ids.len() - 1) / 2, &mut dice);
            crash(&world, kind, &some, &mut dice).await;
        }
        "crash_all" => crash(&world, kind, &ids, &mut dice).await,
        "crash_leader" => {
            let Some(leader) = leader else { return };
            crash(&world, kind, &[leader], &mut dice).await;
        }
        "restart_in_promise" => super::stale_reads::restart_in_promise(&world, &mut dice).await,
        "isolate_leader" => {
            let Some(leader) = leader else { return };
            cut(&world, kind, pairs(&[leader], &ids), long).await;
        }
        "isolate_follower" => {
            let Some(follower) = ids.iter().find(|id| Some(**id) != leader) else { return };
            cut(&world, kind, pairs(&[*follower], &ids), long).await;
        }
        "split" => {
            let some = chosen(&ids, dice.random_range(1..ids.len()), &mut dice);
            cut(&world, kind, pairs(&some, &ids), long).await;
        }
        "one_way" => {
            let out = dice.random_bool(0.5);
            let pairs: Vec<_> = pairs(&[one], &ids).into_iter().filter(|(from, _)| (*from == one) == out).collect();
            cut(&world, kind, pairs, long).await;
        }
        "bridge" => {
            let two = chosen(&ids, 2, &mut dice);
            cut(&world, kind, vec![(two[0], two[1]), (two[1], two[0])], long).await;
        }
        "flapping" => {
            for _ in 0..dice.random_range(3..10) {
                let short = Duration::from_millis(dice.random_range(20..300));
                cut(&world, kind, pairs(&[leader.unwrap_or(one)], &ids), short).await;
                tokio::time::sleep(short).await;
            }
        }
        "bad_weather" => {
            let jitter = Duration::from_millis(dice.random_range(0..60));
            let weather =
                NetworkFaults { loss: dice.random_range(0.0..0.3), repeat: dice.random_range(0.0..0.3), jitter };
            world.count_fault(kind);
            world.board.set_faults(weather);
            tokio::time::sleep(long).await;
            world.board.set_faults(NetworkFaults::default());
        }
        "slow_link" => {
            let two = chosen(&ids, 2, &mut dice);
            world.count_fault(kind);
            world.board.delay(two[0], two[1], Duration::from_millis(dice.random_range(5..400)));
            tokio::time::sleep(long).await;
            world.board.delay(two[0], two[1], Duration::from_micros(200));
        }
        "slow_disk" => {
            world.count_fault(kind);
            world.slow_down(one, true);
            tokio::time::sleep(long).await;
            world.slow_down(one, false);
        }
        "stopped_node" => {
            let one = leader.filter(|_| dice.random_bool(0.6)).unwrap_or(one);
            world.count_fault(kind);
            world.stop(one);
            tokio::time::sleep(long).await;
            world.go_on(one);
        }
        "suspended_node" => {
            let one = leader.filter(|_| dice.random_bool(0.6)).unwrap_or(one);
            // Around the leadership lease, or beyond the longest ttl.
            let milliseconds = if dice.random_bool(0.7) { 20..1_000 } else { 1_000..6_000 };
            let long = Duration::from_millis(dice.random_range(milliseconds));
            world.count_fault(kind);
            world.suspend(one);
            tokio::time::sleep(long).await;
            world.go_on(one);
        }
        "suspended_client" => {
            let number = dice.random_range(0..world.plan.clients);
            // Inside a ttl, or beyond the longest one.
            let milliseconds = if dice.random_bool(0.5) { 20..1_000 } else { 1_000..6_000 };
            let long = Duration::from_millis(dice.random_range(milliseconds));
            world.count_fault(kind);
            world.suspend_client(number);
            tokio::time::sleep(long).await;
            world.wake_client(number);
        }
        "read_after_suspend" => super::stale_reads::read_after_suspend(&world, &mut dice).await,
        "transfer" => {
            let Some((leader, node)) = leader.and_then(|leader| Some((leader, world.node(leader)?))) else { return };
            world.count_fault(kind);
            let handed = tokio::time::timeout(long, world.inside(leader, node.transfer_leadership_to(one))).await;
            world.note(|| format!("handed to {one}: {handed:?}"));
        }
        "snapshot" => {
            let Some(node) = world.node(one) else { return };
            world.count_fault(kind);
            world.inside(one, node.take_snapshot()).await;
        }
        "read_at_old_leader" => super::stale_reads::read_at_old_leader(&world, &mut dice).await,
        "spoiled_disk" => spoil(&world, kind, one, &mut dice),
        "wiped_disk" => wipe(&world, kind, one, &mut dice).await,
        "new_timings" => super::rollout::change_timings(&world, &mut dice).await,
        "shortened_in_promise" => super::stale_reads::shortened_in_promise(&world, &mut dice).await,
        "voters" => {
            world.count_fault(kind);
            super::voters::change(&world, long, &mut dice).await;
        }
        other => unreachable!("{other} is a kind of fault"),
    }
}

pub fn any_cut(dice: &mut StdRng) -> Cut {
    match dice.random_range(0..3) {
        0 => Cut::Keep(0),
        1 => Cut::Keep(dice.random_range(0..4)),
        _ => Cut::Torn { writes: dice.random_range(0..3), entries: dice.random_range(0..3) },
    }
}

async fn crash(world: &Arc<World>, kind: &'static str, who: &[NodeId], dice: &mut StdRng) {
    world.count_fault(kind);
    for &id in who {
        world.crash(id, any_cut(dice));
    }
    tokio::time::sleep(Duration::from_millis(dice.random_range(1..2_000))).await;
    for &id in who {
        world.restart(id);
    }
}

/// Flips a bit of a node's log while it is down, which its next start has to find. One node of a run, and none of those
/// that its last majority needs.
fn spoil(world: &World, kind: &'static str, id: NodeId, dice: &mut StdRng) {
    let is_first = world.living().len() as u64 == world.plan.nodes;
    if !is_first || world.plan.nodes < 5 {
        return;
    }
    world.crash(id, any_cut(dice));
    let flip = Flip { entry: dice.random_range(0..10_000), bit: dice.random_range(0..10_000) };
    match lock(&world.cluster).disk(id).flipped(flip) {
        None => {}
        Some(Err(refused)) => {
            world.count_fault(kind);
            world.lose(id);
            world.note(|| format!("node {id} refuses to start: {refused}"));
        }
        Some(Ok(record)) => world.break_promise("spoiled_disk", format!("node {id} takes {record:?}")),
    }
}

/// A node comes back on an empty disk. At most one node of a run is lost.
async fn wipe(world: &Arc<World>, kind: &'static str, id: NodeId, rng: &mut StdRng) {
    if (world.living().len() as u64) < world.plan.nodes || world.plan.nodes < 5 {
        return;
    }
    world.count_fault(kind);
    world.crash(id, any_cut(rng));
    world.lose(id);
    tokio::time::sleep(Duration::from_millis(rng.random_range(1..2_000))).await;
    world.restart_wiped(id);
}

async fn cut(world: &World, kind: &'static str, pairs: Vec<(NodeId, NodeId)>, long: Duration) {
    world.count_fault(kind);
    world.note(|| format!("cut {pairs:?} for {long:?}"));
    pairs.iter().for_each(|(from, to)| world.board.cut(*from, *to));
    tokio::time::sleep(long).await;
    pairs.iter().for_each(|(from, to)| world.board.join(*from, *to));
}

/// Both ways between these and all others.
fn pairs(some: &[NodeId], all: &[NodeId]) -> Vec<(NodeId, NodeId)> {
    let others = all.iter().filter(|id| !some.contains(id));
    others.flat_map(|other| some.iter().flat_map(move |one| [(*one, *other), (*other, *one)])).collect()
}

fn chosen(ids: &[NodeId], count: usize, dice: &mut StdRng) -> Vec<NodeId> {
    let mut ids = ids.to_vec();
    ids.shuffle(dice);
    ids.truncate(count);
    ids
}

/// Waits until all nodes that run agree on a leader.
pub async fn settled(world: &World, within: Duration) -> bool {
    let agreed = async {
        loop {
            let living = world.living();
            let seen: Vec<_> = {
                let cluster = lock(&world.cluster);
                living.iter().map(|id| cluster.running(*id).map(|node| node.leadership())).collect()
            };
            let first = seen[0].as_ref().and_then(|seen| seen.leader);
            if first.is_some() && seen.iter().all(|other| *other == seen[0]) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(within, agreed).await.is_ok()
}
