//! A whole cluster in memory, under a paused clock: what clients see of it.

use std::sync::Arc;
use std::time::Duration;

use tenure::client::{LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tenure::config::{LeaseSettings, RaftTimings};
use tenure::lease::{Acquire, CONFIRM_WINDOW_MS, Change, Command, LeaseState, Lost, LostCause, Outcome, Refusal};
use tenure::node::{Answer, Consistency, Forward, Local, NodeFailure, Query, Request, RequestError, Response};
use tenure::testing::{Cluster, Safeguards, TestNode, TokioClock};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};

mod forming;
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

async fn held(node: &TestNode, request: Request) -> tenure::lease::Lease {
    match ask(node, request).await.expect("answered").answer {
        Answer::Outcome(Outcome::Held { lease, .. }) => lease,
        other => panic!("not held: {other:?}"),
    }
}

async fn start() -> Cluster {
    Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await
}

/// The program of the third node asks whether what it gave up is gone, when the others have nothing left to wait for.
#[tokio::test(start_paused = true)]
async fn nodes_that_stop_together_confirm_what_was_given_up() {
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
async fn any_node_takes_any_request_and_all_agree() {
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
async fn a_lease_outlives_its_leader_and_expires_in_time() {
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
    // The outage, and one tick at most.
    assert!(lived <= Duration::from_millis(5_000 + 2_000 + 1_000), "expiry_happens: {lived:?}");
    assert_eq!(last, LeaseState::Expired);
    let later = held(cluster.node(next), acquire("job", "b", 5_000, None)).await;
    assert!(later.token > lease.token, "tokens_rise");
    cluster.restart(leader).await;
    cluster.leader().await;
    cluster.shutdown().await;
}

/// The followers have the last entry in their logs and do not know yet that it is committed.
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
async fn a_leader_that_ends_hands_its_leadership_on_although_a_lease_is_due() {
    for ttl_ms in (100..140).step_by(4) {
        let cluster = start().await;
        let leader = cluster.leader().await;
        held(cluster.node(leader), acquire("job", "a", ttl_ms, None)).await;
        tokio::time::sleep(Duration::from_millis(95)).await;
        cluster.shutdown().await;
    }
}

/// Two waiters wait behind a holder when all nodes crash, and they crash with them. Returns the token of the holder.
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
async fn dead_waiters_keep_a_released_lease_for_a_second() {
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
async fn a_waiter_keeps_its_place_over_the_death_of_the_leader() {
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
async fn a_request_that_goes_away_gives_up_its_place() {
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

/// Two requests of one holder wait for one place.
#[tokio::test(start_paused = true)]
async fn place_stays_while_one_request_of_its_holder_waits() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let lease = held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    for at in [leader, follower] {
        let wait = || {
            let node = cluster.node(at).clone();
            tokio::spawn(async move { ask(&node, acquire("job", "b", 5_000, Some(60_000))).await.map(drop) })
        };
        let (leaves, stays) = (wait(), wait());
        tokio::time::sleep(Duration::from_millis(50)).await;
        leaves.abort();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(queue(cluster.node(leader)).await, 1, "asked at node {at}, leader {leader}");
        assert!(!stays.is_finished(), "it waits on");
        stays.abort();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(queue(cluster.node(leader)).await, 0, "the last request gives the place up");
    }
    let release = Command::Release { name: name("job"), holder: holder("a"), token: lease.token };
    ask(cluster.node(leader), Request::Change(release)).await.expect("answered");
    cluster.shutdown().await;
}

async fn queue(node: &TestNode) -> usize {
    let read = Request::Read { query: Query::Queue(name("job")), consistency: Consistency::Leader };
    match ask(node, read).await.expect("answered").answer {
        Answer::Queue(waiters) => waiters.len(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_says_so() {
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
async fn without_a_majority_a_change_is_unknown_or_refused_and_never_lost_in_between() {
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
async fn a_leader_whose_disk_hangs_gives_way() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let lease = held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    cluster.hang_disk(leader);
    let hung = tokio::time::Instant::now();
    let other = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let next = cluster.leader_except(&[leader]).await;
    let again = held(cluster.node(other), acquire("job", "a", 60_000, None)).await;
    assert_eq!(again.token, lease.token);
    assert!(hung.elapsed() < Duration::from_secs(6), "leader {next} after {:?}", hung.elapsed());
    assert!(cluster.node(leader).health().not_ready.is_some());
    let failed = tokio::time::timeout(Duration::from_secs(60), cluster.node(leader).wait_failed()).await;
    assert!(matches!(failed.expect("it gives up"), NodeFailure::DiskStalled(_)));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_refuses_and_says_it_is_not_ready() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    cluster.board.isolate(leader, cluster.ids());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(cluster.node(leader).health().not_ready.is_some());
    let answer = cluster.node(leader).request(acquire("job", "a", 10_000, None), Forward::Once).await;
    assert_eq!(answer, Err(RequestError::NoLeader), "nothing was proposed, so this is certain");
    let next = cluster.leader_except(&[leader]).await;
    assert_eq!(cluster.node(next).health().not_ready, None);
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_restarts_alone_does_not_say_that_it_leads() {
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

/// Cuts one follower off for a while. Whether its return deposed the leader.
async fn return_of_a_lost_node(safeguards: Safeguards) -> bool {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let lost = cluster.ids().find(|id| *id != leader).expect("three nodes");
    cluster.crash(lost).await;
    cluster.restart_without(lost, safeguards).await;
    cluster.leader().await;
    let before = cluster.node(leader).status().await;
    cluster.board.isolate(lost, cluster.ids());
    tokio::time::sleep(Duration::from_secs(10)).await;
    cluster.board.heal();
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.leader().await;
    let after = cluster.node(leader).status().await;
    cluster.shutdown().await;
    after.term != before.term
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_cut_off_comes_back_without_deposing_the_leader() {
    assert!(!return_of_a_lost_node(Safeguards::default()).await);
    let without = Safeguards { pre_vote: false, ..Safeguards::default() };
    assert!(return_of_a_lost_node(without).await, "the schedule no longer shows what the pre-vote is for");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_refused_after_a_try_without_an_answer_stays_unknown() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    held(cluster.node(leader), acquire("job", "b", 60_000, None)).await;
    // What the follower passes on arrives, and its answer does not.
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
async fn a_manager_over_a_follower_holds_on_while_the_leader_dies() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three");
    let options = ManagerOptions::new().holder(holder("program")).clock(Arc::new(TokioClock::new()));
    let leases = LeaseManager::with_options(Local::new(cluster.node(follower).clone()), options);
    let ttl = LeaseOptions::new().ttl(Duration::from_secs(6));
    let lease = leases.lease_with("job", ttl).expect("valid");
    let token = lease.acquire(Wait::No).await.expect("granted");
    cluster.crash(leader).await;
    // Three ttls: without renewals at the new leader it would be over.
    tokio::time::sleep(Duration::from_secs(18)).await;
    assert!(lease.is_held() && lease.check().await.expect("an answer"));
    assert_eq!(lease.token(), Some(token), "it was never lost");
    leases.shutdown().await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_whose_leader_went_is_not_refused_while_its_place_stays() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (next, third) = (others.next().expect("three"), others.next().expect("three"));
    let node = cluster.node(third).clone();
    let waiting = tokio::spawn(async move { ask(&node, acquire("job", "b", 5_000, Some(5_000))).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The old leader says that it leads no more, and nobody else can be asked: the place in the queue is still there.
    cluster.node(leader).transfer_leadership_to(next).await.expect("handed on");
    cluster.crash(next).await;
    cluster.crash(leader).await;
    let ended = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    let answer = ended.expect("it ends soon after its wait, though its node believes in a leader").expect("no panic");
    assert!(matches!(answer, Err(RequestError::Unknown(_))), "it may be granted yet: {answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_granted_and_revoked_in_one_entry_ends_as_lost() {
    let cluster = start().await;
    let leader = cluster.node(cluster.leader().await).clone();
    let first = held(&leader, acquire("job", "a", 60_000, None)).await;
    let node = leader.clone();
    let waiting = tokio::spawn(async move { ask(&node, acquire("job", "b", 5_000, Some(5_000))).await });
    while queue(&leader).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The first entry is under way when the two others come, so these are in the next one together.
    let filler = ask(&leader, acquire("other", "c", 60_000, None));
    let release = Command::Release { name: name("job"), holder: holder("a"), token: first.token };
    let revoke = Command::Revoke { name: name("job"), reason: "test".to_owned() };
    let (_, released, revoked) =
        tokio::join!(filler, ask(&leader, Request::Change(release)), ask(&leader, Request::Change(revoke)));
    assert_eq!(released.expect("answered").answer, Answer::Outcome(Outcome::Released(true)));
    assert_eq!(revoked.expect("answered").answer, Answer::Outcome(Outcome::Revoked(1)));
    let history = Request::Read { query: Query::History(name("job")), consistency: Consistency::Leader };
    let Answer::History(history) = ask(&leader, history).await.expect("answered").answer else { panic!("a history") };
    let last = history.last().expect("it has a history");
    assert!(matches!(last.change, Change::Revoked { .. }) && last.holder == holder("b"), "{last:?}");
    assert_eq!(last.token.index, last.index, "granted by the same entry");
    let lost = Refusal::Lost(Lost { cause: LostCause::Revoked, holder: None });
    assert_eq!(waiting.await.expect("no panic").expect("answered").answer, Answer::Outcome(Outcome::Refused(lost)));
    let read = Request::Read { query: Query::Lease(name("job")), consistency: Consistency::Leader };
    let Answer::Lease(leases) = ask(&leader, read).await.expect("answered").answer else { panic!("leases") };
    assert!(leases.iter().all(|lease| lease.state != LeaseState::Active), "nobody claimed it again: {leases:?}");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_with_a_shorter_ttl_is_not_believed_for_longer_than_the_lease_lasts() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "program", 4_000, None)).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let options = ManagerOptions::new().holder(holder("program")).clock(Arc::new(TokioClock::new()));
    let leases = LeaseManager::with_options(Local::new(cluster.node(leader).clone()), options);
    let lease = leases.lease_with("job", LeaseOptions::new().ttl(Duration::from_millis(500))).expect("valid");
    lease.acquire(Wait::No).await.expect("it is its own");
    let left = lease.remaining().expect("held");
    assert!(left <= Duration::from_secs(1), "the cluster has it for a second, and its holder for {left:?}");
    leases.shutdown().await;
    cluster.shutdown().await;
}

/// A name for each number.
fn numbered(number: u64, metadata: Metadata) -> Request {
    Request::Acquire(Acquire {
        name: name(&format!("job-{number}")),
        holder: holder("a"),
        ttl: Ttl::Infinite,
        wait_ms: None,
        lock_delay_ms: 0,
        limit: 1,
        metadata,
    })
}

#[tokio::test(start_paused = true)]
async fn a_slow_follower_catches_up_while_snapshots_are_taken() {
    let timings = RaftTimings { snapshot_every: 100, snapshot_keep: 10, ..RaftTimings::lan() };
    let mut cluster = Cluster::start(3, timings, LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let slow = cluster.ids().find(|id| *id != leader).expect("three nodes");
    cluster.crash(slow).await;
    // A snapshot of several messages, and a log that is purged far enough for the follower to need it.
    let large = Metadata::new([("text".to_owned(), "x".repeat(4_000))].into()).expect("valid");
    for number in 0..400 {
        held(cluster.node(leader), numbered(number, large.clone())).await;
    }
    // The transfer takes several times as long as 100 entries.
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

/// The new leader has never reached the node that is down, so it lacks all entries as far as is known.
#[tokio::test(start_paused = true)]
async fn a_member_that_no_message_reached_lags_by_the_whole_log() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let others: Vec<_> = cluster.ids().filter(|id| *id != leader).collect();
    for number in 0..20 {
        held(cluster.node(leader), acquire(&format!("job-{number}"), "a", 60_000, None)).await;
    }
    cluster.crash(others[0]).await;
    cluster.node(leader).transfer_leadership_to(others[1]).await.expect("handed on");
    for at in [leader, others[1]] {
        let is_asked = async {
            loop {
                let status = cluster.node(at).status().await;
                if status.members.iter().all(|member| member.lag.is_some()) {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let status = tokio::time::timeout(Duration::from_secs(20), is_asked).await.expect("the leader answers");
        let lag = |id| status.members.iter().find(|member| member.id == id).expect("a member").lag;
        assert_eq!(status.leader, Some(others[1]));
        assert_eq!(lag(others[1]), Some(0), "at node {at}");
        assert!(lag(others[0]).is_some_and(|lag| lag >= status.applied), "at node {at}: {status:?}");
    }
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_transfer_to_a_lost_node_ends_with_another_leader() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (lost, third) = (others.next().expect("three"), others.next().expect("three"));
    cluster.board.isolate(lost, cluster.ids());
    let began = tokio::time::Instant::now();
    assert_eq!(cluster.node(leader).transfer_leadership_to(lost).await, Ok(third));
    assert!(began.elapsed() < Duration::from_secs(3), "nothing could be written for {:?}", began.elapsed());
    held(cluster.node(leader), acquire("job", "a", 10_000, None)).await;
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
}
