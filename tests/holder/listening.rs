//! Listeners: each told once, in order, and no more once it does not want to be.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::client::{Loss, Wait};

use crate::world::{World, over_both_ways, short, until};

over_both_ways!(
    lost_is_told_once_after_the_acquire_had_ended_and_never_for_a_release,
    who_unsubscribes_is_not_told,
    a_listener_that_panics_or_blocks_does_not_keep_leases_from_renewal,
);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Acquired,
    Lost(Loss),
}

async fn lost_is_told_once_after_the_acquire_had_ended_and_never_for_a_release(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let told = Arc::new(Mutex::new(Vec::new()));
    let (one, other) = (told.clone(), told.clone());
    lease.after_acquire(move |_| one.lock().expect("plain").push(Told::Acquired)).detach();
    lease.on_lost(move |why| other.lock().expect("plain").push(Told::Lost(why))).detach();
    let count = || told.lock().expect("plain").len();
    for _ in 0..3 {
        lease.acquire(Wait::No).await.expect("it is free");
        lease.acquire(Wait::No).await.expect("it is held, and nothing new");
        world.remote().revoke(lease.name(), "").await.expect("an answer");
        until("it is lost", || !lease.is_held()).await;
    }
    until("all is told", || count() == 6).await;
    lease.acquire(Wait::No).await.expect("it is free");
    lease.release().await.expect("an answer");
    until("all is told", || count() == 7).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let pair = [Told::Acquired, Told::Lost(Loss::Revoked)];
    let expected: Vec<Told> = [pair, pair, pair].concat().into_iter().chain([Told::Acquired]).collect();
    assert_eq!(*told.lock().expect("plain"), expected);
}

async fn who_unsubscribes_is_not_told(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let told = Arc::new(Mutex::new(Vec::new()));
    let listen = |name: &'static str| {
        let told = told.clone();
        lease.on_lost(move |_| told.lock().expect("plain").push(name))
    };
    let (goes, stays) = (listen("goes"), listen("stays"));
    lease.acquire(Wait::No).await.expect("it is free");
    drop(goes);
    world.remote().revoke(lease.name(), "").await.expect("an answer");
    until("it is told", || !told.lock().expect("plain").is_empty()).await;
    assert_eq!(*told.lock().expect("plain"), ["stays"]);
    drop(stays);
}

async fn a_listener_that_panics_or_blocks_does_not_keep_leases_from_renewal(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let told = Arc::new(Mutex::new(0));
    let count = told.clone();
    lease.after_acquire(|_| panic!("planted by a test")).detach();
    lease.after_acquire(move |_| *count.lock().expect("plain") += 1).detach();
    // A whole thread of the runtime for three ttls: another has the keeper.
    lease.after_acquire(|_| std::thread::sleep(crate::world::TTL * 3)).detach();
    lease.acquire(Wait::No).await.expect("it is free");
    tokio::time::sleep(crate::world::TTL * 2).await;
    assert!(lease.is_held(), "{:?}", lease.state());
    assert_eq!(*told.lock().expect("plain"), 1);
}
