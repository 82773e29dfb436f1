//! Listeners: called once per event, in order, and not after they unsubscribed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::client::{LeaseOptions, Loss, Wait};
use tenure::testing::FakeCluster;

use crate::world::{LONG, LONG_TTL, TTL, World, over_both_transports, short, until};

over_both_transports!(
    on_lost_fires_once_per_loss_and_not_for_releases,
    unsubscribed_listener_is_not_called,
    faulty_listener_does_not_stop_renewals,
);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Acquired,
    Lost(Loss),
}

async fn on_lost_fires_once_per_loss_and_not_for_releases(world: &World) {
    let holder = world.holder();
    // With this ttl, a slow machine or disk does not lose the lease for another reason before a renewal is refused.
    let options = LeaseOptions::new().ttl(LONG_TTL);
    let lease = holder.manager.lease_with("job", options).expect("a valid name");
    let events = Arc::new(Mutex::new(Vec::new()));
    let (one, other) = (events.clone(), events.clone());
    lease.after_acquire(move |_| one.lock().expect("not poisoned").push(Event::Acquired)).detach();
    lease.on_lost(move |why| other.lock().expect("not poisoned").push(Event::Lost(why))).detach();
    let count = || events.lock().expect("not poisoned").len();
    for _ in 0..3 {
        lease.acquire(Wait::No).await.expect("the lease is free");
        lease.acquire(Wait::No).await.expect("the lease is held already");
        world.remote().revoke(lease.name(), "").await.expect("the cluster answers");
        until("it is lost", || !lease.is_held()).await;
    }
    until("six events are delivered", || count() == 6).await;
    lease.acquire(Wait::No).await.expect("the lease is free");
    lease.release().await.expect("the cluster answers");
    until("seven events are delivered", || count() == 7).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let pair = [Event::Acquired, Event::Lost(Loss::Revoked)];
    let expected: Vec<Event> = [pair, pair, pair].concat().into_iter().chain([Event::Acquired]).collect();
    assert_eq!(*events.lock().expect("not poisoned"), expected);
}

async fn unsubscribed_listener_is_not_called(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a valid name");
    let events = Arc::new(Mutex::new(Vec::new()));
    let listen = |name: &'static str| {
        let events = events.clone();
        lease.on_lost(move |_| events.lock().expect("not poisoned").push(name))
    };
    let (goes, stays) = (listen("goes"), listen("stays"));
    lease.acquire(Wait::No).await.expect("the lease is free");
    drop(goes);
    world.remote().revoke(lease.name(), "").await.expect("the cluster answers");
    until("a listener is called", || !events.lock().expect("not poisoned").is_empty()).await;
    assert_eq!(*events.lock().expect("not poisoned"), ["stays"]);
    drop(stays);
}

/// The manager has not told the earlier events yet: its task has not run since.
#[tokio::test(start_paused = true)]
async fn listener_is_told_of_nothing_before_its_subscription() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a valid name");
    let events = Arc::new(Mutex::new(Vec::new()));
    let (one, other) = (events.clone(), events.clone());
    lease.acquire(Wait::No).await.expect("the lease is free");
    lease.after_acquire(move |_| one.lock().expect("not poisoned").push(Event::Acquired)).detach();
    cluster.lose("job", Loss::Revoked);
    lease.on_lost(move |why| other.lock().expect("not poisoned").push(Event::Lost(why))).detach();
    tokio::time::sleep(LONG).await;
    assert_eq!(*events.lock().expect("not poisoned"), []);
    lease.acquire(Wait::No).await.expect("the lease is free again");
    cluster.lose("job", Loss::Expired);
    until("both events are told", || events.lock().expect("not poisoned").len() == 2).await;
    assert_eq!(*events.lock().expect("not poisoned"), [Event::Acquired, Event::Lost(Loss::Expired)]);
}

/// A listener blocks the only worker thread.
#[test]
fn blocked_listener_leaves_the_worker_to_renewals() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let cluster = FakeCluster::new();
        let manager = cluster.manager();
        let lease = manager.lease_with("job", short()).expect("a valid name");
        let (unblock, blocked) = std::sync::mpsc::channel::<()>();
        let blocked = Mutex::new(blocked);
        lease.after_acquire(move |_| _ = blocked.lock().expect("not poisoned").recv()).detach();
        lease.acquire(Wait::No).await.expect("the lease is free");
        for _ in 0..5 {
            cluster.clock().advance(TTL / 2);
            until("it is renewed", || lease.remaining() > Some(TTL * 9 / 10)).await;
        }
        assert!(lease.is_held(), "{:?}", lease.state());
        drop(unblock);
    });
}

async fn faulty_listener_does_not_stop_renewals(world: &World) {
    // With this ttl, a disk that stalls for a second does not lose the lease.
    let ttl = TTL * 2;
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", LeaseOptions::new().ttl(ttl)).expect("a valid name");
    let events = Arc::new(Mutex::new(0));
    let count = events.clone();
    lease.after_acquire(|_| panic!("planted by a test")).detach();
    lease.after_acquire(move |_| *count.lock().expect("not poisoned") += 1).detach();
    // This blocks one thread of the runtime for three ttls. The keeper runs on another thread.
    lease.after_acquire(move |_| std::thread::sleep(ttl * 3)).detach();
    lease.acquire(Wait::No).await.expect("the lease is free");
    tokio::time::sleep(ttl * 2).await;
    assert!(lease.is_held(), "{:?}", lease.state());
    assert_eq!(*events.lock().expect("not poisoned"), 1);
}

/// Runs the case on its own thread: a case that hangs must not hang the test.
fn ends_in_time(case: impl AsyncFnOnce() + Send + 'static) {
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(case());
        // The test does not wait any more if the case took too long.
        let _ = end.send(());
    });
    ended.recv_timeout(LONG).expect("the case ends in time");
}

/// A listener owns a guard of the lease, or the subscription of another listener.
#[test]
fn removed_listener_can_use_its_lease_when_it_is_dropped() {
    ends_in_time(async || {
        let lease = FakeCluster::new().manager().lease("job").expect("a valid name");
        let inner = lease.after_acquire(|_| ());
        let outer = lease.on_lost(move |_| {
            let _owned = &inner;
        });
        drop(outer);
    });
    ends_in_time(async || {
        let lease = FakeCluster::new().manager().lease("job").expect("a valid name");
        let guard = lease.guard(Wait::No).await.expect("the lease is free");
        let listener = lease.on_lost(move |_| {
            let _owned = &guard;
        });
        drop(listener);
        until("it is released", || !lease.is_held()).await;
    });
}

/// Options that stop renewals, and whose closure owns the subscription of a listener.
fn owning_options(inner: tenure::client::Subscription) -> LeaseOptions {
    LeaseOptions::new().renew_while(move || {
        let _owned = &inner;
        false
    })
}

#[test]
fn replaced_options_can_use_their_lease_when_they_are_dropped() {
    ends_in_time(async || {
        let manager = FakeCluster::new().manager();
        let lease = manager.lease("job").expect("a valid name");
        let options = owning_options(lease.on_lost(|_| ()));
        manager.lease_with("job", options).expect("valid options");
        manager.lease_with("job", LeaseOptions::new()).expect("valid options");
        assert!(lease.acquire(Wait::No).await.is_ok());
    });
}

/// A later call has replaced the options of the lease, so the grant has the last reference to its own.
#[test]
fn options_of_a_lost_grant_can_use_their_lease_when_they_are_dropped() {
    ends_in_time(async || {
        let cluster = FakeCluster::new();
        let manager = cluster.manager();
        let lease = manager.lease("job").expect("a valid name");
        let options = owning_options(lease.on_lost(|_| ()));
        manager.lease_with("job", options).expect("valid options");
        lease.acquire(Wait::No).await.expect("the lease is free");
        manager.lease_with("job", LeaseOptions::new()).expect("valid options");
        cluster.lose("job", Loss::Revoked);
        assert!(!lease.is_held());
    });
}

/// The manager sees the deadline and ends at the same time.
#[tokio::test(start_paused = true)]
async fn listener_is_told_of_a_loss_at_the_end_of_its_manager() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let lease = manager.lease_with("job", LeaseOptions::new().ttl(LONG_TTL)).expect("a name");
    let losses = Arc::new(Mutex::new(0));
    let count = losses.clone();
    lease.on_lost(move |_| *count.lock().expect("plain") += 1).detach();
    lease.acquire(Wait::No).await.expect("it is free");
    cluster.clock().advance(LONG_TTL);
    drop((lease, manager));
    until("the listener is called", || *losses.lock().expect("plain") == 1).await;
}
