//! The behavior of an in-memory cluster for its clients, under a paused clock.

use std::sync::Arc;
use std::time::Duration;

use tenure::client::{LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tenure::config::{LeaseSettings, RaftTimings};
use tenure::lease::{Acquire, CONFIRM_WINDOW_MS, Change, Command, LeaseState, Lost, LostReason, Outcome, Refusal};
use tenure::node::{Answer, Consistency, Forward, Local, Query, Request, RequestError, Response};
use tenure::testing::{Cluster, TestNode, TokioClock};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};

mod forming;
mod hung_disk;
mod isolated_leader;
mod members;
mod messages;
mod settings;
mod stale_reads;
mod stalls;
mod status;
mod stopping;
mod ticks;
mod time_limits;
mod waits;

fn name(text: &str) -> LeaseName {
    LeaseName::new(text).expect("valid")
}

fn holder(text: &str) -> HolderId {
    HolderId::new(text).expect("valid")
}

fn acquire(lease: &str, by: &str, ttl_ms: u64, wait_ms: Option<u64>) -> Request {
    Request::Acquire(Acquire {
        name: name(lease),
        holder: holder(by),
        ttl: Ttl::millis(ttl_ms).expect("valid"),
        wait_ms,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

async fn ask(node: &TestNode, request: Request) -> Result<Response, RequestError> {
    node.request(request, Forward::Once).await
}

async fn held(node: &TestNode, request: Request) -> tenure::lease::HolderLease {
    match ask(node, request).await.expect("answered").answer {
        Answer::Outcome(Outcome::Held { lease, .. }) => lease,
        other => panic!("not held: {other:?}"),
    }
}

async fn start() -> Cluster {
    Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await
}

/// The third node reads while the other nodes shut down. A client uses such a read to confirm its release.
#[tokio::test(start_paused = true)]
async fn linearizable_read_succeeds_while_other_nodes_stop() {
    let cluster = start().await;
    cluster.leader().await;
    let [one, two, three] = [1, 2, 3].map(|id| cluster.node(id).clone());
    let read = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let read = Request::Read { query: Query::Lease(name("job")), consistency: Consistency::Linearizable };
        ask(&three, read).await
    };
    let ((), (), read) = tokio::join!(one.shutdown(), two.shutdown(), read);
    assert!(read.is_ok(), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn each_node_takes_each_request_and_all_agree() {
    let cluster = start().await;
    cluster.leader().await;
    let lease = held(cluster.node(1), acquire("job", "a", 10_000, None)).await;
    for id in cluster.ids() {
        let again = held(cluster.node(id), acquire("job", "a", 10_000, None)).await;
        assert_eq!(again.token, lease.token, "acquiring again keeps the token");
        match ask(cluster.node(id), acquire("job", "b", 10_000, None)).await.expect("answered").answer {
            Answer::Outcome(Outcome::Refused(Refusal::Held { holder: by, .. })) => assert_eq!(by, holder("a")),
            other => panic!("{other:?}"),
        }
        for consistency in [Consistency::Leader, Consistency::Linearizable] {
            let read = Request::Read { query: Query::Lease(name("job")), consistency };
            match ask(cluster.node(id), read).await.expect("answered").answer {
                Answer::Lease(leases) => assert_eq!(leases[0].token, lease.token),
                other => panic!("{other:?}"),
            }
        }
    }
    let release = Command::Release { name: name("job"), holder: holder("a"), token: lease.token };
    let released = ask(cluster.node(2), Request::Change(release)).await.expect("answered");
    assert_eq!(released.answer, Answer::Outcome(Outcome::Released(true)));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lease_outlives_its_leader_and_expires_in_time() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let lease = held(cluster.node(leader), acquire("job", "a", 5_000, None)).await;
    let granted = tokio::time::Instant::now();
    cluster.crash(leader).await;
    let next = cluster.leader_except(&[leader]).await;
    let read = || Request::Read { query: Query::Lease(name("job")), consistency: Consistency::Leader };
    let state = |response: Response| match response.answer {
        Answer::Lease(leases) => (leases[0].state, leases[0].token),
        other => panic!("{other:?}"),
    };
    let mut last = LeaseState::Active;
    while last == LeaseState::Active {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let (now, token) = state(ask(cluster.node(next), read()).await.expect("answered"));
        assert_eq!(token, lease.token);
        last = now;
    }
    let lived = granted.elapsed();
    assert!(lived >= Duration::from_millis(5_000), "no_early_expiry: {lived:?}");
    // The outage, and at most one tick.
    assert!(lived <= Duration::from_millis(5_000 + 2_000 + 1_000), "expiry_happens: {lived:?}");
    assert_eq!(last, LeaseState::Expired);
    let later = held(cluster.node(next), acquire("job", "b", 5_000, None)).await;
    assert!(later.token > lease.token, "tokens_rise");
    cluster.restart(leader).await;
    cluster.leader().await;
    cluster.shutdown().await;
}

/// The followers have the last entry in their logs, and do not know yet that it is committed.
#[tokio::test(start_paused = true)]
async fn new_leader_counts_time_from_the_last_committed_entry() {
    const TTL_MS: u64 = 60_000;
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", TTL_MS, None)).await;
    let granted = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_millis(TTL_MS / 2)).await;
    for id in cluster.ids() {
        cluster.board.delay(leader, id, Duration::from_millis(20));
    }
    held(cluster.node(leader), acquire("other", "b", TTL_MS, None)).await;
    cluster.crash(leader).await;
    let next = cluster.leader_except(&[leader]).await;
    let claim = acquire("job", "c", TTL_MS, Some(2 * TTL_MS));
    held(cluster.node(next), claim).await;
    let lived = granted.elapsed();
    let outage_and_tick = Duration::from_millis(2_000 + 1_000);
    assert!(lived >= Duration::from_millis(TTL_MS), "no_early_expiry: {lived:?}");
    assert!(lived <= Duration::from_millis(TTL_MS) + outage_and_tick, "expiry_happens: {lived:?}");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn leader_shuts_down_although_a_lease_is_due() {
    for ttl_ms in (100..140).step_by(4) {
        let cluster = start().await;
        let leader = cluster.leader().await;
        held(cluster.node(leader), acquire("job", "a", ttl_ms, None)).await;
        tokio::time::sleep(Duration::from_millis(95)).await;
        cluster.shutdown().await;
    }
}

/// Two waiters wait for a held lease when all nodes and both waiters crash. Returns the holder's token.
async fn two_dead_waiters(cluster: &mut Cluster) -> FencingToken {
    let leader = cluster.leader().await;
    let lease = held(cluster.node(leader), acquire("job", "a", 3_000, None)).await;
    let mut waits = Vec::new();
    for who in ["dead-1", "dead-2"] {
        let node = cluster.node(leader).clone();
        waits.push(tokio::spawn(async move { ask(&node, acquire("job", who, 3_000, Some(60_000))).await.map(drop) }));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let ids: Vec<_> = cluster.ids().collect();
    for id in &ids {
        cluster.crash(*id).await;
    }
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    for id in &ids {
        cluster.restart(*id).await;
    }
    lease.token
}

#[tokio::test(start_paused = true)]
async fn dead_waiters_add_nothing_to_the_ttl_of_a_dead_holder() {
    let mut cluster = start().await;
    two_dead_waiters(&mut cluster).await;
    let leader = cluster.leader().await;
    let began = tokio::time::Instant::now();
    held(cluster.node(leader), acquire("job", "alive", 3_000, Some(60_000))).await;
    let waited = began.elapsed();
    assert!(waited <= Duration::from_millis(3_100), "expiry_happens: granted after {waited:?}");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn dead_waiters_delay_a_released_lease_by_the_confirm_window() {
    let mut cluster = start().await;
    let token = two_dead_waiters(&mut cluster).await;
    let leader = cluster.leader().await;
    let began = tokio::time::Instant::now();
    let release = Command::Release { name: name("job"), holder: holder("a"), token };
    let released = ask(cluster.node(leader), Request::Change(release)).await.expect("answered");
    assert_eq!(released.answer, Answer::Outcome(Outcome::Released(true)));
    held(cluster.node(leader), acquire("job", "alive", 3_000, Some(60_000))).await;
    let waited = began.elapsed();
    assert!(waited <= Duration::from_millis(CONFIRM_WINDOW_MS + 100), "granted after {waited:?}");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn waiter_keeps_its_place_over_a_leader_crash() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let lease = held(cluster.node(leader), acquire("job", "a", 5_000, None)).await;
    let other = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let node = cluster.node(other).clone();
    let first = tokio::spawn(async move { held(&node, acquire("job", "first", 5_000, Some(60_000))).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let node = cluster.node(other).clone();
    let second = tokio::spawn(async move { held(&node, acquire("job", "second", 5_000, Some(60_000))).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    cluster.crash(leader).await;
    let first = first.await.expect("granted");
    assert!(first.token > lease.token);
    let next = cluster.leader_except(&[leader]).await;
    let release = Command::Release { name: name("job"), holder: holder("first"), token: first.token };
    let released = ask(cluster.node(next), Request::Change(release)).await.expect("answered");
    assert_eq!(released.answer, Answer::Outcome(Outcome::Released(true)));
    let second = second.await.expect("granted");
    assert!(second.token > first.token);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn dropped_request_gives_up_its_place() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    for at in [leader, follower] {
        let node = cluster.node(at).clone();
        let waiting = tokio::spawn(async move { ask(&node, acquire("job", "b", 5_000, Some(60_000))).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(queue(cluster.node(leader)).await, 1);
        waiting.abort();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(queue(cluster.node(leader)).await, 0, "asked at node {at}, leader {leader}");
    }
    cluster.shutdown().await;
}

/// Two requests of one holder share one place in the queue.
#[tokio::test(start_paused = true)]
async fn place_stays_while_one_request_of_its_holder_waits() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let lease = held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    for at in [leader, follower] {
        let wait = |by: &'static str| {
            let node = cluster.node(at).clone();
            tokio::spawn(async move { ask(&node, acquire("job", by, 5_000, Some(60_000))).await.map(drop) })
        };
        let (leaves, stays) = (wait("b"), wait("b"));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let next = wait("c");
        tokio::time::sleep(Duration::from_millis(50)).await;
        leaves.abort();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(queued(cluster.node(leader)).await, ["b", "c"], "asked at node {at}, leader {leader}");
        assert!(!stays.is_finished(), "the other request still waits");
        stays.abort();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(queued(cluster.node(leader)).await, ["c"], "the last dropped request removes the place");
        next.abort();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let release = Command::Release { name: name("job"), holder: holder("a"), token: lease.token };
    ask(cluster.node(leader), Request::Change(release)).await.expect("answered");
    cluster.shutdown().await;
}

async fn queue(node: &TestNode) -> usize {
    match ask(node, read_queue()).await.expect("answered").answer {
        Answer::Queue(waiters) => waiters.len(),
        Answer::QueuePart { total, .. } => total as usize,
        other => panic!("{other:?}"),
    }
}

fn read_queue() -> Request {
    Request::Read { query: Query::Queue(name("job")), consistency: Consistency::Leader }
}

/// The holders in the queue, in its order.
async fn queued(node: &TestNode) -> Vec<String> {
    match ask(node, read_queue()).await.expect("answered").answer {
        Answer::Queue(waiters) => waiters.iter().map(|waiter| waiter.holder.to_string()).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn expired_wait_returns_wait_timeout() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    let began = tokio::time::Instant::now();
    let answer = ask(cluster.node(leader), acquire("job", "b", 5_000, Some(700))).await.expect("answered").answer;
    assert_eq!(answer, Answer::WaitTimeout);
    assert!(began.elapsed() >= Duration::from_millis(700) && began.elapsed() < Duration::from_millis(800));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn change_without_a_majority_is_unknown_or_refused() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    cluster.board.isolate(leader, cluster.ids());
    let answer = cluster.node(leader).request(acquire("job", "a", 10_000, None), Forward::Once).await;
    assert!(matches!(answer, Err(RequestError::Unknown(_) | RequestError::NoLeader)), "{answer:?}");
    cluster.board.heal();
    cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", 10_000, None)).await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn isolated_leader_refuses_and_is_not_ready() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    cluster.board.isolate(leader, cluster.ids());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(cluster.node(leader).health().not_ready.is_some());
    let answer = cluster.node(leader).request(acquire("job", "a", 10_000, None), Forward::Once).await;
    assert_eq!(answer, Err(RequestError::NoLeader), "the leader proposed no entry, so the refusal is certain");
    let next = cluster.leader_except(&[leader]).await;
    assert_eq!(cluster.node(next).health().not_ready, None);
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn leader_restarted_alone_reports_no_leader() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    for id in cluster.ids() {
        cluster.crash(id).await;
    }
    cluster.restart(leader).await;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let status = cluster.node(leader).status().await;
        assert_eq!(status.leader, None, "{status:?}");
    }
    let others: Vec<_> = cluster.ids().filter(|id| *id != leader).collect();
    for id in others {
        cluster.restart(id).await;
    }
    cluster.leader().await;
    cluster.shutdown().await;
}

/// Without a pre-vote, the follower would return with a higher term.
#[tokio::test(start_paused = true)]
async fn reconnected_node_does_not_depose_the_leader() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let lost = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let before = cluster.node(leader).status().await;
    cluster.board.isolate(lost, cluster.ids());
    tokio::time::sleep(Duration::from_secs(10)).await;
    cluster.board.heal();
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.leader().await;
    let after = cluster.node(leader).status().await;
    assert_eq!((after.leader, after.term), (Some(leader), before.term));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn refused_retry_after_a_lost_answer_stays_unknown() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    // The follower then knows the feature level of the leader.
    held(cluster.node(follower), acquire("job", "b", 60_000, None)).await;
    // The forwarded request reaches the leader, and its answer is lost.
    cluster.board.cut(leader, follower);
    let node = cluster.node(follower).clone();
    let claim = tokio::spawn(async move { ask(&node, acquire("job", "a", 60_000, None)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    cluster.board.isolate(leader, cluster.ids());
    let answer = claim.await.expect("no panic");
    assert!(matches!(&answer, Err(RequestError::Unknown(why)) if why.contains("refused")), "{answer:?}");
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn manager_on_follower_keeps_its_lease_over_leader_crash() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three");
    let options = ManagerOptions::new().holder(holder("program")).clock(Arc::new(TokioClock::new()));
    let leases =
        LeaseManager::with_options(Local::new(cluster.node(follower).clone()), options).expect("valid options");
    let ttl = LeaseOptions::new().ttl(Duration::from_secs(6));
    let lease = leases.lease_with("job", ttl).expect("valid");
    let token = lease.acquire(Wait::No).await.expect("granted");
    cluster.crash(leader).await;
    // Three ttls: without renewals at the new leader, the lease would expire.
    tokio::time::sleep(Duration::from_secs(18)).await;
    assert!(lease.is_held() && lease.check().await.expect("an answer"));
    assert_eq!(lease.token(), Some(token), "the lease was never lost");
    leases.shutdown().await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn wait_without_a_leader_is_unknown_while_its_place_stays() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (next, third) = (others.next().expect("three"), others.next().expect("three"));
    let node = cluster.node(third).clone();
    let waiting = tokio::spawn(async move { ask(&node, acquire("job", "b", 5_000, Some(5_000))).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The old leader reports that it no longer leads, and no other leader exists. The place in the queue remains.
    cluster.node(leader).transfer_leadership_to(next).await.expect("handed on");
    cluster.crash(next).await;
    cluster.crash(leader).await;
    let ended = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    let answer =
        ended.expect("the request ends soon after its wait, although its node still knows a leader").expect("no panic");
    assert!(matches!(answer, Err(RequestError::Unknown(_))), "the wait may still be granted: {answer:?}");
}

#[tokio::test(start_paused = true)]
async fn wait_granted_and_revoked_in_one_entry_is_lost() {
    let cluster = start().await;
    let leader = cluster.node(cluster.leader().await).clone();
    let first = held(&leader, acquire("job", "a", 60_000, None)).await;
    let node = leader.clone();
    let waiting = tokio::spawn(async move { ask(&node, acquire("job", "b", 5_000, Some(5_000))).await });
    while queue(&leader).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The first entry is in progress when the two other requests arrive, so the next entry contains both.
    let filler = ask(&leader, acquire("other", "c", 60_000, None));
    let release = Command::Release { name: name("job"), holder: holder("a"), token: first.token };
    let revoke = Command::Revoke { name: name("job"), reason: "test".to_owned() };
    let (_, released, revoked) =
        tokio::join!(filler, ask(&leader, Request::Change(release)), ask(&leader, Request::Change(revoke)));
    assert_eq!(released.expect("answered").answer, Answer::Outcome(Outcome::Released(true)));
    assert_eq!(revoked.expect("answered").answer, Answer::Outcome(Outcome::Revoked(1)));
    let history = Request::Read { query: Query::History(name("job")), consistency: Consistency::Leader };
    let Answer::History(history) = ask(&leader, history).await.expect("answered").answer else { panic!("a history") };
    let last = history.last().expect("the lease has a history");
    assert!(matches!(last.change, Change::Revoked { .. }) && last.holder == holder("b"), "{last:?}");
    assert_eq!(last.token.index(), last.index, "the same entry granted the lease");
    let lost = Refusal::Lost(Lost { cause: LostReason::Revoked, holder: None });
    assert_eq!(waiting.await.expect("no panic").expect("answered").answer, Answer::Outcome(Outcome::Refused(lost)));
    let read = Request::Read { query: Query::Lease(name("job")), consistency: Consistency::Leader };
    let Answer::Lease(leases) = ask(&leader, read).await.expect("answered").answer else { panic!("leases") };
    assert!(
        leases.iter().all(|lease| lease.state != LeaseState::Active),
        "no request acquired the lease again: {leases:?}"
    );
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn acquire_with_shorter_ttl_shortens_the_remaining_time() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "program", 4_000, None)).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let options = ManagerOptions::new().holder(holder("program")).clock(Arc::new(TokioClock::new()));
    let leases = LeaseManager::with_options(Local::new(cluster.node(leader).clone()), options).expect("valid options");
    let lease = leases.lease_with("job", LeaseOptions::new().ttl(Duration::from_millis(500))).expect("valid");
    lease.acquire(Wait::No).await.expect("the holder acquires its own lease again");
    let left = lease.remaining().expect("held");
    assert!(left <= Duration::from_secs(1), "the lease lasts 1 s in the cluster, and {left:?} at its holder");
    leases.shutdown().await;
    cluster.shutdown().await;
}

/// An acquire of the lease `job-{number}`.
fn numbered(number: u64, metadata: Metadata) -> Request {
    Request::Acquire(Acquire {
        name: name(&format!("job-{number}")),
        holder: holder("a"),
        ttl: Ttl::INFINITE,
        wait_ms: None,
        lock_delay_ms: 0,
        limit: 1,
        metadata,
    })
}

#[tokio::test(start_paused = true)]
async fn slow_follower_catches_up_while_snapshots_are_taken() {
    let mut timings = RaftTimings::lan();
    (timings.snapshot_every, timings.snapshot_keep) = (100, 10);
    let mut cluster = Cluster::start(3, timings, LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let slow = cluster.ids().find(|id| *id != leader).expect("three nodes");
    cluster.crash(slow).await;
    // The snapshot needs several messages, and the leader purges entries that the follower lacks.
    let large = Metadata::new([("text".to_owned(), "x".repeat(4_000))].into()).expect("valid");
    for number in 0..400 {
        held(cluster.node(leader), numbered(number, large.clone())).await;
    }
    // The transfer takes several times as long as writing 100 entries.
    cluster.board.delay(leader, slow, Duration::from_millis(400));
    cluster.restart(slow).await;
    let node = cluster.node(leader).clone();
    let writes = tokio::spawn(async move {
        for number in 400.. {
            held(&node, numbered(number, Metadata::default())).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let began = tokio::time::Instant::now();
    loop {
        let (ahead, behind) = (cluster.node(leader).status().await.applied, cluster.node(slow).status().await.applied);
        if behind + 100 > ahead {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "the follower is at {behind} of {ahead}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    writes.abort();
    cluster.shutdown().await;
}

/// The new leader has never reached the stopped node, so it assumes that the node lacks all entries.
#[tokio::test(start_paused = true)]
async fn unreached_member_lags_by_the_whole_log() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let others: Vec<_> = cluster.ids().filter(|id| *id != leader).collect();
    for number in 0..20 {
        held(cluster.node(leader), acquire(&format!("job-{number}"), "a", 60_000, None)).await;
    }
    cluster.crash(others[0]).await;
    cluster.node(leader).transfer_leadership_to(others[1]).await.expect("handed on");
    for at in [leader, others[1]] {
        let known_lags = async {
            loop {
                let status = cluster.node(at).status().await;
                if status.members.iter().all(|member| member.lag.is_some()) {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let status = tokio::time::timeout(Duration::from_secs(20), known_lags).await.expect("the leader answers");
        let lag = |id| status.members.iter().find(|member| member.id == id).expect("a member").lag;
        assert_eq!(status.leader, Some(others[1]));
        assert_eq!(lag(others[1]), Some(0), "at node {at}");
        assert!(lag(others[0]).is_some_and(|lag| lag >= status.applied), "at node {at}: {status:?}");
    }
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn transfer_to_an_isolated_node_ends_with_another_leader() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (lost, third) = (others.next().expect("three"), others.next().expect("three"));
    cluster.board.isolate(lost, cluster.ids());
    let began = tokio::time::Instant::now();
    assert_eq!(cluster.node(leader).transfer_leadership_to(lost).await, Ok(third));
    assert!(began.elapsed() < Duration::from_secs(3), "the cluster accepted no writes for {:?}", began.elapsed());
    held(cluster.node(leader), acquire("job", "a", 10_000, None)).await;
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
}
