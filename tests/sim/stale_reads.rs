//! Faults that can cause stale reads, each with clients that would observe them.
//!
//! The quarantine after a restart prevents one of them. A follower restarts within the leadership lease that it
//! granted, while its leader is isolated. Clients continue to write and read at each node.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tenure::lease::{Acquire, Command};
use tenure::node::{Forward, Query, Request};
use tenure::testing::Cut;
use tenure::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};

use super::client::outcome_of;
use super::judge::history::{Ended, RequestKind};
use super::world::{World, lock};

/// Time that a probe continues after the leadership lease.
const PROBE_MARGIN: Duration = Duration::from_millis(5);

/// Restarts a follower within the leadership lease that it granted, while the leader is isolated.
pub async fn restart_in_vote_lease(world: &Arc<World>, rng: &mut StdRng) {
    let Some(leader) = world.leader().filter(|_| world.plan.nodes == 3) else { return };
    let mut others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let (Some(restarted), Some(lost)) = (others.pop(), others.pop()) else { return };
    world.count_fault("restart_in_vote_lease");
    world.network.isolate(lost, world.ids());
    // The lost node starts an election after that time.
    tokio::time::sleep(world.lease(leader).mul_f64(rng.random_range(1.0..1.9))).await;
    world.crash(restarted, super::faults::random_cut(rng));
    world.network.isolate(leader, world.ids());
    world.network.reconnect(lost, restarted);
    world.network.reconnect(restarted, lost);
    world.restart(restarted);
    probe(world, leader, [restarted, lost]).await;
    world.network.heal();
}

/// Isolates the leader, and restarts the others with a shorter leadership lease than they promised.
pub async fn shortened_vote_lease(world: &Arc<World>, rng: &mut StdRng) {
    let Some(leader) = world.leader().filter(|_| world.plan.nodes == 3) else { return };
    let others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let short = world.plan.other_lease(world.lease_wanted());
    let [one, two] = others[..] else { return };
    if Duration::from_millis(short) > world.lease(leader) {
        return;
    }
    world.count_fault("shortened_vote_lease");
    world.want_lease(short);
    world.network.isolate(leader, world.ids());
    for id in [one, two] {
        // A restarted node knows only the promise that it synced.
        world.crash(id, Cut::Keep(0));
        world.set_lease(id, short);
        world.restart(id);
    }
    probe(world, leader, [one, two]).await;
    world.network.heal();
    world.crash(leader, super::faults::random_cut(rng));
    world.set_lease(leader, short);
    world.restart(leader);
}

/// Isolates the leader, and reads there while the others elect a new leader and change the lease.
pub async fn read_at_old_leader(world: &Arc<World>, rng: &mut StdRng) {
    let Some(leader) = world.leader() else { return };
    let others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let Some((&one, &two)) = others.first().zip(others.last()) else { return };
    world.count_fault("read_at_old_leader");
    world.network.isolate(leader, world.ids());
    tokio::time::sleep(world.lease(leader).mul_f64(rng.random_range(0.6..1.9))).await;
    probe(world, leader, [one, two]).await;
    world.ids().for_each(|id| world.network.reconnect(leader, id));
    world.ids().for_each(|id| world.network.reconnect(id, leader));
}

/// Suspends the leader's machine until the others have elected a new leader, and reads at it when it resumes.
///
/// By its monotonic clock, a majority acknowledged the old leader a moment ago.
pub async fn read_after_suspend(world: &Arc<World>, rng: &mut StdRng) {
    let Some(leader) = world.leader() else { return };
    let others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let Some((&one, &two)) = others.first().zip(others.last()) else { return };
    world.count_fault("read_after_suspend");
    // In half of the runs, messages of the other nodes arrive as soon as the leader resumes.
    let is_isolated = rng.random_bool(0.5);
    if is_isolated {
        world.network.isolate(leader, world.ids());
    }
    world.suspend(leader);
    tokio::time::sleep(world.lease(leader).mul_f64(rng.random_range(0.9..3.0))).await;
    world.resume(leader);
    probe(world, leader, [one, two]).await;
    if is_isolated {
        world.ids().for_each(|id| world.network.reconnect(leader, id));
        world.ids().for_each(|id| world.network.reconnect(id, leader));
    }
}

/// Changes a lease at any other node that accepts it, and reads it at all nodes, last at the old leader.
async fn probe(world: &Arc<World>, leader: NodeId, others: [NodeId; 2]) {
    let until = world.now() + world.lease(leader) + PROBE_MARGIN;
    let name = LeaseName::new("probe").expect("valid");
    for number in 0.. {
        if world.now() >= until {
            return;
        }
        let by = HolderId::new(format!("p{number}.{}", world.now().as_millis())).expect("valid");
        for id in others {
            let revoke = Command::Revoke { name: name.clone(), reason: "probe".into() };
            if send(world, id, &by, &name, RequestKind::Revoke, Request::Change(revoke)).await == Ended::Unknown {
                continue;
            }
            let claim = Acquire {
                name: name.clone(),
                holder: by.clone(),
                ttl: Ttl::INFINITE,
                wait_ms: None,
                lock_delay_ms: 0,
                limit: 1,
                metadata: Metadata::default(),
            };
            let what = RequestKind::Acquire { ttl_ms: None, limit: 1, wait_ms: None, lock_delay_ms: 0 };
            send(world, id, &by, &name, what, Request::Acquire(claim)).await;
        }
        let read = |id, query| {
            let read = Request::Read { query, consistency: world.local_read() };
            send(world, id, &by, &name, RequestKind::Read, read)
        };
        for id in others {
            read(id, Query::Lease(name.clone())).await;
        }
        read(leader, Query::Lease(name.clone())).await;
        read(leader, Query::Explain { name: name.clone(), holder: None }).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Sends a request that the node must answer itself within 5 ms. To the caller, a refusal counts as unknown.
async fn send(
    world: &World,
    id: NodeId,
    by: &HolderId,
    name: &LeaseName,
    what: RequestKind,
    request: Request,
) -> Ended {
    let Some(node) = world.node(id) else { return Ended::Unknown };
    let begun = lock(&world.history).begin(by, name, what.clone(), world.now());
    let answer =
        tokio::time::timeout(Duration::from_millis(5), world.on_node(id, node.request(request, Forward::Never))).await;
    let ended = match &answer {
        Ok(Ok(response)) => outcome_of(response),
        Ok(Err(tenure::node::RequestError::Unknown(_))) | Err(_) => Ended::Unknown,
        Ok(Err(error)) => Ended::Refused(error.to_string()),
    };
    if let (RequestKind::Read, Ended::Saw(held, index)) = (&what, &ended) {
        world.trace(|| format!("probe of {id} saw {held:?} at {index}"));
    }
    lock(&world.history).end(begun, ended.clone(), world.now());
    if matches!(ended, Ended::Refused(_)) { Ended::Unknown } else { ended }
}
