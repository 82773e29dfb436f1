//! A leader without a majority, under a paused clock: it reports no leader, and its waiting requests continue
//! elsewhere.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tenure::config::{LeaseSettings, RaftTimings};
use tenure::lease::{Acquire, Change, Command, LeaseState, Outcome, Renewal};
use tenure::node::{Answer, Consistency, Query, Request, RequestError, Role};
use tenure::raft::FeatureLevel;
use tenure::testing::{Cluster, Setup, TestNode};
use tenure::types::{HolderId, LeaseName, NodeId};
use tokio::time::Instant;

use super::{ask, held, holder};

/// Upper bound of the time from the isolation of a leader until its requests end. It exceeds the retry time of a
/// request without a leader.
const ENDED: Duration = Duration::from_secs(3);
const WAIT_MS: u64 = 60_000;

fn name() -> LeaseName {
    super::name("job")
}

fn acquire(by: &str, ttl_ms: u64, wait_ms: Option<u64>) -> Request {
    super::acquire("job", by, ttl_ms, wait_ms)
}

fn read(query: Query, consistency: Consistency) -> Request {
    Request::Read { query, consistency }
}

async fn release(node: &TestNode, lease: &tenure::lease::HolderLease) {
    let release = Command::Release { name: name(), holder: lease.holder.clone(), token: lease.token };
    let released = ask(node, Request::Change(release)).await.expect("answered");
    assert_eq!(released.answer, Answer::Outcome(Outcome::Released(true)));
}

async fn queue(node: &TestNode) -> Vec<HolderId> {
    match ask(node, read(Query::Queue(name()), Consistency::Leader)).await.expect("answered").answer {
        Answer::Queue(waiters) => waiters.into_iter().map(|waiter| waiter.holder).collect(),
        other => panic!("{other:?}"),
    }
}

/// Starts three nodes. Returns the cluster, the leader and the two followers.
async fn start() -> (Cluster, NodeId, NodeId, NodeId) {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (second, third) = (others.next().expect("three"), others.next().expect("three"));
    (cluster, leader, second, third)
}

/// Waits until an isolated leader no longer counts as the leader.
async fn isolation() {
    tokio::time::sleep(RaftTimings::lan().isolation() + Duration::from_millis(50)).await;
}

#[tokio::test(start_paused = true)]
async fn isolated_leader_reports_no_leader() {
    let (cluster, leader, ..) = start().await;
    let node = cluster.node(leader);
    let stale = || read(Query::Lease(name()), Consistency::Stale);
    let before = ask(node, stale()).await.expect("answered").served.stale_ms.expect("the node leads");
    assert!(before < 100, "the last acknowledgement of a majority is {before} ms old: expected less than 100 ms");
    cluster.board.isolate(leader, cluster.ids());
    isolation().await;
    let status = node.status().await;
    assert_eq!(status.leader, None, "{status:?}");
    assert!(status.members.iter().all(|member| member.role != Role::Leader), "{status:?}");
    let not_ready = node.health().not_ready.expect("an isolated leader is not ready");
    assert!(not_ready.contains("no majority"), "{not_ready}");
    let after = ask(node, stale()).await.expect("answered").served.stale_ms.expect("the node led");
    assert!(
        after >= RaftTimings::lan().isolation().as_millis() as u64,
        "the last acknowledgement of a majority is only {after} ms old"
    );
    for consistency in [Consistency::Leader, Consistency::Linearizable] {
        let answer = ask(node, read(Query::Lease(name()), consistency)).await;
        assert_eq!(answer, Err(RequestError::NoLeader));
    }
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
}

/// The leader and one follower of five are alone. The others elect a leader, whose changes they do not get.
#[tokio::test(start_paused = true)]
async fn follower_of_an_isolated_leader_knows_that_its_state_is_old() {
    old_state_behind_an_isolated_leader(Setup::default()).await;
}

/// A program of an earlier release takes the commit of each message for all that is committed at its arrival.
#[tokio::test(start_paused = true)]
async fn isolated_leader_sends_no_commit_to_an_older_program() {
    let levels = (1..=5).map(|id| (id, FeatureLevel::FIRST)).collect();
    old_state_behind_an_isolated_leader(Setup { levels, ..Setup::default() }).await;
}

async fn old_state_behind_an_isolated_leader(setup: Setup) {
    let cluster = Cluster::start_with(5, setup).await;
    let leader = cluster.leader().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("five nodes");
    let others: Vec<NodeId> = cluster.ids().filter(|id| ![leader, follower].contains(id)).collect();
    for id in [leader, follower] {
        cluster.board.isolate(id, others.iter().copied());
    }
    cluster.leader_except(&[leader, follower]).await;
    let elected = Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let node = cluster.node(follower);
    let stale = ask(node, read(Query::Lease(name()), Consistency::Stale)).await.expect("answered");
    let age = Duration::from_millis(stale.served.stale_ms.expect("the state was complete"));
    assert!(age >= elected.elapsed(), "{age:?} old, {:?} after the election of another leader", elected.elapsed());
    let not_ready = node.health().not_ready.expect("its state is old");
    assert!(not_ready.contains("not caught up"), "{not_ready}");
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn linearizable_read_ends_with_the_leadership() {
    let (cluster, leader, ..) = start().await;
    // Followers acknowledge heartbeats, so a linearizable read without its round could be answered from memory.
    tokio::time::sleep(Duration::from_secs(5)).await;
    cluster.board.isolate(leader, cluster.ids());
    let began = Instant::now();
    let of = |consistency| ask(cluster.node(leader), read(Query::Lease(name()), consistency));
    assert!(of(Consistency::Leader).await.is_ok(), "the leader may still answer from memory");
    let answer = of(Consistency::Linearizable).await;
    assert_eq!(answer, Err(RequestError::NoLeader));
    assert!(began.elapsed() < ENDED, "the read took {:?}: expected less than {ENDED:?}", began.elapsed());
    cluster.board.heal();
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn isolated_leader_ends_waits_and_keeps_their_places() {
    let (cluster, leader, second, _) = start().await;
    let lease = held(cluster.node(leader), acquire("a", 60_000, None)).await;
    let node = cluster.node(leader).clone();
    let first = tokio::spawn(async move { ask(&node, acquire("first", 60_000, Some(WAIT_MS))).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let node = cluster.node(second).clone();
    let other = tokio::spawn(async move { held(&node, acquire("second", 60_000, Some(WAIT_MS))).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    cluster.board.isolate(leader, cluster.ids());
    let ended = tokio::time::timeout(ENDED, first).await.expect("the wait hangs at the old leader").expect("no panic");
    assert!(matches!(ended, Err(RequestError::Unknown(_))), "the wait may still be granted: {ended:?}");
    let next = cluster.leader_except(&[leader]).await;
    assert_eq!(queue(cluster.node(next)).await, [holder("first"), holder("second")]);
    let node = cluster.node(next).clone();
    let again = tokio::spawn(async move { held(&node, acquire("first", 60_000, Some(WAIT_MS))).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    release(cluster.node(next), &lease).await;
    let granted = again.await.expect("granted");
    release(cluster.node(next), &granted).await;
    let then = other.await.expect("granted");
    assert!(then.token > granted.token);
    cluster.board.heal();
    cluster.shutdown().await;
}

/// No node can win an election while all links are cut, so the old leader leads again. A dropped request's removal from
/// the queue is still in progress then. It and the later entries are applied.
#[tokio::test(start_paused = true)]
async fn ended_wait_keeps_its_place_when_its_leader_leads_again() {
    let (cluster, leader, second, third) = start().await;
    held(cluster.node(leader), acquire("a", 60_000, None)).await;
    let wait = |by: &'static str| {
        let node = cluster.node(leader).clone();
        tokio::spawn(async move { ask(&node, acquire(by, 60_000, Some(WAIT_MS))).await })
    };
    let (stays, leaves) = (wait("stays"), wait("leaves"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    for id in cluster.ids() {
        cluster.board.isolate(id, cluster.ids());
    }
    leaves.abort();
    let ended = tokio::time::timeout(ENDED, stays).await.expect("the wait hangs at the old leader").expect("no panic");
    assert!(matches!(ended, Err(RequestError::Unknown(_))), "the wait may still be granted: {ended:?}");
    for other in [second, third] {
        cluster.board.reconnect(leader, other);
        cluster.board.reconnect(other, leader);
    }
    let healed = Instant::now();
    while queue(cluster.node(leader)).await.len() > 1 {
        assert!(healed.elapsed() < ENDED, "a dropped request keeps its place in the queue");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(queue(cluster.node(leader)).await, [holder("stays")]);
    cluster.board.heal();
    cluster.shutdown().await;
}

/// The old leader does not know the grants of its successor.
#[tokio::test(start_paused = true)]
async fn old_leader_does_not_call_a_token_of_its_successor_lost() {
    let (cluster, leader, _, _) = start().await;
    cluster.board.isolate(leader, cluster.ids());
    let next = cluster.leader_except(&[leader]).await;
    let lease = held(cluster.node(next), acquire("b", 60_000, None)).await;
    let leases = vec![Renewal { name: name(), token: lease.token, ttl: None }];
    let renewal = Request::Change(Command::Renew { holder: holder("b"), leases });
    let renewed = tokio::time::timeout(Duration::from_secs(60), ask(cluster.node(leader), renewal)).await;
    let renewed = renewed.expect("the renewal hangs at the old leader");
    assert!(matches!(renewed, Err(RequestError::Unknown(_) | RequestError::NoLeader)), "{renewed:?}");
    cluster.board.heal();
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn long_wait_continues_at_the_next_leader() {
    let (cluster, leader, second, _) = start().await;
    let lease = held(cluster.node(leader), acquire("a", 120_000, None)).await;
    let node = cluster.node(second).clone();
    let waiting = tokio::spawn(async move { held(&node, acquire("b", 60_000, Some(WAIT_MS))).await });
    // Longer than the retry time of a request without a wait.
    tokio::time::sleep(Duration::from_secs(20)).await;
    cluster.board.isolate(leader, cluster.ids());
    let next = cluster.leader_except(&[leader]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    release(cluster.node(next), &lease).await;
    let granted = tokio::time::timeout(ENDED, waiting).await.expect("the wait is granted in time").expect("no panic");
    assert!(granted.token > lease.token);
    cluster.board.heal();
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn isolated_leader_leads_again_without_an_election() {
    let (cluster, leader, second, third) = start().await;
    let term = cluster.node(leader).status().await.term;
    // After this answer, the leader has recorded the disks of its voters.
    let revoke = || Request::Change(Command::Revoke { name: name(), reason: "test".to_owned() });
    let revoked = ask(cluster.node(leader), revoke()).await.expect("answered");
    assert_eq!(revoked.answer, Answer::Outcome(Outcome::Revoked(0)));
    for id in cluster.ids() {
        cluster.board.isolate(id, cluster.ids());
    }
    // Only the leader has this entry, so it would not vote for the other nodes.
    let node = cluster.node(leader).clone();
    let late = tokio::spawn(async move { ask(&node, acquire("late", 60_000, None)).await });
    isolation().await;
    assert_eq!(cluster.node(leader).status().await.leader, None);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let ended = late.await.expect("no panic");
    assert!(matches!(ended, Err(RequestError::Unknown(_))), "{ended:?}");
    for other in [second, third] {
        cluster.board.reconnect(leader, other);
        cluster.board.reconnect(other, leader);
    }
    let healed = Instant::now();
    while cluster.node(leader).status().await.leader.is_none() {
        assert!(healed.elapsed() < ENDED, "the old leader does not lead again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = cluster.node(leader).status().await;
    assert_eq!((status.leader, status.term), (Some(leader), term));
    // The old entry is committed, the leader serves requests, and cluster time advances.
    let revoked = ask(cluster.node(leader), revoke()).await.expect("answered");
    assert_eq!(revoked.answer, Answer::Outcome(Outcome::Revoked(1)));
    held(cluster.node(leader), acquire("a", 2_000, None)).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let answer = ask(cluster.node(leader), read(Query::Lease(name()), Consistency::Leader)).await;
    let Answer::Lease(leases) = answer.expect("answered").answer else { panic!("leases") };
    assert_eq!(leases[0].state, LeaseState::Expired);
    cluster.board.heal();
    cluster.shutdown().await;
}

/// The followers hear the leader, and the leader does not hear them. Its heartbeats must not keep them from an election.
#[tokio::test(start_paused = true)]
async fn leader_that_hears_no_follower_is_replaced() {
    let (cluster, leader, second, third) = start().await;
    let lease = held(cluster.node(leader), acquire("a", 60_000, None)).await;
    for other in [second, third] {
        cluster.board.cut(other, leader);
    }
    let replaced = tokio::time::timeout(ENDED, cluster.leader_except(&[leader])).await;
    let next = replaced.unwrap_or_else(|_| panic!("no other leader within {ENDED:?}"));
    release(cluster.node(next), &lease).await;
    let granted = held(cluster.node(next), acquire("b", 60_000, None)).await;
    assert!(granted.token > lease.token);
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
}

/// Cluster time stands still while no node leads.
#[tokio::test(start_paused = true)]
async fn outage_shortens_no_lease_and_no_wait() {
    const OUTAGE: Duration = Duration::from_secs(60);
    for crashes in [false, true] {
        let (mut cluster, leader, second, third) = start().await;
        let lease = held(cluster.node(leader), acquire("a", 10_000, None)).await;
        let node = cluster.node(leader).clone();
        let waiting = tokio::spawn(async move { ask(&node, acquire("waits", 10_000, Some(10_000))).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        if crashes {
            for id in cluster.ids() {
                cluster.crash(id).await;
            }
            tokio::time::sleep(OUTAGE).await;
            for id in cluster.ids() {
                cluster.restart(id).await;
            }
        } else {
            for id in cluster.ids() {
                cluster.board.isolate(id, cluster.ids());
            }
            // Only the leader has this entry, so it would not vote for the other nodes, and leads again.
            let late = LeaseName::new("other").expect("valid");
            let Request::Acquire(claim) = acquire("late", 60_000, None) else { unreachable!("it is a claim") };
            let late = ask(cluster.node(leader), Request::Acquire(Acquire { name: late, ..claim })).await;
            assert!(matches!(late, Err(RequestError::Unknown(_))), "{late:?}");
            tokio::time::sleep(OUTAGE).await;
            for other in [second, third] {
                cluster.board.reconnect(leader, other);
                cluster.board.reconnect(other, leader);
            }
        }
        let ended = waiting.await.expect("no panic");
        assert!(matches!(ended, Err(RequestError::Unknown(_))), "the wait may still be granted: {ended:?}");
        let next = cluster.leader().await;
        assert_eq!(queue(cluster.node(next)).await, [holder("waits")], "all nodes crash: {crashes}");
        release(cluster.node(next), &lease).await;
        cluster.board.heal();
        cluster.shutdown().await;
    }
}

/// Two entries are in flight at most. Without a majority they never finish, so queued commands must not wait for them.
#[tokio::test(start_paused = true)]
async fn commands_queued_at_an_isolated_leader_end_with_no_leader() {
    let (cluster, leader, ..) = start().await;
    let lease = held(cluster.node(leader), acquire("a", 60_000, None)).await;
    let claim = |text: &str| {
        let Request::Acquire(claim) = acquire("b", 60_000, None) else { unreachable!("it is a claim") };
        Request::Acquire(Acquire { name: LeaseName::new(text).expect("valid"), ..claim })
    };
    let renew = || {
        let leases = vec![Renewal { name: name(), token: lease.token, ttl: None }];
        Request::Change(Command::Renew { holder: lease.holder.clone(), leases })
    };
    let send = |request| {
        let node = cluster.node(leader).clone();
        tokio::spawn(async move { ask(&node, request).await })
    };
    cluster.board.isolate(leader, cluster.ids());
    let isolated = Instant::now();
    let mut in_flight = Vec::new();
    for text in ["first", "second"] {
        in_flight.push(send(claim(text)));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for queued in [renew(), renew(), renew(), claim("third"), claim("fourth")].map(send) {
        assert_eq!(queued.await.expect("no panic"), Err(RequestError::NoLeader));
        assert!(isolated.elapsed() < ENDED, "after {:?}", isolated.elapsed());
    }
    for sent in in_flight {
        let answer = sent.await.expect("no panic");
        assert!(matches!(answer, Err(RequestError::Unknown(_))), "it is in the log of the old leader: {answer:?}");
    }
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
}

/// The last value of the gauge `tenure_raft_leader`.
#[derive(Clone, Default)]
struct LeaderGauge(Arc<parking_lot::Mutex<Option<f64>>>);

impl GaugeFn for LeaderGauge {
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {}
    fn set(&self, value: f64) {
        *self.0.lock() = Some(value);
    }
}

impl Recorder for LeaderGauge {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        if key.name() == "tenure_raft_leader" { Gauge::from_arc(Arc::new(self.clone())) } else { Gauge::noop() }
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[tokio::test(start_paused = true)]
async fn leader_gauge_is_zero_without_a_majority() {
    let gauge = LeaderGauge::default();
    let _recorder = metrics::set_default_local_recorder(&gauge);
    let (mut cluster, leader, second, third) = start().await;
    held(cluster.node(leader), acquire("a", 60_000, None)).await;
    // With the other nodes crashed, only the leader sets the gauge.
    cluster.crash(second).await;
    cluster.crash(third).await;
    // An uncommitted entry must not block the timekeeper.
    let node = cluster.node(leader).clone();
    let hanging = tokio::spawn(async move { ask(&node, acquire("b", 60_000, Some(WAIT_MS))).await });
    isolation().await;
    // The node sets its gauges once per second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*gauge.0.lock(), Some(0.0));
    hanging.abort();
}

/// Found by `scripts/faults`: a leader that was isolated led again in a later term. Then TCP delivered an acquire that
/// the leader between had answered.
#[tokio::test(start_paused = true)]
async fn late_request_is_not_executed_in_a_later_term() {
    // The request is sent again 3.0 and 6.2 seconds after its first time.
    const HEALED: Duration = Duration::from_secs(4);
    const LATE: Duration = Duration::from_millis(6_200);
    /// At this feature level, a forwarded request names the term of its leader.
    const LEVEL_OF_TERMS: u32 = 4;
    let (cluster, first, second, _) = start().await;
    let node = cluster.node(second).clone();
    while node.status().await.feature_level < LEVEL_OF_TERMS {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.board.isolate(first, cluster.ids());
    let sent = Instant::now();
    assert_eq!(node.leadership().leader, Some(first), "the request goes to the isolated leader");
    let lease = held(&node, acquire("a", 600_000, None)).await;
    release(&node, &lease).await;
    tokio::time::sleep_until(sent + HEALED).await;
    cluster.board.heal();
    let between = cluster.leader_except(&[first]).await;
    // The first leader gets the entries that it lacks.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.node(between).transfer_leadership_to(first).await, Ok(first));
    assert!(sent.elapsed() < LATE, "the first leader leads again when the request arrives");
    tokio::time::sleep_until(sent + LATE + Duration::from_secs(1)).await;
    assert_eq!(cluster.leader().await, first);
    let history = match ask(&node, read(Query::History(name()), Consistency::Leader)).await.expect("answered").answer {
        Answer::History(transitions) => transitions.into_iter().map(|transition| transition.change).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert!(matches!(history[..], [Change::Granted(_), Change::Released]), "one grant for one request: {history:?}");
    cluster.shutdown().await;
}
