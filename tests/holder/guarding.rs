//! Guards, and work under them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::api::Code;
use tenure::client::{ManagerOptions, Wait, WithError};
use tenure::testing::ManualClock;

use crate::acquiring::code;
use crate::steady::safety;
use crate::world::{LONG, TTL, World, over_both_ways, short, until};

over_both_ways!(
    with_returns_what_the_work_returns_and_releases,
    with_is_refused_while_another_has_it,
    guards_of_one_process_exclude_each_other,
    a_guard_dropped_outside_a_runtime_gives_back,
    work_that_is_dropped_gives_back,
    a_guard_that_was_lost_says_so,
    work_is_not_polled_after_the_deadline,
);

async fn with_returns_what_the_work_returns_and_releases(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let result = one.manager.with("job", |lease| async move { (lease.is_held(), lease.token()) }).await;
    let (held, token) = result.expect("it is free");
    assert!(held && token.is_some());
    let next = other.manager.try_acquire("job").await.expect("an answer").expect("it was released");
    assert!(Some(next.token()) > token);
    assert_eq!(next.release().await, Ok(true));
}

async fn with_is_refused_while_another_has_it(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let guard = one.manager.try_acquire("job").await.expect("an answer").expect("it is free");
    let refused = other.manager.with("job", |_| async { panic!("not without the lease") }).await;
    let Err(WithError::NotAcquired(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(code(&error), Some(Code::Held));
    drop(guard);
    let waited = other.manager.lease("job").expect("a name").with(Wait::UpTo(LONG), |_| async { 7 }).await;
    assert_eq!(waited, Ok(7));
}

/// They are one holder to the cluster, which would let all of them in.
async fn guards_of_one_process_exclude_each_other(world: &World) {
    let holder = world.holder();
    let inside = Arc::new(AtomicUsize::new(0));
    let work = |n: usize| {
        let (lease, inside) = (holder.manager.lease("job").expect("a name"), inside.clone());
        async move {
            let done = lease.with(Wait::UpTo(LONG), |lease| async move {
                let others = inside.fetch_add(1, Ordering::SeqCst);
                safety!(others == 0, "{others} others work");
                tokio::time::sleep(Duration::from_millis(20)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                (n, lease.token().expect("it is held"))
            });
            done.await.expect("its turn comes")
        }
    };
    let done = futures_util::future::join_all((0..5).map(work)).await;
    let mut tokens: Vec<_> = done.iter().map(|(_, token)| *token).collect();
    tokens.sort();
    tokens.dedup();
    safety!(tokens.len() == 5, "two grants have the same token: {done:?}");
    let guard = holder.manager.try_acquire("job").await.expect("an answer").expect("it is free");
    assert!(holder.manager.try_acquire("job").await.expect("an answer").is_none());
    drop(guard);
}

async fn a_guard_dropped_outside_a_runtime_gives_back(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let guard = one.manager.try_acquire("job").await.expect("an answer").expect("it is free");
    std::thread::spawn(move || drop(guard)).join().expect("it needs no runtime");
    other.manager.lease("job").expect("a name").acquire(Wait::UpTo(Duration::from_secs(5))).await.expect("given back");
}

async fn work_that_is_dropped_gives_back(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a name");
    let work = lease.with(Wait::No, |_| std::future::pending::<()>());
    assert!(tokio::time::timeout(Duration::from_millis(500), work).await.is_err());
    other.manager.lease("job").expect("a name").acquire(Wait::UpTo(Duration::from_secs(5))).await.expect("given back");
    until("and is not believed in", || !lease.is_held()).await;
}

async fn a_guard_that_was_lost_says_so(world: &World) {
    let holder = world.holder();
    let guard = holder.manager.try_acquire("job").await.expect("an answer").expect("it is free");
    assert!(guard.is_held());
    world.remote().revoke(guard.name(), "").await.expect("an answer");
    assert_eq!(guard.check().await, Ok(false));
    assert!(!guard.is_held());
    assert_eq!(guard.release().await, Ok(false));
}

/// A process that was stopped goes on in the middle of its work. Nothing has told the guard of the loss yet: only its own look
/// at the clock stops the next step.
async fn work_is_not_polled_after_the_deadline(world: &World) {
    let clock = ManualClock::new();
    let holder = world.holder_with(ManagerOptions::new().clock(Arc::new(clock.clone())));
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let guard = lease.guard(Wait::No).await.expect("it is free");
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
    // In the same poll of this test: no other task has run on this thread since.
    let late = futures_util::poll!(&mut working);
    safety!(polls.load(Ordering::SeqCst) == 3, "the work ran after the deadline");
    assert!(late.is_pending(), "the reason is not known yet");
    assert!(working.await.is_err());
    safety!(polls.load(Ordering::SeqCst) == 3, "the work ran after the loss");
}
