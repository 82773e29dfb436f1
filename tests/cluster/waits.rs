//! The lifetime of a place in a queue.

use std::time::Duration;

use tenure::config::{LeaseSettings, RaftTimings};
use tenure::lease::{Command, Outcome};
use tenure::node::{Answer, Request, RequestError};
use tenure::testing::Cluster;
use tenure::types::NodeId;
use tokio::time::Instant;

use super::{acquire, ask, held, queue, start};

/// Longer than each test runs, so no lease expires during it.
const TTL_MS: u64 = 600_000;

/// The cluster drops a place if no node confirms its request within the waiter timeout. These requests wait for several
/// times as long.
#[tokio::test(start_paused = true)]
async fn waiting_requests_outlast_the_waiter_timeout() {
    keep_their_places(LeaseSettings::default()).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_outlast_a_short_waiter_timeout() {
    let mut settings = LeaseSettings::default();
    settings.limits.waiter_timeout_ms = 1_000;
    keep_their_places(settings).await;
}

/// A node that leads again confirms the requests that wait, as before.
#[tokio::test(start_paused = true)]
async fn waits_outlast_the_waiter_timeout_when_a_node_leads_again() {
    let mut settings = LeaseSettings::default();
    settings.limits.waiter_timeout_ms = 1_000;
    let cluster = Cluster::start(3, RaftTimings::lan(), settings).await;
    let first = cluster.leader().await;
    let second = cluster.ids().find(|id| *id != first).expect("three nodes");
    for to in [second, first] {
        lead(&cluster, to).await;
        // Several intervals of confirmations.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(cluster.leader().await, first);
    stay_in_the_queue(cluster, Duration::from_millis(1_000)).await;
}

/// Transfers the leadership until this node leads.
async fn lead(cluster: &Cluster, wanted: NodeId) {
    let began = Instant::now();
    loop {
        let leader = cluster.leader().await;
        if leader == wanted {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "node {leader} still leads");
        // After a failed transfer, the next one follows.
        let _ = cluster.node(leader).transfer_leadership_to(wanted).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn keep_their_places(settings: LeaseSettings) {
    let waiter_timeout = Duration::from_millis(settings.limits.waiter_timeout_ms);
    stay_in_the_queue(Cluster::start(3, RaftTimings::lan(), settings).await, waiter_timeout).await;
}

async fn stay_in_the_queue(cluster: Cluster, waiter_timeout: Duration) {
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", TTL_MS, None)).await;
    let waiting = cluster.ids().map(|at| {
        let (node, by) = (cluster.node(at).clone(), format!("waits-at-{at}"));
        tokio::spawn(async move { ask(&node, acquire("job", &by, TTL_MS, Some(TTL_MS))).await })
    });
    let waiting: Vec<_> = waiting.collect();
    while queue(cluster.node(leader)).await < waiting.len() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let began = Instant::now();
    while began.elapsed() < waiter_timeout * 5 {
        tokio::time::sleep(waiter_timeout / 10).await;
        assert_eq!(queue(cluster.node(leader)).await, waiting.len(), "after {:?}", began.elapsed());
    }
    assert!(waiting.iter().all(|waits| !waits.is_finished()), "a waiting request was answered");
    waiting.iter().for_each(|waits| waits.abort());
    cluster.shutdown().await;
}

/// The waiters need ten commands, because their names are long.
#[tokio::test(start_paused = true)]
async fn all_waiters_outlast_the_waiter_timeout() {
    all_keep_their_places(RaftTimings::lan(), Duration::from_millis(10_000), Duration::ZERO).await;
}

/// The commands of one round take longer than the timeout if each waits for the one before it.
#[tokio::test(start_paused = true)]
async fn all_waiters_outlast_a_short_waiter_timeout_on_a_slow_network() {
    all_keep_their_places(RaftTimings::wan(), Duration::from_millis(2_400), Duration::from_millis(300)).await;
}

async fn all_keep_their_places(timings: RaftTimings, waiter_timeout: Duration, round_trip: Duration) {
    const WAITERS: usize = 1_560;
    let mut settings = LeaseSettings::default();
    settings.limits.max_waiters = 2 * WAITERS as u32;
    settings.limits.waiter_timeout_ms = waiter_timeout.as_millis() as u64;
    let cluster = Cluster::start(3, timings, settings).await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", TTL_MS, None)).await;
    let waiting: Vec<_> = (0..WAITERS)
        .map(|number| {
            let (node, by) = (cluster.node(leader).clone(), format!("{number:0>198}"));
            tokio::spawn(async move { ask(&node, acquire("job", &by, TTL_MS, Some(TTL_MS))).await })
        })
        .collect();
    while queue(cluster.node(leader)).await < WAITERS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for other in cluster.ids().filter(|id| *id != leader && !round_trip.is_zero()) {
        cluster.board.delay(leader, other, round_trip / 2);
        cluster.board.delay(other, leader, round_trip / 2);
    }
    let began = Instant::now();
    while began.elapsed() < waiter_timeout * 3 {
        tokio::time::sleep(waiter_timeout / 10).await;
        assert_eq!(queue(cluster.node(leader)).await, WAITERS, "after {:?}", began.elapsed());
    }
    assert!(waiting.iter().all(|waits| !waits.is_finished()), "a waiting request was answered");
    waiting.iter().for_each(|waits| waits.abort());
    cluster.shutdown().await;
}

/// The leader crashes in the middle of a wait. The node with the request asks the next leader for the remaining wait.
#[tokio::test(start_paused = true)]
async fn leader_crash_does_not_delay_the_end_of_a_wait() {
    const WAIT: Duration = Duration::from_secs(30);
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", TTL_MS, None)).await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let node = cluster.node(follower).clone();
    let began = Instant::now();
    let claim = acquire("job", "b", 5_000, Some(WAIT.as_millis() as u64));
    let waiting = tokio::spawn(async move { ask(&node, claim).await.map(|response| response.answer) });
    tokio::time::sleep(WAIT / 2).await;
    assert_eq!(queue(cluster.node(leader)).await, 1);
    cluster.crash(leader).await;
    let next = cluster.leader_except(&[leader]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(queue(cluster.node(next)).await, 1, "the request waits at the next leader");
    let ended = waiting.await.expect("no panic");
    assert!(matches!(ended, Ok(Answer::WaitTimeout) | Err(RequestError::Unknown(_))), "{ended:?}");
    assert!((WAIT..WAIT + Duration::from_secs(1)).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(queue(cluster.node(next)).await, 0);
    cluster.shutdown().await;
}

/// The client of the first request leaves. Its holder asks again before the leave is applied.
#[tokio::test(start_paused = true)]
async fn holder_that_asks_again_at_once_waits_on() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let lease = held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    let wait = || {
        let node = cluster.node(leader).clone();
        tokio::spawn(async move { ask(&node, acquire("job", "b", 5_000, Some(60_000))).await })
    };
    let leaves = wait();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for other in cluster.ids().filter(|id| *id != leader) {
        cluster.board.delay(leader, other, Duration::from_millis(40));
    }
    leaves.abort();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let stays = wait();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!stays.is_finished(), "the wait of the first request ended, and not this one");
    let release = Command::Release { name: lease.name, holder: lease.holder, token: lease.token };
    ask(cluster.node(leader), Request::Change(release)).await.expect("answered");
    let granted = stays.await.expect("no panic").expect("answered").answer;
    assert!(matches!(granted, Answer::Outcome(Outcome::Held { .. })), "{granted:?}");
    cluster.shutdown().await;
}
