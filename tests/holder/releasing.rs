//! Releasing: once, drained, and never what one does not hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::api::Code;
use tenure::client::{CallError, HoldState, Wait};
use tenure::testing::Line;
use tokio::time::Instant;

use crate::acquiring::code;
use crate::world::{LONG, TTL, World, over_both_ways, short, until};

over_both_ways!(
    release_frees_it_for_the_next_at_once,
    releasing_what_is_not_held_changes_nothing,
    a_release_without_an_answer_is_unknown_and_not_held,
    release_lazily_frees_it_soon,
    shutdown_releases_everything_and_ends,
    shutdown_ends_acquires_that_wait,
    the_work_is_drained_before_the_release,
    what_does_not_drain_is_not_released,
    hand_over_gives_it_to_the_one_named,
    a_refused_hand_over_leaves_it_held,
    dropping_everything_gives_back_and_leaves_no_task,
);

async fn release_frees_it_for_the_next_at_once(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!(lease.release().await, Ok(true));
    assert_eq!((lease.is_held(), lease.state()), (false, HoldState::Released { token }));
    let next = other.manager.lease("job").expect("a name").acquire(Wait::No).await.expect("it is free again");
    assert!(next > token);
}

async fn releasing_what_is_not_held_changes_nothing(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a name");
    assert_eq!(lease.release().await, Ok(false));
    let held = other.manager.lease("job").expect("a name");
    held.acquire(Wait::No).await.expect("it is free");
    assert_eq!(lease.release().await, Ok(false));
    assert_eq!((held.is_held(), held.check().await), (true, Ok(true)));
}

async fn a_release_without_an_answer_is_unknown_and_not_held(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease("job").expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    holder.switch.set(Line::Deaf);
    let unknown = lease.release().await;
    assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
    assert!(!lease.is_held());
    let name = lease.name();
    let ended = world.remote().get(name).await.expect("it is remembered");
    assert_eq!(ended.state, tenure::api::LeaseState::Released, "it was carried out");
}

async fn release_lazily_frees_it_soon(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    lease.release_lazily();
    let begun = Instant::now();
    other.manager.lease("job").expect("a name").acquire(Wait::UpTo(LONG)).await.expect("it comes free");
    assert!(begun.elapsed() < Duration::from_secs(5), "long before the default ttl: {:?}", begun.elapsed());
    assert!(!lease.is_held());
}

async fn shutdown_releases_everything_and_ends(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let leases: Vec<_> = (0..20).map(|n| one.manager.lease(format!("job-{n}")).expect("a name")).collect();
    for lease in &leases {
        lease.acquire(Wait::No).await.expect("it is free");
    }
    assert_eq!(one.manager.shutdown().await, []);
    for lease in &leases {
        assert!(!lease.is_held());
        let next = other.manager.lease(lease.name().as_str()).expect("a name").acquire(Wait::No).await;
        assert!(next.is_ok(), "{next:?}");
    }
    let late = leases[0].acquire(Wait::No).await;
    assert_eq!(late, Err(CallError::ShutDown));
}

async fn shutdown_ends_acquires_that_wait(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let held = other.manager.lease("job").expect("a name");
    held.acquire(Wait::No).await.expect("it is free");
    let lease = one.manager.lease("job").expect("a name");
    let waiting = tokio::spawn(async move { lease.acquire(Wait::UpTo(LONG)).await });
    let remote = world.remote();
    while remote.queue(held.name()).await.expect("an answer").waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(one.manager.shutdown().await, []);
    let ended = tokio::time::timeout(Duration::from_secs(2), waiting).await.expect("at once").expect("it ends");
    assert_eq!(ended, Err(CallError::ShutDown));
    assert_eq!(remote.queue(held.name()).await.expect("an answer").waiters, []);
}

async fn the_work_is_drained_before_the_release(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let drained = Arc::new(AtomicBool::new(false));
    let (done, handle) = (drained.clone(), lease.clone());
    let listening = lease.before_release(move || {
        let (done, handle) = (done.clone(), handle.clone());
        async move {
            // Longer than the ttl: it is renewed meanwhile.
            tokio::time::sleep(TTL * 2).await;
            done.store(handle.is_held(), Ordering::SeqCst);
        }
    });
    lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!(lease.release().await, Ok(true));
    assert!(drained.load(Ordering::SeqCst), "it was held until the work had ended");
    drop(listening);
}

/// Two leaders at once is worse than a wait.
async fn what_does_not_drain_is_not_released(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short().drain(Duration::from_millis(100))).expect("a name");
    let listening = lease.before_release(std::future::pending);
    lease.acquire(Wait::No).await.expect("it is free");
    let left = lease.remaining().expect("it is held");
    let begun = Instant::now();
    let refused = lease.release().await.expect_err("the work does not end");
    assert_eq!(code(&refused), Some(Code::NotDrained));
    assert!(!lease.is_held());
    let next = other.manager.lease("job").expect("a name");
    next.acquire(Wait::UpTo(LONG)).await.expect("it expires");
    assert!(begun.elapsed() + Duration::from_millis(50) >= left, "not before its time: {:?}", begun.elapsed());
    drop(listening);
}

async fn hand_over_gives_it_to_the_one_named(world: &World) {
    let (one, second, third) = (world.holder(), world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    let wait = |manager: tenure::client::LeaseManager| {
        tokio::spawn(async move { manager.lease("job").expect("a name").acquire(Wait::UpTo(LONG)).await })
    };
    let (waits, chosen) = (wait(second.manager.clone()), wait(third.manager.clone()));
    let remote = world.remote();
    while remote.queue(lease.name()).await.expect("an answer").waiters.len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(lease.hand_over(Some(third.manager.holder().clone())).await, Ok(true));
    let next = chosen.await.expect("it ends").expect("it was named");
    assert!(next > token && !lease.is_held());
    assert_eq!(lease.state(), HoldState::Released { token });
    assert!(!waits.is_finished(), "the first in the queue was not named");
    waits.abort();
}

async fn a_refused_hand_over_leaves_it_held(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    let refused = lease.hand_over(None).await.expect_err("nobody waits");
    assert_eq!(code(&refused), Some(Code::NoSuchWaiter));
    assert_eq!(lease.token(), Some(token));
    tokio::time::sleep(TTL * 2).await;
    assert_eq!((lease.is_held(), lease.check().await), (true, Ok(true)), "and renewed");
}

async fn dropping_everything_gives_back_and_leaves_no_task(world: &World) {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let other = world.holder();
    let waits = other.manager.lease("job").expect("a name");
    let holder = world.holder();
    let lease = holder.manager.lease("job").expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    let guard = holder.manager.try_acquire("guarded").await.expect("an answer").expect("it is free");
    let others = {
        let with = tasks();
        drop((holder, lease, guard));
        until("its tasks have ended", || tasks() < with).await;
        tasks()
    };
    waits.acquire(Wait::UpTo(LONG)).await.expect("it was given back");
    let guarded = other.manager.lease("guarded").expect("a name").acquire(Wait::UpTo(LONG)).await;
    assert!(guarded.is_ok(), "{guarded:?}; {others} tasks");
}
