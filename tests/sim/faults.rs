//! The faults of processes, network and disks, injected at random times.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use tenure::node::{NodeFailure, StorageError};
use tenure::storage::Storage;
use tenure::testing::{Cut, Flip, NetworkFaults};
use tenure::types::NodeId;
use tokio::task::JoinSet;

use super::world::{World, lock};

/// All kinds of faults, with their weights.
pub const KINDS: [(&str, u32); 26] = [
    ("crash_one", 4),
    ("crash_minority", 2),
    ("crash_all", 1),
    ("crash_leader", 3),
    ("restart_in_vote_lease", 4),
    ("isolate_leader", 3),
    ("isolate_follower", 2),
    ("split", 2),
    ("one_way", 3),
    ("bridge", 2),
    ("flapping", 1),
    ("network_faults", 3),
    ("slow_link", 2),
    ("slow_disk", 2),
    ("stopped_node", 3),
    ("suspended_node", 3),
    ("suspended_client", 4),
    ("read_after_suspend", 3),
    ("transfer", 3),
    ("snapshot", 2),
    ("members", 4),
    ("read_at_old_leader", 3),
    ("spoiled_disk", 1),
    ("wiped_disk", 1),
    ("new_timings", 1),
    ("shortened_vote_lease", 4),
];

/// Faults of disks that [`inject_disk_faults`] injects.
pub const DISK_KINDS: [&str; 2] = ["hung_disk", "failed_disk"];
/// A disk that hangs for less than this time ends no node.
const SHORTEST_STALL: Duration = Duration::from_secs(30);
/// Bound for a node to notice that its disk failed, while it runs.
const DISK_FAILURE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks whether a node has noticed it.
const DISK_FAILURE_POLL: Duration = Duration::from_millis(50);

/// Injects faults until the future is dropped. Faults can overlap.
pub async fn inject_all(world: Arc<World>) {
    let mut rng = world.rng(3_000);
    let mut faults = JoinSet::new();
    for number in 0.. {
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..1_500))).await;
        while faults.try_join_next().is_some() {}
        let (kind, _) = KINDS.choose_weighted(&mut rng, |(_, weight)| *weight).expect("weights are positive");
        faults.spawn(inject(world.clone(), kind, world.rng(4_000 + number)));
    }
}

async fn inject(world: Arc<World>, kind: &'static str, mut rng: StdRng) {
    let ids: Vec<NodeId> = world.ids().collect();
    let one = *ids.choose(&mut rng).expect("a cluster has nodes");
    let leader = world.leader();
    let duration = Duration::from_millis(rng.random_range(50..3_000));
    match kind {
        "crash_one" => crash(&world, kind, &[one], &mut rng).await,
        "crash_minority" => {
            let some = sample(&ids, (ids.len() - 1) / 2, &mut rng);
            crash(&world, kind, &some, &mut rng).await;
        }
        "crash_all" => crash(&world, kind, &ids, &mut rng).await,
        "crash_leader" => {
            let Some(leader) = leader else { return };
            crash(&world, kind, &[leader], &mut rng).await;
        }
        "restart_in_vote_lease" => super::stale_reads::restart_in_vote_lease(&world, &mut rng).await,
        "isolate_leader" => {
            let Some(leader) = leader else { return };
            cut(&world, kind, links_between(&[leader], &ids), duration).await;
        }
        "isolate_follower" => {
            let Some(follower) = ids.iter().find(|id| Some(**id) != leader) else { return };
            cut(&world, kind, links_between(&[*follower], &ids), duration).await;
        }
        "split" => {
            let some = sample(&ids, rng.random_range(1..ids.len()), &mut rng);
            cut(&world, kind, links_between(&some, &ids), duration).await;
        }
        "one_way" => {
            let out = rng.random_bool(0.5);
            let pairs: Vec<_> =
                links_between(&[one], &ids).into_iter().filter(|(from, _)| (*from == one) == out).collect();
            cut(&world, kind, pairs, duration).await;
        }
        "bridge" => {
            let two = sample(&ids, 2, &mut rng);
            cut(&world, kind, vec![(two[0], two[1]), (two[1], two[0])], duration).await;
        }
        "flapping" => {
            for _ in 0..rng.random_range(3..10) {
                let short = Duration::from_millis(rng.random_range(20..300));
                cut(&world, kind, links_between(&[leader.unwrap_or(one)], &ids), short).await;
                tokio::time::sleep(short).await;
            }
        }
        "network_faults" => {
            let jitter = Duration::from_millis(rng.random_range(0..60));
            let faults = NetworkFaults { loss: rng.random_range(0.0..0.3), repeat: rng.random_range(0.0..0.3), jitter };
            world.count_fault(kind);
            world.network.set_faults(faults);
            tokio::time::sleep(duration).await;
            world.network.set_faults(NetworkFaults::default());
        }
        "slow_link" => {
            let two = sample(&ids, 2, &mut rng);
            world.count_fault(kind);
            world.network.delay(two[0], two[1], Duration::from_millis(rng.random_range(5..400)));
            tokio::time::sleep(duration).await;
            world.network.delay(two[0], two[1], Duration::from_micros(200));
        }
        "slow_disk" => {
            world.count_fault(kind);
            world.set_slow_disk(one, true);
            tokio::time::sleep(duration).await;
            world.set_slow_disk(one, false);
        }
        "stopped_node" => {
            let one = leader.filter(|_| rng.random_bool(0.6)).unwrap_or(one);
            world.count_fault(kind);
            world.stop(one);
            tokio::time::sleep(duration).await;
            world.resume(one);
        }
        "suspended_node" => {
            let one = leader.filter(|_| rng.random_bool(0.6)).unwrap_or(one);
            // Near the leadership lease, or above the longest ttl.
            let milliseconds = if rng.random_bool(0.7) { 20..1_000 } else { 1_000..6_000 };
            let duration = Duration::from_millis(rng.random_range(milliseconds));
            world.count_fault(kind);
            world.suspend(one);
            tokio::time::sleep(duration).await;
            world.resume(one);
        }
        "suspended_client" => {
            let number = rng.random_range(0..world.plan.clients);
            // Within a ttl, or above the longest ttl.
            let milliseconds = if rng.random_bool(0.5) { 20..1_000 } else { 1_000..6_000 };
            let duration = Duration::from_millis(rng.random_range(milliseconds));
            world.count_fault(kind);
            world.suspend_client(number);
            tokio::time::sleep(duration).await;
            world.resume_client(number);
        }
        "read_after_suspend" => super::stale_reads::read_after_suspend(&world, &mut rng).await,
        "transfer" => {
            let Some((leader, node)) = leader.and_then(|leader| Some((leader, world.node(leader)?))) else { return };
            world.count_fault(kind);
            let transferred =
                tokio::time::timeout(duration, world.on_node(leader, node.transfer_leadership_to(one))).await;
            world.trace(|| format!("leadership transfer to {one}: {transferred:?}"));
        }
        "snapshot" => {
            let Some(node) = world.node(one) else { return };
            world.count_fault(kind);
            world.on_node(one, node.take_snapshot()).await;
        }
        "read_at_old_leader" => super::stale_reads::read_at_old_leader(&world, &mut rng).await,
        "spoiled_disk" => corrupt(&world, kind, one, &mut rng),
        "wiped_disk" => wipe(&world, kind, one, &mut rng).await,
        "new_timings" => super::rollout::change_timings(&world, &mut rng).await,
        "shortened_vote_lease" => super::stale_reads::shortened_vote_lease(&world, &mut rng).await,
        "members" => {
            world.count_fault(kind);
            super::members::change(&world, duration, &mut rng).await;
        }
        other => unreachable!("KINDS has no {other:?}"),
    }
}

/// Injects hung and failed disks until the future is dropped. They have their own random numbers, so a seed keeps the
/// choices of its other faults.
pub async fn inject_disk_faults(world: Arc<World>) {
    let mut rng = world.rng(12_000);
    let mut faults = JoinSet::new();
    for number in 0.. {
        tokio::time::sleep(Duration::from_millis(rng.random_range(1_000..18_000))).await;
        while faults.try_join_next().is_some() {}
        let kind = DISK_KINDS[usize::from(rng.random_bool(0.3))];
        let (world, mut rng) = (world.clone(), world.rng(13_000 + number));
        faults.spawn(async move {
            let one = world.random_node(&mut rng);
            let one = world.leader().filter(|_| rng.random_bool(0.5)).unwrap_or(one);
            match kind {
                "hung_disk" => hang_disk(&world, one, &mut rng).await,
                _ => fail_disk(&world, one, &mut rng).await,
            }
        });
    }
}

/// Lets the disk of a node hang, sometimes for longer than it takes a leader to give up its leadership.
async fn hang_disk(world: &World, id: NodeId, rng: &mut StdRng) {
    if world.node(id).is_none() {
        return;
    }
    world.count_fault("hung_disk");
    world.set_hung_disk(id, true);
    tokio::time::sleep(Duration::from_millis(rng.random_range(500..6_000))).await;
    world.set_hung_disk(id, false);
    let failed = world.node(id).and_then(|node| node.wait_failed().now_or_never());
    if let Some(NodeFailure::DiskStalled(lasted)) = failed
        && lasted < SHORTEST_STALL
    {
        world.report_violation("short_stall_ends_no_node", format!("node {id} failed after a stall of {lasted:?}"));
    }
}

/// Lets a sync of a running node fail. The process must end, and starts again later.
async fn fail_disk(world: &Arc<World>, id: NodeId, rng: &mut StdRng) {
    if world.node(id).is_none() {
        return;
    }
    world.count_fault("failed_disk");
    let kind = if rng.random_bool(0.5) { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
    let error = StorageError::Io { action: "sync", path: "in-memory".into(), kind, cause: "simulated".to_owned() };
    let (disk, incarnation) = (world.fail_disk(id, error), world.incarnation(id));
    let mut unnoticed = Duration::ZERO;
    // Another fault may cut the power before the next sync.
    while world.incarnation(id) == incarnation {
        if world.node(id).is_some_and(|node| node.health().failed.is_some()) {
            world.trace(|| format!("node {id} ends because its disk failed"));
            world.crash(id, random_cut(rng));
            tokio::time::sleep(Duration::from_millis(rng.random_range(1..2_000))).await;
            return world.restart(id);
        }
        // A stopped node notices nothing.
        world.network.running(id).await;
        tokio::time::sleep(DISK_FAILURE_POLL).await;
        if disk.failure().borrow().is_some() {
            unnoticed += DISK_FAILURE_POLL;
        }
        if unnoticed > DISK_FAILURE_TIMEOUT {
            let how = format!("node {id} continues {unnoticed:?} after its disk failed");
            return world.report_violation("failed_disk_ends_the_node", how);
        }
    }
}

/// Chooses which unsynced writes a power cut keeps.
pub fn random_cut(rng: &mut StdRng) -> Cut {
    match rng.random_range(0..3) {
        0 => Cut::Keep(0),
        1 => Cut::Keep(rng.random_range(0..4)),
        _ => Cut::Torn { writes: rng.random_range(0..3), entries: rng.random_range(0..3) },
    }
}

async fn crash(world: &Arc<World>, kind: &'static str, ids: &[NodeId], rng: &mut StdRng) {
    world.count_fault(kind);
    for &id in ids {
        world.crash(id, random_cut(rng));
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(1..2_000))).await;
    for &id in ids {
        world.restart(id);
    }
}

/// Flips a bit in the log of a node that is down. Its next start must detect the damage.
///
/// At most one node of a run is lost, and only in a cluster of five that still has its first members.
fn corrupt(world: &World, kind: &'static str, id: NodeId, rng: &mut StdRng) {
    if !may_lose(world, id) {
        return;
    }
    world.crash(id, random_cut(rng));
    let flip = Flip { entry: rng.random_range(0..10_000), bit: rng.random_range(0..10_000) };
    match lock(&world.cluster).disk(id).flipped(flip) {
        None => {}
        Some(Err(refused)) => {
            world.count_fault(kind);
            world.lose(id);
            world.trace(|| format!("node {id} refuses to start: {refused}"));
        }
        Some(Ok(record)) => {
            world.report_violation("spoiled_disk", format!("node {id} starts with the corrupt record {record:?}"))
        }
    }
}

/// Whether a node may lose its disk. The members of a joining node may not know its disk yet.
fn may_lose(world: &World, id: NodeId) -> bool {
    let members = super::members::usable_members(world);
    !world.has_lost_nodes() && members.len() >= 5 && id <= world.plan.nodes && members.contains(&id)
}

/// Restarts a node on an empty disk. At most one node of a run is lost, and only in a cluster of five.
async fn wipe(world: &Arc<World>, kind: &'static str, id: NodeId, rng: &mut StdRng) {
    if !may_lose(world, id) {
        return;
    }
    world.count_fault(kind);
    world.crash(id, random_cut(rng));
    world.lose(id);
    tokio::time::sleep(Duration::from_millis(rng.random_range(1..2_000))).await;
    world.restart_wiped(id);
}

async fn cut(world: &World, kind: &'static str, pairs: Vec<(NodeId, NodeId)>, duration: Duration) {
    world.count_fault(kind);
    world.trace(|| format!("cut {pairs:?} for {duration:?}"));
    pairs.iter().for_each(|(from, to)| world.network.cut(*from, *to));
    tokio::time::sleep(duration).await;
    pairs.iter().for_each(|(from, to)| world.network.reconnect(*from, *to));
}

/// The links in both directions between some nodes and all others.
fn links_between(some: &[NodeId], all: &[NodeId]) -> Vec<(NodeId, NodeId)> {
    let others = all.iter().filter(|id| !some.contains(id));
    others.flat_map(|other| some.iter().flat_map(move |one| [(*one, *other), (*other, *one)])).collect()
}

fn sample(ids: &[NodeId], count: usize, rng: &mut StdRng) -> Vec<NodeId> {
    let mut ids = ids.to_vec();
    ids.shuffle(rng);
    ids.truncate(count);
    ids
}

/// Waits until all usable members agree on a leader. Returns whether they did in time.
pub async fn wait_for_leader(world: &World, within: Duration) -> bool {
    let agree = || {
        let leader = world.leader()?;
        let members = world.node(leader)?.members();
        let cluster = lock(&world.cluster);
        let view = |id: &NodeId| Some(cluster.running(*id)?.leadership());
        let of_leader = view(&leader);
        Some(world.usable_nodes().intersection(&members).all(|id| view(id) == of_leader))
    };
    let agreed = async {
        while agree() != Some(true) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(within, agreed).await.is_ok()
}
