//! Waits and releases while nodes stop, are isolated or shut down: clusters in memory, under a paused clock.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::{Answer, Forward, Local, Query, Request};
use crate::client::{CallError, LeaseManager, LeaseOptions, ManagerOptions, Wait};
use crate::config::{LeaseSettings, RaftTimings};
use crate::lease::{Acquire, Outcome};
use crate::node::Consistency;
use crate::node::request::propose::ProposeError;
use crate::testing::{Cluster, TestNode, TokioClock};
use crate::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};

/// Less than `patience_ms`, after which the leader drops a waiter without a request.
const SOON: Duration = Duration::from_secs(3);
const TTL: Duration = Duration::from_secs(60);

async fn start() -> (Cluster, NodeId, [NodeId; 2]) {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let others: Vec<NodeId> = cluster.ids().filter(|id| *id != leader).collect();
    (cluster, leader, [others[0], others[1]])
}

fn manager(node: &TestNode) -> LeaseManager {
    let options = ManagerOptions::new().clock(std::sync::Arc::new(TokioClock::new()));
    LeaseManager::with_options(Local::new(node.clone()), options)
}

fn lease(manager: &LeaseManager) -> crate::client::Lease {
    manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("valid")
}

fn waiting_claim() -> Request {
    Request::Acquire(Acquire {
        name: LeaseName::new("job").expect("valid"),
        holder: HolderId::new("waits").expect("valid"),
        ttl: Ttl::millis(60_000).expect("valid"),
        wait_ms: Some(60_000),
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

async fn waiters(node: &TestNode) -> usize {
    let query = Query::Queue(LeaseName::new("job").expect("valid"));
    let read = Request::Read { query, consistency: Consistency::Leader };
    match node.request(read, Forward::Once).await.expect("answered").answer {
        Answer::Queue(waiters) => waiters.len(),
        other => panic!("{other:?}"),
    }
}

async fn until_waiters(node: &TestNode, count: usize) -> Duration {
    let begun = Instant::now();
    while waiters(node).await != count {
        assert!(begun.elapsed() < SOON, "no {count} waiters within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn isolated_node_resumes_its_wait_after_it_reconnects() {
    let (cluster, leader, [follower, _]) = start().await;
    let (holder, waits) = (manager(cluster.node(leader)), manager(cluster.node(follower)));
    lease(&holder).acquire(Wait::No).await.expect("free");
    let (waiting, node) = (lease(&waits), cluster.node(leader).clone());
    let waiting = tokio::spawn(async move { waiting.acquire(Wait::UpTo(TTL)).await });
    until_waiters(&node, 1).await;
    cluster.board.isolate(follower, cluster.ids());
    let left = until_waiters(&node, 0).await;
    assert!(left <= Duration::from_secs(2), "after the leaderless time plus one poll: {left:?}");
    cluster.board.heal();
    until_waiters(&node, 1).await;
    lease(&holder).release().await.expect("released");
    assert!(waiting.await.expect("the task does not panic").is_ok(), "the reconnected node waits again");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn leader_withdraws_the_waits_of_a_silent_node() {
    let (cluster, leader, [follower, _]) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    let inner = node.inner.clone();
    let waiting = tokio::spawn(async move { inner.execute_for_peer(follower, waiting_claim()).await });
    until_waiters(&node, 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(waiters(&node).await, 1, "the follower is connected");
    cluster.board.isolate(follower, cluster.ids());
    let left = until_waiters(&node, 0).await;
    assert!(left <= Duration::from_secs(2), "after the leaderless time plus one poll: {left:?}");
    assert_eq!(waiting.await.expect("the task does not panic"), Err(ProposeError::StillWaits));
    assert!(holder.is_held());
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn wait_dropped_before_it_is_queued_leaves_the_queue() {
    let (cluster, leader, others) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    others.into_iter().for_each(|other| cluster.board.delay(leader, other, Duration::from_millis(40)));
    let inner = node.inner.clone();
    let waiting = tokio::spawn(async move { inner.execute_as_leader(waiting_claim()).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(node.inner.raft.replica().read(|state| state.machine.counts().waiting), 0, "the entry is in flight");
    waiting.abort();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(holder.is_held());
    assert_eq!(waiters(&node).await, 0);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn node_shutdown_withdraws_its_own_waits_first() {
    for through_leader in [true, false] {
        let (cluster, leader, [follower, other]) = start().await;
        let holder = lease(&manager(cluster.node(other)));
        holder.acquire(Wait::No).await.expect("free");
        let node = cluster.node(if through_leader { leader } else { follower }).clone();
        let waiting = lease(&manager(&node));
        let waiting = tokio::spawn(async move { waiting.acquire(Wait::UpTo(TTL)).await });
        until_waiters(cluster.node(other), 1).await;
        node.shutdown().await;
        let ended = waiting.await.expect("the task does not panic");
        let is_certain = matches!(ended, Err(CallError::Refused(_) | CallError::ShutDown));
        assert!(is_certain, "the outcome of the wait is certain: {ended:?}");
        assert_eq!(waiters(cluster.node(other)).await, 0);
        cluster.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn manager_shutdown_withdraws_an_unpolled_acquire() {
    let (cluster, leader, [follower, _]) = start().await;
    let holder = lease(&manager(cluster.node(leader)));
    holder.acquire(Wait::No).await.expect("free");
    let waits = manager(cluster.node(follower));
    let waiting = lease(&waits);
    let mut acquire = Box::pin(waiting.acquire(Wait::UpTo(TTL)));
    while waiters(cluster.node(leader)).await == 0 {
        assert!(acquire.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(waits.shutdown().await, []);
    assert_eq!(waiters(cluster.node(leader)).await, 0, "the shutdown returned after the withdrawal");
    assert_eq!(acquire.await, Err(CallError::ShutDown));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_that_cannot_leave_the_queue_says_unknown() {
    let (cluster, leader, [follower, other]) = start().await;
    let holder = lease(&manager(cluster.node(leader)));
    holder.acquire(Wait::No).await.expect("free");
    let waits = manager(cluster.node(follower));
    let waiting = lease(&waits);
    let acquire = tokio::spawn(async move { waiting.acquire(Wait::UpTo(TTL)).await });
    until_waiters(cluster.node(other), 1).await;
    cluster.board.isolate(follower, cluster.ids());
    let failed = waits.shutdown().await;
    assert!(failed.iter().any(|(name, _)| name.as_str() == "job"), "{failed:?}");
    let ended = acquire.await.expect("the task does not panic");
    assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn release_is_repeated_at_the_next_leader() {
    let (cluster, leader, [follower, _]) = start().await;
    let manager = manager(cluster.node(follower));
    let guard = lease(&manager).guard(Wait::No).await.expect("free");
    cluster.board.stop(leader);
    let begun = Instant::now();
    assert_eq!(guard.release().await, Ok(true));
    assert!(begun.elapsed() < SOON, "the release takes one election: {:?}", begun.elapsed());
    cluster.board.go_on(leader);
    cluster.leader().await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn failed_guard_release_can_be_repeated() {
    let (cluster, _, [follower, _]) = start().await;
    let manager = manager(cluster.node(follower));
    let guard = lease(&manager).guard(Wait::No).await.expect("free");
    cluster.board.isolate(follower, cluster.ids());
    let failed = guard.release().await;
    assert!(matches!(failed, Err(CallError::Unknown { .. } | CallError::Unavailable(_))), "{failed:?}");
    assert!(!guard.is_held());
    cluster.board.heal();
    cluster.leader().await;
    assert_eq!(guard.release().await, Ok(true));
    assert_eq!(guard.release().await, Ok(false));
    cluster.shutdown().await;
}

fn claim_of(holder: &str) -> Request {
    let Request::Acquire(claim) = waiting_claim() else { unreachable!("it is a claim") };
    Request::Acquire(Acquire { holder: HolderId::new(holder).expect("valid"), ..claim })
}

async fn queue(node: &TestNode) -> Vec<String> {
    let query = Query::Queue(LeaseName::new("job").expect("valid"));
    let read = Request::Read { query, consistency: Consistency::Leader };
    match node.request(read, Forward::Once).await.expect("answered").answer {
        Answer::Queue(waiters) => waiters.into_iter().map(|waiter| waiter.holder.to_string()).collect(),
        other => panic!("{other:?}"),
    }
}

/// The second request of the first waiter comes before the node has given up the place of the first request.
#[tokio::test(start_paused = true)]
async fn claim_that_comes_back_at_once_keeps_its_place() {
    let (cluster, leader, _) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    let claim = |by: &str| {
        let (inner, claim) = (node.inner.clone(), claim_of(by));
        Box::pin(async move { inner.execute_as_leader(claim).await })
    };
    let mut first = claim("first");
    while waiters(&node).await == 0 {
        assert!(first.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let _second = tokio::spawn(claim("second"));
    until_waiters(&node, 2).await;
    drop(first);
    let mut again = claim("first");
    assert!(again.as_mut().now_or_never().is_none(), "it waits");
    let again = tokio::spawn(again);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(queue(&node).await, ["first", "second"]);
    holder.release().await.expect("released");
    let granted = again.await.expect("it does not panic").expect("answered");
    assert!(matches!(granted.answer, Answer::Outcome(Outcome::Held { .. })), "{granted:?}");
    cluster.shutdown().await;
}
