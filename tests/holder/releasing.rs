//! Releases and hand-overs: once, after the drain, and only of a held lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::api::Code;
use tenure::client::{CallError, HoldState, Wait};
use tenure::testing::Line;
use tokio::time::Instant;

use crate::acquiring::code;
use crate::world::{LONG, TTL, World, over_both_transports, short, until};

over_both_transports!(
    released_lease_is_free_at_once,
    release_without_a_grant_changes_nothing,
    release_without_an_answer_is_unknown_and_not_held,
    release_lazily_frees_the_lease_soon,
    shutdown_releases_everything_and_ends,
    shutdown_ends_waiting_acquires,
    work_is_drained_before_the_release,
    undrained_lease_is_not_released,
    hand_over_reaches_the_named_waiter,
    refused_hand_over_leaves_the_lease_held,
    dropped_manager_releases_and_leaves_no_task,
);

async fn released_lease_is_free_at_once(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(lease.release().await, Ok(true));
    assert_eq!((lease.is_held(), lease.state()), (false, HoldState::Released { token }));
    let next =
        other.manager.lease("job").expect("a valid name").acquire(Wait::No).await.expect("the lease is free again");
    assert!(next > token);
}

async fn release_without_a_grant_changes_nothing(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a valid name");
    assert_eq!(lease.release().await, Ok(false));
    let held = other.manager.lease("job").expect("a valid name");
    held.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(lease.release().await, Ok(false));
    assert_eq!((held.is_held(), held.check().await), (true, Ok(true)));
}

async fn release_without_an_answer_is_unknown_and_not_held(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease("job").expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    holder.switch.set(Line::Deaf);
    let unknown = lease.release().await;
    assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
    assert!(!lease.is_held());
    let name = lease.name();
    let ended = world.remote().get(name).await.expect("the cluster has a record of the lease");
    assert_eq!(ended.state, tenure::api::LeaseState::Released, "the cluster applied the release");
}

async fn release_lazily_frees_the_lease_soon(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    lease.release_lazily();
    let begun = Instant::now();
    other.manager.lease("job").expect("a valid name").acquire(Wait::UpTo(LONG)).await.expect("the lease is released");
    assert!(begun.elapsed() < Duration::from_secs(5), "long before the default ttl: {:?}", begun.elapsed());
    assert!(!lease.is_held());
}

async fn shutdown_releases_everything_and_ends(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let leases: Vec<_> = (0..20).map(|n| one.manager.lease(format!("job-{n}")).expect("a valid name")).collect();
    for lease in &leases {
        lease.acquire(Wait::No).await.expect("the lease is free");
    }
    assert_eq!(one.manager.shutdown().await, []);
    for lease in &leases {
        assert!(!lease.is_held());
        let next = other.manager.lease(lease.name().as_str()).expect("a valid name").acquire(Wait::No).await;
        assert!(next.is_ok(), "{next:?}");
    }
    let late = leases[0].acquire(Wait::No).await;
    assert_eq!(late, Err(CallError::ShutDown));
}

async fn shutdown_ends_waiting_acquires(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let held = other.manager.lease("job").expect("a valid name");
    held.acquire(Wait::No).await.expect("the lease is free");
    let lease = one.manager.lease("job").expect("a valid name");
    let waiting = tokio::spawn(async move { lease.acquire(Wait::UpTo(LONG)).await });
    let remote = world.remote();
    while remote.queue(held.name()).await.expect("the cluster answers").waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(one.manager.shutdown().await, []);
    let ended =
        tokio::time::timeout(LONG / 2, waiting).await.expect("the acquire ends at once").expect("the task ends");
    assert_eq!(ended, Err(CallError::ShutDown));
    assert_eq!(remote.queue(held.name()).await.expect("the cluster answers").waiters, []);
}

async fn work_is_drained_before_the_release(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a valid name");
    let drained = Arc::new(AtomicBool::new(false));
    let (done, handle) = (drained.clone(), lease.clone());
    let listening = lease.before_release(move || {
        let (done, handle) = (done.clone(), handle.clone());
        async move {
            // The drain takes longer than the ttl, so the manager must renew the lease.
            tokio::time::sleep(TTL * 2).await;
            done.store(handle.is_held(), Ordering::SeqCst);
        }
    });
    lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(lease.release().await, Ok(true));
    assert!(drained.load(Ordering::SeqCst), "the lease was held until the work had ended");
    drop(listening);
}

/// The work may still run, so an early release could cause two active holders.
async fn undrained_lease_is_not_released(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short().drain(Duration::from_millis(100))).expect("a valid name");
    let listening = lease.before_release(std::future::pending);
    lease.acquire(Wait::No).await.expect("the lease is free");
    let left = lease.remaining().expect("the lease is held");
    let begun = Instant::now();
    let refused = lease.release().await.expect_err("the work does not end");
    assert_eq!(code(&refused), Some(Code::NotDrained));
    assert!(!lease.is_held());
    let next = other.manager.lease("job").expect("a valid name");
    next.acquire(Wait::UpTo(LONG)).await.expect("the lease expires");
    assert!(
        begun.elapsed() + Duration::from_millis(50) >= left,
        "the lease was free before its expiry: {:?}",
        begun.elapsed()
    );
    drop(listening);
}

async fn hand_over_reaches_the_named_waiter(world: &World) {
    let (one, second, third) = (world.holder(), world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let wait = |manager: tenure::client::LeaseManager| {
        tokio::spawn(async move { manager.lease("job").expect("a valid name").acquire(Wait::UpTo(LONG)).await })
    };
    let (waits, chosen) = (wait(second.manager.clone()), wait(third.manager.clone()));
    let remote = world.remote();
    while remote.queue(lease.name()).await.expect("the cluster answers").waiters.len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(lease.hand_over(Some(third.manager.holder().clone())).await, Ok(true));
    let next = chosen.await.expect("the task ends").expect("the named waiter is granted");
    assert!(next > token && !lease.is_held());
    assert_eq!(lease.state(), HoldState::Released { token });
    assert!(!waits.is_finished(), "the first waiter was not named");
    waits.abort();
}

async fn refused_hand_over_leaves_the_lease_held(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let refused = lease.hand_over(None).await.expect_err("the queue is empty");
    assert_eq!(code(&refused), Some(Code::NoSuchWaiter));
    assert_eq!(lease.token(), Some(token));
    tokio::time::sleep(TTL * 2).await;
    assert_eq!((lease.is_held(), lease.check().await), (true, Ok(true)), "the lease is renewed");
}

async fn dropped_manager_releases_and_leaves_no_task(world: &World) {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let other = world.holder();
    let waits = other.manager.lease("job").expect("a valid name");
    // The first release opens a connection to the leader, and each connection has a task.
    let first = other.manager.lease("first").expect("a valid name");
    first.acquire(Wait::No).await.expect("the lease is free");
    first.release().await.expect("it is released");
    let holder = world.holder();
    let lease = holder.manager.lease("job").expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    let guard = holder.manager.try_acquire("guarded").await.expect("the cluster answers").expect("the lease is free");
    let others = {
        // The nodes may still open connections to each other.
        let mut with = 0;
        while with != tasks() {
            with = tasks();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        drop((holder, lease, guard));
        until("the tasks of the manager have ended", || tasks() < with).await;
        tasks()
    };
    waits.acquire(Wait::UpTo(LONG)).await.expect("the lease was released");
    let guarded = other.manager.lease("guarded").expect("a valid name").acquire(Wait::UpTo(LONG)).await;
    assert!(guarded.is_ok(), "{guarded:?}; {others} tasks");
}
