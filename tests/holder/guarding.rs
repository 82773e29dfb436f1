//! Guards, and work that runs under them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::api::Code;
use tenure::client::{AcquireOptions, CallError, LeaseOptions, Loss, ManagerOptions, Wait, WithError};
use tenure::testing::{FakeCluster, ManualClock};
use tokio::time::Instant;

use crate::acquiring::code;
use crate::link::Link;
use crate::steady::safety;
use crate::world::{LONG, OPERATION, TTL, World, is_waiting, over_both_transports, short, until};

over_both_transports!(
    with_returns_the_result_and_releases,
    with_is_refused_while_another_holds,
    guards_of_one_process_exclude_each_other,
    guard_dropped_outside_a_runtime_releases,
    dropped_work_releases_the_lease,
    lost_guard_is_not_held,
    guard_of_an_ended_grant_ignores_the_next_grant,
    work_is_not_polled_after_the_deadline,
);

async fn with_returns_the_result_and_releases(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let result = one.manager.with("job", |lease| async move { (lease.is_held(), lease.token()) }).await;
    let (held, token) = result.expect("the lease is free");
    assert!(held && token.is_some());
    let next = other.manager.try_acquire("job").await.expect("the cluster answers").expect("the lease was released");
    assert!(Some(next.token()) > token);
    assert_eq!(next.release().await, Ok(true));
}

async fn with_is_refused_while_another_holds(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let guard = one.manager.try_acquire("job").await.expect("the cluster answers").expect("the lease is free");
    let refused = other.manager.with("job", |_| async { panic!("the work ran without the lease") }).await;
    let Err(WithError::NotAcquired(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(code(&error), Some(Code::Held));
    drop(guard);
    let waited = other.manager.lease("job").expect("a valid name").with(Wait::UpTo(LONG), |_| async { 7 }).await;
    assert_eq!(waited, Ok(7));
}

/// The guards are one holder to the cluster, so the cluster does not exclude them.
async fn guards_of_one_process_exclude_each_other(world: &World) {
    let holder = world.holder();
    let inside = Arc::new(AtomicUsize::new(0));
    let work = |n: usize| {
        let (lease, inside) = (holder.manager.lease("job").expect("a valid name"), inside.clone());
        async move {
            let done = lease.with(Wait::UpTo(LONG), |lease| async move {
                let others = inside.fetch_add(1, Ordering::SeqCst);
                safety!(others == 0, "{others} other guards are held");
                tokio::time::sleep(Duration::from_millis(20)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                (n, lease.token().expect("the lease is held"))
            });
            done.await.expect("the waiter is granted")
        }
    };
    let done = futures_util::future::join_all((0..5).map(work)).await;
    let mut tokens: Vec<_> = done.iter().map(|(_, token)| *token).collect();
    tokens.sort();
    tokens.dedup();
    safety!(tokens.len() == 5, "two grants have the same token: {done:?}");
    let guard = holder.manager.try_acquire("job").await.expect("the cluster answers").expect("the lease is free");
    assert!(holder.manager.try_acquire("job").await.expect("the cluster answers").is_none());
    drop(guard);
}

async fn guard_dropped_outside_a_runtime_releases(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let guard = one.manager.try_acquire("job").await.expect("the cluster answers").expect("the lease is free");
    std::thread::spawn(move || drop(guard)).join().expect("the drop needs no runtime");
    other
        .manager
        .lease("job")
        .expect("a valid name")
        .acquire(Wait::UpTo(Duration::from_secs(5)))
        .await
        .expect("the lease is released");
}

async fn dropped_work_releases_the_lease(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a valid name");
    let work = lease.with(Wait::No, |_| std::future::pending::<()>());
    assert!(tokio::time::timeout(Duration::from_millis(500), work).await.is_err());
    other
        .manager
        .lease("job")
        .expect("a valid name")
        .acquire(Wait::UpTo(Duration::from_secs(5)))
        .await
        .expect("the lease is released");
    until("the handle does not hold the lease", || !lease.is_held()).await;
}

async fn lost_guard_is_not_held(world: &World) {
    let holder = world.holder();
    let guard = holder.manager.try_acquire("job").await.expect("the cluster answers").expect("the lease is free");
    assert!(guard.is_held());
    world.remote().revoke(guard.name(), "").await.expect("the cluster answers");
    assert_eq!(guard.check().await, Ok(false));
    assert!(!guard.is_held());
    assert_eq!(guard.release().await, Ok(false));
}

async fn guard_of_an_ended_grant_ignores_the_next_grant(world: &World) {
    let holder = world.holder();
    let guard = holder.manager.try_acquire("job").await.expect("the cluster answers").expect("the lease is free");
    let (ended, stopping) = (guard.ended(), guard.stopping());
    assert!(!ended.is_cancelled() && !stopping.is_cancelled());
    world.remote().revoke(guard.name(), "").await.expect("the cluster answers");
    assert_eq!(guard.check().await, Ok(false));
    let lease = holder.manager.lease("job").expect("a valid name");
    let next = lease.acquire(Wait::No).await.expect("the lease is free");
    safety!(next > guard.token(), "{next} after {}", guard.token());
    assert!(ended.is_cancelled() && stopping.is_cancelled());
    assert!(guard.ended().is_cancelled() && guard.stopping().is_cancelled());
    let worked = tokio::time::timeout(OPERATION, guard.while_held(std::future::pending::<()>())).await;
    assert_eq!(worked, Ok(Err(Loss::Revoked)));
    assert_eq!(guard.release().await, Ok(false));
    assert_eq!(lease.token(), Some(next), "the old guard released the next grant");
}

/// A stopped process continues in the middle of its work. The keeper has not recorded the loss yet, so only the guard's
/// check of the clock stops the next poll.
async fn work_is_not_polled_after_the_deadline(world: &World) {
    let clock = ManualClock::new();
    let holder = world.holder_with(ManagerOptions::new().clock(Arc::new(clock.clone())));
    let lease = holder.manager.lease_with("job", short()).expect("a valid name");
    let guard = lease.guard(Wait::No).await.expect("the lease is free");
    let polls = AtomicUsize::new(0);
    let mut working = std::pin::pin!(guard.while_held(std::future::poll_fn(|_| {
        polls.fetch_add(1, Ordering::SeqCst);
        std::task::Poll::<()>::Pending
    })));
    for step in 1..=3 {
        assert!(futures_util::poll!(&mut working).is_pending());
        assert_eq!(polls.load(Ordering::SeqCst), step);
    }
    clock.advance(TTL);
    // This is the same poll of the test, so no other task has run on this thread in between.
    let late = futures_util::poll!(&mut working);
    safety!(polls.load(Ordering::SeqCst) == 3, "the work ran after the deadline");
    // On another thread, the keeper can record the loss before this poll.
    let ended = match late {
        std::task::Poll::Ready(ended) => ended,
        std::task::Poll::Pending => working.await,
    };
    assert!(ended.is_err());
    safety!(polls.load(Ordering::SeqCst) == 3, "the work ran after the loss");
}

/// A guard waits for 59 s for another guard of the process, and then in the queue of the cluster.
#[tokio::test(start_paused = true)]
async fn wait_for_a_guard_and_in_the_queue_is_one_wait() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().infinite()).expect("a valid name");
    let first = lease.guard(Wait::No).await.expect("the lease is free");
    let next = tokio::spawn({
        let lease = lease.clone();
        async move { lease.guard(Wait::UpTo(Duration::from_secs(60))).await.map(drop) }
    });
    // The task begins to wait.
    tokio::time::sleep(Duration::from_millis(1)).await;
    cluster.mark_held_elsewhere("job");
    cluster.clock().advance(Duration::from_secs(59));
    drop(first);
    let queued = async {
        while !is_waiting(&cluster, &lease).await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, queued).await.expect("the guard waits in the queue");
    cluster.clock().advance(Duration::from_millis(900));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!next.is_finished(), "100 ms are left");
    cluster.clock().advance(Duration::from_millis(200));
    let ended = tokio::time::timeout(OPERATION, next).await.expect("the wait is over").expect("no panic");
    assert_eq!(code(&ended.expect_err("another holder has the lease")), Some(Code::WaitTimeout));
}

/// The first guard ends between the first and the second retry.
#[tokio::test(start_paused = true)]
async fn guard_is_retried_behind_another_guard() {
    const SECOND: Duration = Duration::from_secs(1);
    let lease = FakeCluster::new().manager().lease("job").expect("a valid name");
    let first = lease.guard(Wait::No).await.expect("the lease is free");
    let (begun, retried) = (Instant::now(), AcquireOptions::new().retries(3, SECOND));
    let refused = lease.guard(retried).await.map(drop).expect_err("the first guard exists");
    assert_eq!(code(&refused), Some(Code::Held));
    assert!((SECOND * 3..SECOND * 4).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let next = tokio::spawn({
        let lease = lease.clone();
        async move { lease.guard(retried).await.map(drop) }
    });
    tokio::time::sleep(SECOND * 3 / 2).await;
    assert_eq!(first.release().await, Ok(true));
    let ended = tokio::time::timeout(LONG, next).await.expect("the lease is free").expect("no panic");
    assert_eq!(ended, Ok(()));
}

/// The wait for the first guard takes the only retry. Then the cluster refuses the claim.
#[tokio::test(start_paused = true)]
async fn guard_has_its_retries_once() {
    const SECOND: Duration = Duration::from_secs(1);
    let link = Link::new();
    let lease = link.lease();
    let first = lease.guard(Wait::No).await.expect("the lease is free");
    let next = tokio::spawn({
        let lease = lease.clone();
        async move { lease.guard(AcquireOptions::new().retries(1, SECOND)).await.map(drop) }
    });
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(first.release().await, Ok(true));
    link.cluster.refuse("job", Code::Forbidden);
    let ended = tokio::time::timeout(LONG, next).await.expect("the claim is refused").expect("no panic");
    assert_eq!(code(&ended.expect_err("the cluster refuses it")), Some(Code::Forbidden));
    assert_eq!(link.claims.load(Ordering::SeqCst), 2, "one claim of each guard");
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_the_wait_for_another_guard() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let lease = manager.lease("job").expect("a valid name");
    let _guard = lease.guard(Wait::No).await.expect("the lease is free");
    let waiting = tokio::spawn({
        let lease = lease.clone();
        async move { lease.guard(Wait::UpTo(LONG)).await.map(drop) }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    assert!(manager.shutdown().await.is_empty());
    let ended = tokio::time::timeout(LONG / 2, waiting).await.expect("the wait has ended").expect("no panic");
    assert_eq!(ended, Err(CallError::ShutDown));
}

/// The keeper ended with the runtime of the first acquire.
#[test]
fn work_ends_after_the_deadline_without_a_keeper() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().expect("a runtime")
    };
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let first = runtime();
    let guard = first.block_on(manager.try_acquire("job")).expect("an answer").expect("the lease is free");
    drop(first);
    cluster.clock().advance(Duration::from_secs(3_600));
    let work = async { tokio::time::timeout(LONG, guard.while_held(std::future::pending::<()>())).await };
    let ended = runtime().block_on(work).expect("the guard does not wait for the keeper");
    assert_eq!(ended, Err(Loss::Unreachable));
}
