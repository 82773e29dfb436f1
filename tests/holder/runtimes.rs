//! A manager that outlives a Tokio runtime: its keeper and its requests end with the runtime, and its leases do not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tenure::api::Acquire;
use tenure::client::{CallError, Coordinator, Lease, LeaseOptions, Loss, ManagerOptions, RetryBudget, Wait};
use tenure::testing::{FakeCluster, Line, Switch};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::link::{Link, TTL, USABLE, Withheld};
use crate::world::{LONG, until};

/// A runtime with a paused clock. Its tasks run only while the test blocks on it.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
}

/// A part of the program blocks on a runtime of its own, and gives up before its claim is answered.
fn lose_claim(switch: &Switch, lease: &Lease) {
    let brief = runtime();
    switch.set(Line::Cut);
    let claim = async { tokio::time::timeout(Duration::from_millis(10), lease.acquire(Wait::No)).await };
    assert!(brief.block_on(claim).is_err(), "the claim has no answer");
    drop(brief);
    switch.set(Line::Up);
}

#[test]
fn claim_of_a_runtime_that_ended_costs_no_lease() {
    let main = runtime();
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    let lease = manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
    main.block_on(lease.acquire(Wait::No)).expect("it is free");
    lose_claim(&switch, &manager.lease("other").expect("a name"));
    main.block_on(async {
        // The keeper resolves the claim.
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.clock().advance(TTL * 2 / 5);
        until("it is renewed", || lease.remaining() > Some(TTL * 9 / 10)).await;
    });
}

/// The request of the ended runtime arrives a second later, or perhaps after the shutdown.
#[test]
fn claim_of_a_runtime_that_ended_is_released_or_named() {
    for arrives in [true, false] {
        let main = runtime();
        let cluster = FakeCluster::new();
        let switch = Switch::new(cluster.clone());
        let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
        let kept = main.block_on(manager.try_acquire("kept")).expect("an answer").expect("it is free");
        let lease = manager.lease("job").expect("a name");
        lose_claim(&switch, &lease);
        main.block_on(async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if arrives {
                let (name, claim) = (lease.name().clone(), Acquire::new(lease.holder().clone()));
                cluster.acquire(name, claim, RetryBudget::within(LONG)).await.expect("it is free");
            }
            tokio::time::sleep(LONG).await;
            let next = cluster.manager().try_acquire("job").await.expect("an answer");
            assert!(next.is_some(), "the manager releases what arrives within its time limit");
            kept.release().await.expect("an answer");
            let left: Vec<_> = manager.shutdown().await.into_iter().map(|(name, _)| name.to_string()).collect();
            let expected: &[&str] = if arrives { &[] } else { &["job"] };
            assert_eq!(left, expected);
        });
    }
}

/// The manager has not looked for the claim yet, and perhaps has no keeper.
#[test]
fn shutdown_names_the_claim_of_a_runtime_that_has_just_ended() {
    for has_keeper in [true, false] {
        let main = runtime();
        let cluster = FakeCluster::new();
        let switch = Switch::new(cluster.clone());
        let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
        let kept = has_keeper.then(|| main.block_on(manager.try_acquire("kept")).expect("an answer"));
        let lease = manager.lease("job").expect("a name");
        lose_claim(&switch, &lease);
        let left = main.block_on(manager.shutdown());
        assert_eq!(left.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["job"], "keeper: {has_keeper}");
        drop(kept);
    }
}

/// The keeper ended with its runtime, so no task takes the claim of the dropped acquire over.
#[test]
fn claim_ends_with_its_manager_without_a_keeper() {
    let (main, keeper, claiming) = (runtime(), runtime(), runtime());
    let cluster = FakeCluster::new();
    let held = main.block_on(cluster.manager().try_acquire("job")).expect("an answer").expect("it is free");
    let manager = cluster.manager();
    let kept = keeper.block_on(manager.try_acquire("kept")).expect("an answer").expect("it is free");
    let lease = manager.lease("job").expect("a name");
    let claim = async { tokio::time::timeout(Duration::from_millis(10), lease.acquire(Wait::UpTo(LONG))).await };
    assert!(claiming.block_on(claim).is_err(), "the claim waits");
    drop(keeper);
    drop((kept, lease, manager));
    claiming.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
    main.block_on(async {
        assert_eq!(held.release().await, Ok(true));
        let next = cluster.manager().try_acquire("job").await.expect("an answer");
        assert!(next.is_some(), "the lease went to a claim without a manager");
    });
}

#[test]
fn renewal_of_a_runtime_that_ended_is_sent_again() {
    for options in [LeaseOptions::new().ttl(TTL), LeaseOptions::new().infinite()] {
        let (first, second) = (runtime(), runtime());
        let link = Link::new();
        let manager = link.manager();
        let lease = manager.lease_with("job", options).expect("a name");
        first.block_on(lease.acquire(Wait::No)).expect("it is free");
        link.withheld.send_replace(Withheld { renewal_requests: true, ..Withheld::default() });
        link.cluster.clock().advance(TTL * 2 / 5);
        first.block_on(until("a renewal is sent", || !link.sent_renewals.lock().expect("no panic").is_empty()));
        drop(first);
        link.withheld.send_replace(Withheld::default());
        second.block_on(async {
            manager.lease("other").expect("a name").acquire(Wait::No).await.expect("it is free");
            let is_renewed = || link.renewals.load(Ordering::SeqCst) > 0 && lease.remaining() >= Some(USABLE);
            until("it is renewed", is_renewed).await;
        });
    }
}

/// A task of the ended runtime should have sent the request.
#[test]
fn hand_over_of_a_runtime_that_ended_is_unknown() {
    let (main, brief) = (runtime(), runtime());
    let lease = FakeCluster::new().manager().lease_with("job", LeaseOptions::new().infinite()).expect("a name");
    main.block_on(lease.acquire(Wait::No)).expect("it is free");
    let mut handing_over = Box::pin(lease.hand_over(None));
    let entered = brief.enter();
    assert!(handing_over.as_mut().now_or_never().is_none(), "the task has not run");
    drop(entered);
    drop(brief);
    let unknown = main.block_on(handing_over);
    assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
    assert!(!lease.is_held());
    assert_eq!(main.block_on(lease.release()), Ok(true));
}

#[test]
fn leases_of_the_next_runtime_are_renewed_and_told() {
    let first = runtime();
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let early = manager.lease("early").expect("a name");
    first.block_on(early.acquire(Wait::No)).expect("it is free");
    drop(first);
    runtime().block_on(async {
        let lease = manager.lease_with("late", LeaseOptions::new().ttl(TTL)).expect("a name");
        let losses = Arc::new(AtomicUsize::new(0));
        let told = losses.clone();
        lease.on_lost(move |_| _ = told.fetch_add(1, Ordering::SeqCst)).detach();
        lease.acquire(Wait::No).await.expect("it is free");
        cluster.clock().advance(TTL * 2 / 5);
        until("it is renewed", || lease.remaining() > Some(TTL * 9 / 10)).await;
        cluster.lose("late", Loss::Revoked);
        until("the loss is told", || losses.load(Ordering::SeqCst) == 1).await;
    });
}

/// A listener blocks its thread beyond the end of the first runtime.
#[test]
fn lease_is_renewed_in_the_next_runtime_while_a_listener_blocks() {
    let first = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
    let calls = Arc::new(AtomicUsize::new(0));
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let (counted, blocked) = (calls.clone(), Mutex::new(blocked));
    let blocks = move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let _ = blocked.lock().expect("no panic").recv();
    };
    lease.after_acquire(blocks).detach();
    first.block_on(async {
        lease.acquire(Wait::No).await.expect("it is free");
        until("the listener runs", || calls.load(Ordering::SeqCst) == 1).await;
    });
    let tasks = first.handle().metrics();
    first.shutdown_background();
    let second = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let renewed = async {
        until("only the listener runs", || tasks.num_alive_tasks() <= 1).await;
        cluster.clock().advance(TTL * 2 / 5);
        while lease.remaining() <= Some(TTL * 9 / 10) {
            lease.acquire(Wait::No).await.expect("it is held");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let in_time = second.block_on(async { tokio::time::timeout(LONG, renewed).await });
    drop(unblock);
    in_time.expect("a task of the second runtime renews the lease");
}

/// A listener blocks its thread beyond the end of the first runtime, and the lease is lost in the second one.
#[test]
fn listeners_of_two_runtimes_are_called_one_after_another() {
    let first = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
    let calls = Arc::new(Mutex::new(Vec::new()));
    let called = |what: &'static str| {
        let calls = calls.clone();
        move || calls.lock().expect("no panic").push(what)
    };
    let (begins, ends, lost) = (called("the first begins"), called("the first ends"), called("lost"));
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let blocks = move |_| {
        begins();
        let _ = blocked.lock().expect("no panic").recv();
        ends();
    };
    lease.after_acquire(blocks).detach();
    lease.on_lost(move |_| lost()).detach();
    first.block_on(async {
        lease.acquire(Wait::No).await.expect("it is free");
        until("the listener runs", || calls.lock().expect("no panic").len() == 1).await;
    });
    first.shutdown_background();
    let second = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let told = async {
        let tasks = tokio::runtime::Handle::current().metrics();
        while tasks.num_alive_tasks() < 2 {
            lease.acquire(Wait::No).await.expect("it is held");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        cluster.lose("job", Loss::Revoked);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        drop(unblock);
        until("the loss is told", || calls.lock().expect("no panic").contains(&"lost")).await;
    };
    let in_time = second.block_on(async { tokio::time::timeout(LONG, told).await });
    in_time.expect("the tasks of the second runtime run");
    assert_eq!(*calls.lock().expect("no panic"), ["the first begins", "the first ends", "lost"]);
}

/// The keeper ended with the runtime of the first acquire. The work has been polled, and waits for nothing that comes.
#[test]
fn idle_work_ends_after_the_deadline_without_a_keeper() {
    let first = runtime();
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let guard = first.block_on(manager.try_acquire("job")).expect("an answer").expect("the lease is free");
    drop(first);
    let (ended, after) = runtime().block_on(async {
        let began = tokio::time::Instant::now();
        let work = guard.while_held(std::future::pending::<()>());
        // In a task of its own, so that the end of the pause does not poll the work.
        let suspended = cluster.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            suspended.clock().advance(Duration::from_secs(3_600));
        });
        let ended = tokio::time::timeout(Duration::from_secs(600), work).await;
        (ended, began.elapsed())
    });
    assert_eq!(ended.expect("the guard looks at its clock"), Err(Loss::Unreachable));
    assert!(after < Duration::from_secs(300), "it looked after {after:?}");
}

/// The work begins just before the deadline.
#[test]
fn idle_work_ends_soon_after_the_deadline_without_a_keeper() {
    let first = runtime();
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let guard = first.block_on(manager.try_acquire("job")).expect("an answer").expect("the lease is free");
    drop(first);
    let left = guard.remaining().expect("it is held");
    cluster.clock().advance(left - Duration::from_millis(50));
    let (ended, after) = runtime().block_on(async {
        let began = tokio::time::Instant::now();
        let gone = CancellationToken::new();
        let alive = gone.clone().drop_guard();
        let work = guard.while_held(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        // In a task of its own, so that the end of the pause does not poll the work.
        let passing = cluster.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(60)).await;
            passing.clock().advance(Duration::from_secs(1));
        });
        let dropped = async {
            gone.cancelled().await;
            began.elapsed()
        };
        let both = async { tokio::join!(work, dropped) };
        tokio::time::timeout(LONG, both).await.expect("the guard looks at its clock")
    });
    assert_eq!(ended, Err(Loss::Unreachable));
    assert!(after < Duration::from_millis(300), "the work was dropped after {after:?}");
}
