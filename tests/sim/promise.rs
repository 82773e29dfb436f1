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
use tenure::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};

use super::client::saw;
use super::history::{Ended, What};
use super::world::{World, lock};

/// How long the clients go on: the leadership lease.
const TIME: Duration = Duration::from_millis(330);

pub async fn restart_in_promise(world: &Arc<World>, dice: &mut StdRng) {
    let Some(leader) = world.leader().filter(|_| world.plan.nodes == 3) else { return };
    let mut others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let (Some(restarted), Some(lost)) = (others.pop(), others.pop()) else { return };
    world.count_fault("restart_in_promise");
    world.board.isolate(lost, world.ids());
    // Until the lost node would elect another.
    tokio::time::sleep(Duration::from_millis(dice.random_range(330..600))).await;
    world.crash(restarted, super::nemesis::any_cut(dice));
    world.board.isolate(leader, world.ids());
    world.board.join(lost, restarted);
    world.board.join(restarted, lost);
    world.restart(restarted);
    probe(world, leader, [restarted, lost]).await;
    world.board.heal();
}

/// Cuts the leader off, and reads there while the others elect another and change what is read.
pub async fn read_at_old_leader(world: &Arc<World>, dice: &mut StdRng) {
    let Some(leader) = world.leader() else { return };
    let others: Vec<NodeId> = world.ids().filter(|id| *id != leader && world.node(*id).is_some()).collect();
    let Some((&one, &two)) = others.first().zip(others.last()) else { return };
    world.count_fault("read_at_old_leader");
    world.board.isolate(leader, world.ids());
    tokio::time::sleep(Duration::from_millis(dice.random_range(200..600))).await;
    probe(world, leader, [one, two]).await;
    world.ids().for_each(|id| world.board.join(leader, id));
    world.ids().for_each(|id| world.board.join(id, leader));
}

/// Changes a lease at whoever takes it, and reads it at the old leader.
async fn probe(world: &Arc<World>, leader: NodeId, others: [NodeId; 2]) {
    let until = world.now() + TIME;
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
            let what = What::Acquire { ttl_ms: u64::MAX, limit: 1, wait: false };
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
