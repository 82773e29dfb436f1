//! Acquires: granted, refused or unknown.

use std::time::Duration;

use tenure::api::{Acquire, Code};
use tenure::client::{AcquireOptions, CallError, HoldState, Lease, LeaseOptions, ManagerOptions, Wait};
use tenure::testing::{FakeCluster, Line, Switch};
use tenure::token::FencingToken;
use tenure::types::HolderId;
use tokio::time::Instant;

use crate::link::{ClaimFate, Link};
use crate::steady::safety;
use crate::world::{LONG, OPERATION, TTL, World, over_both_transports, short, until, wait_in_queue};

over_both_transports!(
    new_handle_acquires_nothing,
    refusal_names_the_holder_and_its_deadline,
    repeated_acquire_returns_the_same_grant,
    handles_of_one_name_share_one_lease,
    acquire_without_an_answer_is_unknown_and_not_held,
    abandoned_wait_leaves_nothing_held,
    dropped_acquire_leaves_nothing_held,
    acquire_without_a_cluster_ends_within_its_timeout,
    wait_up_to_ends_after_its_duration,
    wait_for_ttl_outlasts_a_dead_holder,
    waiters_are_granted_in_fifo_order,
    grant_after_a_wait_has_its_full_ttl,
    shorter_ttl_does_not_restart_a_longer_one,
    retries_come_after_their_delay,
    retries_share_the_remaining_wait,
    should_hold_refuses_without_a_request,
    concurrent_acquires_have_one_holder,
);

pub fn code(error: &CallError) -> Option<Code> {
    match error {
        CallError::Refused(problem) => Some(problem.code),
        _ => None,
    }
}

async fn new_handle_acquires_nothing(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short()).expect("a valid name");
    assert_eq!((lease.is_held(), lease.should_hold(), lease.remaining()), (false, true, None));
    assert_eq!((lease.state(), lease.token()), (HoldState::Idle, None));
    assert_eq!(lease.check().await, Ok(false));
    assert!(lease.ended().is_cancelled(), "there is no grant");
    let taken = other.manager.lease("job").expect("a valid name").acquire(Wait::No).await;
    assert!(taken.is_ok(), "the lease was free: {taken:?}");
}

async fn refusal_names_the_holder_and_its_deadline(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short()).expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    assert!(lease.is_held() && lease.remaining().is_some_and(|left| left < TTL));
    assert_eq!(lease.token(), Some(token));
    assert_eq!(lease.check().await, Ok(true));
    let refused = other
        .manager
        .lease("job")
        .expect("a valid name")
        .acquire(Wait::No)
        .await
        .expect_err("another holder has the lease");
    let CallError::Refused(problem) = refused else { panic!("{refused:?}") };
    assert_eq!(problem.code, Code::Held);
    assert_eq!(problem.holder.as_deref(), Some(one.manager.holder().as_str()));
    assert_eq!(problem.token, Some(token));
    assert!(problem.since.is_some() && problem.retry_after_ms.is_some_and(|ms| ms <= TTL.as_millis() as u64 + 1));
    assert!(other.manager.try_acquire("job").await.expect("the cluster answers").is_none());
}

async fn repeated_acquire_returns_the_same_grant(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(lease.acquire(Wait::No).await, Ok(token));
    let history = world.remote().history(lease.name()).await.expect("the cluster answers").transitions;
    assert_eq!(history.len(), 1, "one grant: {history:?}");
}

async fn handles_of_one_name_share_one_lease(world: &World) {
    let holder = world.holder();
    let (one, other) =
        (holder.manager.lease("job").expect("a valid name"), holder.manager.lease("job").expect("a valid name"));
    let token = one.acquire(Wait::No).await.expect("the lease is free");
    assert!(other.is_held());
    assert_eq!(holder.manager.clone().lease("job").expect("a valid name").token(), Some(token));
    assert_eq!(other.release().await, Ok(true));
    assert!(!one.is_held());
}

async fn acquire_without_an_answer_is_unknown_and_not_held(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a valid name");
    // The first answer tells the node of `one` the feature level of the leader. Without it, no request would be sent.
    let earlier = one.manager.lease("earlier").expect("a valid name");
    earlier.acquire(Wait::No).await.expect("free");
    one.switch.set(Line::Deaf);
    let unknown = lease.acquire(Wait::No).await.expect_err("no answer arrives");
    assert!(matches!(unknown, CallError::Unknown { .. }), "{unknown:?}");
    assert!(!lease.is_held());
    assert_eq!(lease.state(), HoldState::Idle);
    let refused = other
        .manager
        .lease("job")
        .expect("a valid name")
        .acquire(Wait::No)
        .await
        .expect_err("the cluster granted the lease before");
    let CallError::Refused(problem) = refused else { panic!("{refused:?}") };
    one.switch.set(Line::Up);
    assert_eq!(lease.acquire(Wait::No).await.ok(), problem.token, "a retry returns the same grant");
    assert_eq!(lease.release().await, Ok(true));
    // Without a retry, a release resolves the ambiguous claim.
    one.switch.set(Line::Deaf);
    assert!(lease.acquire(Wait::No).await.is_err());
    one.switch.set(Line::Up);
    assert_eq!(lease.release().await, Ok(true));
    assert!(other.manager.lease("job").expect("a valid name").acquire(Wait::No).await.is_ok());
}

async fn abandoned_wait_leaves_nothing_held(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let held = other.manager.lease("job").expect("a valid name");
    held.acquire(Wait::No).await.expect("the lease is free");
    let lease = one.manager.lease("job").expect("a valid name");
    let waiting = tokio::time::timeout(Duration::from_millis(300), lease.acquire(Wait::UpTo(LONG))).await;
    assert!(waiting.is_err(), "another holder has the lease");
    assert_eq!(held.release().await, Ok(true));
    let third = world.holder();
    let begun = Instant::now();
    third.manager.lease("job").expect("a valid name").acquire(Wait::UpTo(LONG)).await.expect("the lease is free");
    assert!(begun.elapsed() < Duration::from_secs(5), "long before the default ttl: {:?}", begun.elapsed());
    assert!(!lease.is_held());
}

/// A claim can reach the cluster after its caller was dropped. The manager must not treat it as withdrawn before that.
async fn dropped_acquire_leaves_nothing_held(world: &World) {
    const DROPS: u32 = 30;
    let (one, other) = (world.holder(), world.holder());
    for drop in 0..DROPS {
        let (name, wait) = (format!("job-{drop}"), [Wait::No, Wait::UpTo(LONG)][drop as usize % 2]);
        let lease = one.manager.lease(&name).expect("a valid name");
        // With a timeout of 0, the caller is dropped right after it sent the claim.
        let given_up = tokio::time::timeout(Duration::from_micros(300) * drop, lease.acquire(wait)).await;
        if given_up.is_ok() {
            lease.release().await.expect("the cluster answers");
        }
        let next = other.manager.lease(&name).expect("a valid name");
        let granted = next.acquire(Wait::UpTo(Duration::from_secs(5))).await;
        assert!(granted.is_ok(), "long before the default ttl, drop {drop}: {granted:?}");
    }
}

async fn acquire_without_a_cluster_ends_within_its_timeout(world: &World) {
    let holder = world.holder();
    holder.switch.set(Line::Cut);
    let begun = Instant::now();
    let ended = holder.manager.lease("job").expect("a valid name").acquire(Wait::No).await;
    assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
    assert!(begun.elapsed() < OPERATION + Duration::from_secs(1), "{:?}", begun.elapsed());
}

/// The second acquire begins during the first one, which has no answer.
#[tokio::test(start_paused = true)]
async fn acquire_behind_an_acquire_ends_within_its_timeout() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new().operation_timeout(OPERATION));
    switch.set(Line::Cut);
    let lease = manager.lease("job").expect("a valid name");
    let acquire = async |delay: Duration| {
        tokio::time::sleep(delay).await;
        let begun = Instant::now();
        let ended = lease.acquire(Wait::No).await;
        assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
        assert!(begun.elapsed() < OPERATION * 5 / 4, "{:?}", begun.elapsed());
    };
    tokio::join!(acquire(Duration::ZERO), acquire(OPERATION / 4));
}

/// The first acquire waits in the queue. The second one waits for it until the operation timeout, and then retries.
#[tokio::test(start_paused = true)]
async fn acquire_behind_an_acquire_is_retried() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager_with(ManagerOptions::new().operation_timeout(OPERATION));
    let lease = manager.lease("job").expect("a valid name");
    cluster.mark_held_elsewhere("job");
    let first = wait_in_queue(&cluster, &lease, LONG).await;
    let second = tokio::spawn({
        let lease = lease.clone();
        async move { lease.acquire(AcquireOptions::new().retries(1, OPERATION)).await }
    });
    tokio::time::sleep(OPERATION * 3 / 2).await;
    assert!(!second.is_finished() && !first.is_finished());
    cluster.mark_free("job");
    let token = first.await.expect("no panic").expect("the lease is free");
    let ended = tokio::time::timeout(LONG, second).await.expect("the lease is held").expect("no panic");
    assert_eq!(ended, Ok(token));
}

/// A time after the end of the test.
const AFTER_THE_TEST: Duration = Duration::from_secs(3_600);

/// Acquires a lease behind an acquire without an answer, which leaves 10 ms of the operation timeout. The claims of the
/// second acquire have these fates.
async fn acquire_late(
    link: &Link,
    fates: &[ClaimFate],
    options: AcquireOptions,
) -> (Lease, Result<FencingToken, CallError>) {
    let manager = link.cluster.manager_through(link.clone(), ManagerOptions::new().operation_timeout(OPERATION));
    let lease = manager.lease_with("job", LeaseOptions::new().infinite()).expect("a valid name");
    let unanswered = ClaimFate::Late(AFTER_THE_TEST);
    *link.failing_claims.lock().expect("plain") = std::iter::once(unanswered).chain(fates.iter().copied()).collect();
    let late = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        lease.acquire(options).await
    };
    let (first, second) = tokio::join!(lease.acquire(Wait::No), late);
    assert!(matches!(first, Err(CallError::Unknown { .. })), "{first:?}");
    (lease, second)
}

/// The cluster gets the claim after the end of its acquire.
#[tokio::test(start_paused = true)]
async fn claim_with_little_time_left_is_released_or_named() {
    let link = Link::new();
    let (lease, unknown) = acquire_late(&link, &[ClaimFate::Late(OPERATION / 4)], AcquireOptions::new()).await;
    assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
    let released = lease.release().await;
    assert!(matches!(released, Err(CallError::Unknown { .. })), "{released:?}");
    tokio::time::sleep(OPERATION).await;
    let next = link.cluster.manager().try_acquire("job").await.expect("an answer");
    assert!(next.is_some(), "the lease went to a claim that the manager has forgotten");
}

/// The first claim of the acquire has 10 ms, and the answer to the second one takes longer.
#[tokio::test(start_paused = true)]
async fn retry_has_the_whole_operation_timeout() {
    let fates = [ClaimFate::Late(AFTER_THE_TEST), ClaimFate::Late(OPERATION / 2)];
    let retried = AcquireOptions::new().retries(1, Duration::from_millis(1));
    let (lease, acquired) = acquire_late(&Link::new(), &fates, retried).await;
    assert!(acquired.is_ok() && lease.is_held(), "{acquired:?}");
}

async fn wait_up_to_ends_after_its_duration(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    one.manager.lease("job").expect("a valid name").acquire(Wait::No).await.expect("the lease is free");
    let begun = Instant::now();
    let wait = Duration::from_millis(400);
    let refused = other
        .manager
        .lease("job")
        .expect("a valid name")
        .acquire(Wait::UpTo(wait))
        .await
        .expect_err("another holder has the lease");
    assert_eq!(code(&refused), Some(Code::WaitTimeout), "{refused:?}");
    assert!((wait..wait + OPERATION).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn wait_for_ttl_outlasts_a_dead_holder(world: &World) {
    let (dead, other) = (world.holder(), world.holder());
    let before = dead
        .manager
        .lease_with("job", short())
        .expect("a valid name")
        .acquire(Wait::No)
        .await
        .expect("the lease is free");
    dead.switch.set(Line::Cut);
    let lease = other.manager.lease_with("job", short().ttl(TTL * 2)).expect("a valid name");
    let token = lease.acquire(Wait::ForTtl).await.expect("the other holder cannot renew");
    assert!(token > before);
}

async fn waiters_are_granted_in_fifo_order(world: &World) {
    let first = world.holder();
    let held = first.manager.lease("job").expect("a valid name");
    held.acquire(Wait::No).await.expect("the lease is free");
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = Vec::new();
    for number in 0..3 {
        let holder = world.holder();
        let sender = sender.clone();
        waiting.push(tokio::spawn(async move {
            let lease = holder.manager.lease("job").expect("a valid name");
            lease.acquire(Wait::UpTo(LONG)).await.expect("the waiter is granted");
            sender.send(number).expect("the receiver exists");
            lease.release().await.expect("the cluster answers");
        }));
        let queued = world.remote();
        let name = held.name().clone();
        for _ in 0.. {
            if queued.queue(&name).await.expect("the cluster answers").waiters.len() == number + 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    held.release().await.expect("the cluster answers");
    for task in waiting {
        task.await.expect("the task did not panic");
    }
    assert_eq!([order.recv().await, order.recv().await, order.recv().await], [Some(0), Some(1), Some(2)]);
}

/// If the deadline counted from the request, it would pass before the answer.
async fn grant_after_a_wait_has_its_full_ttl(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let held = one.manager.lease("job").expect("a valid name");
    held.acquire(Wait::No).await.expect("the lease is free");
    let lease = other.manager.lease_with("job", short()).expect("a valid name");
    let waiter = lease.clone();
    let waiting = tokio::spawn(async move { waiter.acquire(Wait::UpTo(LONG)).await });
    tokio::time::sleep(TTL * 2).await;
    held.release().await.expect("the cluster answers");
    waiting.await.expect("the task ends").expect("the waiter is granted");
    assert!(lease.remaining().is_some_and(|left| left > TTL / 2), "{:?}", lease.remaining());
    tokio::time::sleep(TTL * 2).await;
    assert!(lease.is_held(), "the lease is renewed: {:?}", lease.state());
}

/// A claim with a shorter ttl does not change the expiry of the grant. A holder that computed its deadline from the ttl
/// in the answer would count the lease as held for longer than the cluster does.
async fn shorter_ttl_does_not_restart_a_longer_one(world: &World) {
    let holder =
        world.holder_with(ManagerOptions::new().holder(HolderId::new("the-same").expect("the value is valid")));
    let lease = holder.manager.lease_with("job", short()).expect("a valid name");
    let long = Duration::from_secs(3);
    let before = Acquire::new(HolderId::new("the-same").expect("the value is valid")).ttl(long);
    world.remote().acquire(lease.name(), &before).await.expect("the lease is free");
    tokio::time::sleep(long / 2).await;
    lease.acquire(Wait::No).await.expect("the holder has the lease already");
    let (asked, left) = (Instant::now(), lease.remaining().expect("the lease is held"));
    let shown =
        world.remote().get(lease.name()).await.expect("the cluster answers").expires_in_ms.expect("the ttl is finite");
    let ends = Duration::from_millis(shown) + asked.elapsed();
    assert!(left <= ends, "the holder counts {left:?}, but the lease expires in at most {ends:?}");
    tokio::time::sleep(long).await;
    assert_eq!((lease.is_held(), lease.check().await), (true, Ok(true)), "the lease is renewed");
}

async fn retries_come_after_their_delay(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let held = one.manager.lease("job").expect("a valid name");
    held.acquire(Wait::No).await.expect("the lease is free");
    let delay = Duration::from_millis(150);
    let begun = Instant::now();
    let lease = other.manager.lease("job").expect("a valid name");
    let refused =
        lease.acquire(AcquireOptions::new().retries(3, delay)).await.expect_err("another holder has the lease");
    assert_eq!(code(&refused), Some(Code::Held));
    assert!(begun.elapsed() >= delay * 3, "{:?}", begun.elapsed());
    let retrying = lease.acquire(AcquireOptions::new().retries(100, delay));
    let (acquired, released) = tokio::join!(retrying, async {
        tokio::time::sleep(delay).await;
        held.release().await
    });
    assert!(acquired.is_ok() && released == Ok(true), "{acquired:?}, {released:?}");
}

async fn retries_share_the_remaining_wait(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    one.manager.lease("job").expect("a valid name").acquire(Wait::No).await.expect("the lease is free");
    let (wait, delay) = (Duration::from_millis(500), Duration::from_millis(10));
    let options = AcquireOptions::new().wait(Wait::UpTo(wait)).retries(3, delay);
    let begun = Instant::now();
    let refused = other
        .manager
        .lease("job")
        .expect("a valid name")
        .acquire(options)
        .await
        .expect_err("another holder has the lease");
    assert_eq!(code(&refused), Some(Code::Held), "the last attempt does not wait: {refused:?}");
    assert!((wait + delay * 3..wait * 3).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn should_hold_refuses_without_a_request(world: &World) {
    let holder = world.holder();
    let options = short().should_hold(|| false);
    let lease = holder.manager.lease_with("job", options).expect("a valid name");
    holder.switch.set(Line::Cut);
    let begun = Instant::now();
    let refused = lease.acquire(Wait::ForTtl).await.expect_err("another process should hold the lease");
    assert_eq!(code(&refused), Some(Code::ShouldNotHold));
    assert!(!lease.should_hold() && begun.elapsed() < Duration::from_millis(500));
}

async fn concurrent_acquires_have_one_holder(world: &World) {
    for round in 0..10 {
        let name = format!("job-{round}");
        let holders: Vec<_> = (0..4).map(|_| world.holder()).collect();
        let claims = holders.iter().map(|holder| {
            let lease = holder.manager.lease(&name).expect("a valid name");
            async move { lease.acquire(Wait::No).await }
        });
        let ended = futures_util::future::join_all(claims).await;
        let held = ended.iter().filter(|ended| ended.is_ok()).count();
        safety!(held <= 1, "{held} holders: {ended:?}");
        assert_eq!(held, 1, "{ended:?}");
        let refused = ended.iter().filter_map(|ended| ended.as_ref().err());
        assert!(refused.clone().all(|error| code(error) == Some(Code::Held)), "{:?}", refused.collect::<Vec<_>>());
        until("exactly one manager holds the lease", || {
            holders.iter().filter(|holder| holder.manager.lease(&name).expect("a valid name").is_held()).count() == 1
        })
        .await;
    }
}
