//! Faults that stale reads come from, each with clients that would see them.
//!
//! The one that the quarantine is for: a follower restarts inside the leadership lease that it granted while its leader
//! is cut off, and clients go on changing and reading at every node.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tenure::lease::{Acquire, Command};
use tenure::node::{Forward, Query, Request};
use tenure::testing::Cut;
use tenure::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};

use super::client::saw;
use super::history::{Ended, What};
use super::world::{World, lock};

/// How much longer than the leadership lease the clients go on.
const LONGER: Duration = Duration::from_millis(5);

pub async fn restart_in_promise(world: &Arc<World>, dice: &mut StdRng) {
    let Some(leader) = world.leader().filter(|_| world.plan.nodes == 3) else { return };
    let mut others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let (Some(restarted), Some(lost)) = (others.pop(), others.pop()) else { return };
    world.count_fault("restart_in_promise");
    world.board.isolate(lost, world.ids());
    // Until the lost node would elect another.
    tokio::time::sleep(world.lease(leader).mul_f64(dice.random_range(1.0..1.9))).await;
    world.crash(restarted, super::faults::any_cut(dice));
    world.board.isolate(leader, world.ids());
    world.board.join(lost, restarted);
    world.board.join(restarted, lost);
    world.restart(restarted);
    probe(world, leader, [restarted, lost]).await;
    world.board.heal();
}

/// Cuts the leader off, and restarts the others with a shorter leadership lease than the one that they promised.
pub async fn shortened_in_promise(world: &Arc<World>, rng: &mut StdRng) {
    let Some(leader) = world.leader().filter(|_| world.plan.nodes == 3) else { return };
    let others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let short = world.plan.other_lease(world.lease_wanted());
    let [one, two] = others[..] else { return };
    if Duration::from_millis(short) > world.lease(leader) {
        return;
    }
    world.count_fault("shortened_in_promise");
    world.want_lease(short);
    world.board.isolate(leader, world.ids());
    for id in [one, two] {
        // What they know of their promise is what they synced.
        world.crash(id, Cut::Keep(0));
        world.set_lease(id, short);
        world.restart(id);
    }
    probe(world, leader, [one, two]).await;
    world.board.heal();
    world.crash(leader, super::faults::any_cut(rng));
    world.set_lease(leader, short);
    world.restart(leader);
}

/// Cuts the leader off, and reads there while the others elect another and change what is read.
pub async fn read_at_old_leader(world: &Arc<World>, dice: &mut StdRng) {
    let Some(leader) = world.leader() else { return };
    let others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let Some((&one, &two)) = others.first().zip(others.last()) else { return };
    world.count_fault("read_at_old_leader");
    world.board.isolate(leader, world.ids());
    tokio::time::sleep(world.lease(leader).mul_f64(dice.random_range(0.6..1.9))).await;
    probe(world, leader, [one, two]).await;
    world.ids().for_each(|id| world.board.join(leader, id));
    world.ids().for_each(|id| world.board.join(id, leader));
}

/// Suspends the leader's machine until the others have elected another, and reads at it as soon as it goes on. Its
/// monotonic clock says that a majority acknowledged it a moment ago.
pub async fn read_after_suspend(world: &Arc<World>, rng: &mut StdRng) {
    let Some(leader) = world.leader() else { return };
    let others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let Some((&one, &two)) = others.first().zip(others.last()) else { return };
    world.count_fault("read_after_suspend");
    // In half of all cases the others' messages are there as soon as the leader is.
    let is_cut_off = rng.random_bool(0.5);
    if is_cut_off {
        world.board.isolate(leader, world.ids());
    }
    world.suspend(leader);
    tokio::time::sleep(world.lease(leader).mul_f64(rng.random_range(0.9..3.0))).await;
    world.go_on(leader);
    probe(world, leader, [one, two]).await;
    if is_cut_off {
        world.ids().for_each(|id| world.board.join(leader, id));
        world.ids().for_each(|id| world.board.join(id, leader));
    }
}

/// Changes a lease at whoever takes it, and reads it at the old leader.
async fn probe(world: &Arc<World>, leader: NodeId, others: [NodeId; 2]) {
    let until = world.now() + world.lease(leader) + LONGER;
    let name = LeaseName::new("probe").expect("valid");
    for number in 0.. {
        if world.now() >= until {
            return;
        }
        let by = HolderId::new(format!("p{number}.{}", world.now().as_millis())).expect("valid");
        for id in others {
            let revoke = Command::Revoke { name: name.clone(), reason: "probe".into() };
            if ask(world, id, &by, &name, What::Revoke, Request::Change(revoke)).await == Ended::Unknown {
                continue;
            }
            let claim = Acquire {
                name: name.clone(),
                holder: by.clone(),
                ttl: Ttl::Infinite,
                wait_ms: None,
                lock_delay_ms: 0,
                limit: 1,
                metadata: Metadata::default(),
            };
            let what = What::Acquire { ttl_ms: None, limit: 1, wait: false, lock_delay_ms: 0 };
            ask(world, id, &by, &name, what, Request::Acquire(claim)).await;
        }
        let read = |id| {
            let read = Request::Read { query: Query::Lease(name.clone()), consistency: world.local_read() };
            ask(world, id, &by, &name, What::Read, read)
        };
        for id in others {
            read(id).await;
        }
        read(leader).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What a node itself says within a moment.
async fn ask(world: &World, id: NodeId, by: &HolderId, name: &LeaseName, what: What, request: Request) -> Ended {
    let Some(node) = world.node(id) else { return Ended::Unknown };
    let begun = lock(&world.history).begin(by, name, what.clone(), world.now());
    let asked =
        tokio::time::timeout(Duration::from_millis(5), world.inside(id, node.request(request, Forward::Never))).await;
    let ended = match &asked {
        Ok(Ok(response)) => saw(response),
        Ok(Err(tenure::node::RequestError::Unknown(_))) | Err(_) => Ended::Unknown,
        Ok(Err(error)) => Ended::Refused(error.to_string()),
    };
    if let (What::Read, Ended::Saw(held, index)) = (&what, &ended) {
        world.note(|| format!("probe of {id} saw {held:?} at {index}"));
    }
    lock(&world.history).end(begun, ended.clone(), world.now());
    if matches!(ended, Ended::Refused(_)) { Ended::Unknown } else { ended }
}
