//! A node while it shuts down.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure::client::{CallError, LeaseManager, ManagerOptions, Wait};
use tenure::election::{Election, ElectionOptions};
use tenure::lease::{Acquire, Command};
use tenure::node::{Local, Request, RequestError};
use tenure::testing::TokioClock;
use tokio::time::Instant;

use super::{acquire, ask, held, queue, start};

/// A held lease delays the end of the shutdown.
#[tokio::test(start_paused = true)]
async fn node_is_not_ready_from_the_start_of_its_shutdown() {
    for leads in [false, true] {
        let cluster = start().await;
        let leader = cluster.leader().await;
        held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
        let stops = cluster.ids().find(|id| (*id == leader) == leads).expect("a leader and followers");
        let node = cluster.node(stops).clone();
        assert_eq!(node.health().not_ready, None);
        let shutdown = tokio::spawn(async move { node.shutdown().await });
        let node = cluster.node(stops);
        for at in ["at the start", "later"] {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!shutdown.is_finished(), "the node waits for the release of the lease");
            assert_eq!(node.health().not_ready.as_deref(), Some("the node is shutting down"), "{at}, leader: {leads}");
            assert_eq!(ask(node, acquire("other", "b", 60_000, None)).await, Err(RequestError::ShuttingDown));
        }
        shutdown.await.expect("no panic");
        assert_eq!(node.health().not_ready.as_deref(), Some("the node is shutting down"), "afterwards");
        cluster.shutdown().await;
    }
}

/// The shutdown first withdraws a waiting request, and its caller leaves before that is committed.
#[tokio::test(start_paused = true)]
async fn node_refuses_requests_after_a_dropped_shutdown() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader);
    held(node, acquire("job", "a", 60_000, None)).await;
    let options = ManagerOptions::new().clock(Arc::new(TokioClock::new()));
    let manager = LeaseManager::with_options(Local::new(node.clone()), options).expect("valid");
    let lease = manager.lease("job").expect("a name");
    let waiting = tokio::spawn(async move { lease.acquire(Wait::UpTo(Duration::from_secs(60))).await });
    while queue(node).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(node.shutdown().now_or_never().is_none(), "the request waits");
    assert_eq!(ask(node, acquire("other", "c", 60_000, None)).await, Err(RequestError::ShuttingDown));
    waiting.abort();
    cluster.shutdown().await;
}

/// Clients of other nodes may still read, to confirm their releases.
#[tokio::test(start_paused = true)]
async fn stopping_leader_stays_for_50_ms_after_the_last_lease() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let other = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let lease = held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    let node = cluster.node(leader).clone();
    let shutdown = tokio::spawn(async move {
        node.shutdown().await;
        Instant::now()
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let release = Command::Release { name: lease.name, holder: lease.holder, token: lease.token };
    ask(cluster.node(other), Request::Change(release)).await.expect("answered");
    let released = Instant::now();
    let stayed = shutdown.await.expect("no panic") - released;
    assert!((45..150).contains(&stayed.as_millis()), "the leader stays for {stayed:?}");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn manager_of_a_stopped_node_is_shut_down() {
    let cluster = start().await;
    cluster.leader().await;
    let node = cluster.node(1);
    let options = ManagerOptions::new().clock(Arc::new(TokioClock::new()));
    let manager = LeaseManager::with_options(Local::new(node.clone()), options).expect("valid");
    node.shutdown().await;
    let began = Instant::now();
    let acquired = manager.lease("job").expect("a name").acquire(Wait::UpTo(Duration::from_secs(60))).await;
    assert_eq!(acquired, Err(CallError::ShutDown));
    let election = Election::new(&manager, "leader", ElectionOptions::new()).expect("valid");
    assert_eq!(election.campaign().await.map(drop), Err(CallError::ShutDown));
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    cluster.shutdown().await;
}

/// The node stays a voter for the releases of other clients.
#[tokio::test(start_paused = true)]
async fn held_lease_delays_the_shutdown_by_half_a_second() {
    for (is_held, range) in [(false, 50..150), (true, 500..600)] {
        let cluster = start().await;
        let leader = cluster.leader().await;
        if is_held {
            held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
        }
        let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        cluster.node(follower).shutdown().await;
        assert!(range.contains(&began.elapsed().as_millis()), "held: {is_held}: {:?}", began.elapsed());
        cluster.shutdown().await;
    }
}

/// The next leader may need this node to commit releases.
#[tokio::test(start_paused = true)]
async fn held_lease_delays_the_shutdown_of_a_node_that_knows_no_leader() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader).clone();
    held(&node, acquire("job", "a", 60_000, None)).await;
    cluster.board.isolate(leader, cluster.ids());
    let leaderless = async {
        while node.leadership().leader.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), leaderless).await.expect("the leader has no majority");
    let began = Instant::now();
    node.shutdown().await;
    assert!((500..600).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    cluster.board.heal();
    cluster.shutdown().await;
}

/// During a lock delay, a client waits for a lease without a holder.
#[tokio::test(start_paused = true)]
async fn waiting_claim_delays_the_shutdown_by_half_a_second() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let Request::Acquire(claim) = acquire("job", "a", 60_000, None) else { unreachable!("it is a claim") };
    let lease = held(cluster.node(leader), Request::Acquire(Acquire { lock_delay_ms: 30_000, ..claim })).await;
    let revoke = Command::Revoke { name: lease.name, reason: String::new() };
    ask(cluster.node(leader), Request::Change(revoke)).await.expect("answered");
    let node = cluster.node(leader).clone();
    let waiting = tokio::spawn(async move { ask(&node, acquire("job", "b", 60_000, Some(60_000))).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "the lock delay lasts");
    let began = Instant::now();
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    cluster.node(follower).shutdown().await;
    assert!((500..600).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    waiting.abort();
    cluster.shutdown().await;
}
