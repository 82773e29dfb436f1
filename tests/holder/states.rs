//! What a handle knows of its lease: its state, and what it learns from a check at the cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::api::HandOver;
use tenure::client::{Coordinator, HoldState, LeaseManager, LeaseOptions, Loss, ManagerOptions, RetryBudget, Wait};
use tenure::testing::{FakeCluster, ManualClock};

use crate::link::{TTL, USABLE};
use crate::runtimes::runtime;
use crate::world::{LONG, until, wait_in_queue};

#[tokio::test]
async fn check_learns_of_a_hand_over() {
    let cluster = FakeCluster::new();
    let (lease, next) = (cluster.manager().lease("job"), cluster.manager().lease("job"));
    let (lease, next) = (lease.expect("a name"), next.expect("a name"));
    let token = lease.acquire(Wait::No).await.expect("it is free");
    let waiting = wait_in_queue(&cluster, &next, TTL).await;
    let hand_over = HandOver::new(lease.holder().clone(), token);
    let budget = RetryBudget::within(Duration::from_secs(1));
    let handed_over = Coordinator::hand_over(&cluster, lease.name().clone(), hand_over, budget).await;
    handed_over.expect("behind the manager's back");
    waiting.await.expect("no panic").expect("the waiter has the lease");
    assert_eq!(lease.check().await, Ok(false));
    assert_eq!(lease.state(), HoldState::Lost { token, why: Loss::HandedOver });
}

/// The clock of the holder stands still.
#[tokio::test]
async fn check_learns_of_an_expiry() {
    let cluster = FakeCluster::new();
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1));
    let options = ManagerOptions::new().clock(Arc::new(clock));
    let manager = LeaseManager::with_options(cluster.clone(), options).expect("valid options");
    let lease = manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    cluster.clock().advance(TTL + Duration::from_secs(1));
    assert_eq!(lease.check().await, Ok(false));
    assert_eq!(lease.state(), HoldState::Lost { token, why: Loss::Expired });
}

#[tokio::test]
async fn states_show_the_time_that_was_left_at_their_beginning() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let (passed, goes_on) = (TTL * 2 / 5, Arc::new(AtomicBool::new(true)));
    let progress = goes_on.clone();
    let options = LeaseOptions::new().ttl(TTL).renew_while(move || progress.load(Ordering::SeqCst));
    let lease = manager.lease_with("job", options).expect("valid options");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    let held = HoldState::Held { token, left: Some(USABLE) };
    assert_eq!(lease.state(), held);
    cluster.clock().advance(passed);
    until("it is renewed", || lease.remaining() == Some(USABLE)).await;
    assert_eq!(lease.state(), held);
    goes_on.store(false, Ordering::SeqCst);
    cluster.clock().advance(passed);
    until("renewals stop", || matches!(lease.state(), HoldState::Ending { .. })).await;
    assert_eq!(lease.state(), HoldState::Ending { token, left: USABLE - passed, why: Loss::Stalled });
}

/// A manager that held a lock during the check would wait for itself, so the program runs in its own thread.
#[test]
fn progress_check_may_end_its_lease() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let cluster = FakeCluster::new();
        let ends = cluster.clone();
        let options = LeaseOptions::new().ttl(TTL).renew_while(move || {
            ends.lose("job", Loss::Revoked);
            true
        });
        let lease = cluster.manager().lease_with("job", options).expect("valid options");
        runtime().block_on(async {
            let token = lease.acquire(Wait::No).await.expect("it is free");
            cluster.clock().advance(TTL * 2 / 5);
            until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
            done.send((lease.state(), token)).expect("the test waits");
        });
    });
    let (state, token) = ended.recv_timeout(LONG).expect("the manager goes on");
    assert_eq!(state, HoldState::Lost { token, why: Loss::Revoked });
}
