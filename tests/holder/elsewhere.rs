//! The fake cluster: other holders, and waiters while the test moves the clock.

use std::time::Duration;

use tenure::api::Code;
use tenure::client::{Lease, LeaseOptions, Loss, ManagerOptions, Wait};
use tenure::testing::{FakeCluster, Line, Switch};

use crate::acquiring::code;
use crate::world::{LONG, is_waiting, until, wait_in_queue};

const DELAY: Duration = Duration::from_secs(20);

fn lease(cluster: &FakeCluster, options: LeaseOptions) -> Lease {
    cluster.manager().lease_with("job", options).expect("valid options")
}

async fn refusal(lease: &Lease) -> Option<Code> {
    code(&lease.acquire(Wait::No).await.expect_err("another holder has it"))
}

/// The standby of a test waits, and the test skips the ttl of the holder that is cut off.
#[tokio::test(start_paused = true)]
async fn waiter_keeps_its_place_when_the_clock_jumps() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    let primary = manager.lease_with("job", LeaseOptions::new().ttl(Duration::from_secs(30))).expect("a name");
    primary.acquire(Wait::No).await.expect("it is free");
    let standby = lease(&cluster, LeaseOptions::new());
    switch.set(Line::Cut);
    let waiting = wait_in_queue(&cluster, &standby, Duration::from_secs(60)).await;
    cluster.clock().advance(Duration::from_secs(31));
    let acquired = tokio::time::timeout(LONG, waiting).await.expect("the lease has expired");
    acquired.expect("no panic").expect("the standby is the first in the queue");
}

#[tokio::test(start_paused = true)]
async fn lease_held_elsewhere_goes_to_no_waiter_and_has_no_lock_delay() {
    let cluster = FakeCluster::new();
    let (held, queued) = (lease(&cluster, LeaseOptions::new().lock_delay(DELAY)), lease(&cluster, LeaseOptions::new()));
    held.acquire(Wait::No).await.expect("it is free");
    let waiting = wait_in_queue(&cluster, &queued, DELAY * 10).await;
    cluster.mark_held_elsewhere("job");
    assert!(!held.is_held());
    for _ in 0..2 {
        assert_eq!(refusal(&held).await, Some(Code::Held));
        assert!(is_waiting(&cluster, &queued).await);
        cluster.clock().advance(DELAY + Duration::from_secs(1));
    }
    cluster.mark_free("job");
    let acquired = tokio::time::timeout(LONG, waiting).await.expect("it is free");
    acquired.expect("no panic").expect("the waiter has kept its place");
}

#[tokio::test]
async fn lease_in_its_lock_delay_is_held_elsewhere_after_it() {
    let cluster = FakeCluster::new();
    let lease = lease(&cluster, LeaseOptions::new().lock_delay(DELAY));
    lease.acquire(Wait::No).await.expect("it is free");
    cluster.lose("job", Loss::Revoked);
    cluster.mark_held_elsewhere("job");
    assert_eq!(refusal(&lease).await, Some(Code::LockDelay));
    cluster.clock().advance(DELAY + Duration::from_secs(1));
    assert_eq!(refusal(&lease).await, Some(Code::Held));
    cluster.mark_free("job");
    lease.acquire(Wait::No).await.expect("it is free again");
}

#[tokio::test(start_paused = true)]
async fn lease_whose_acquires_are_refused_is_renewed_and_released() {
    let cluster = FakeCluster::new();
    let lease = lease(&cluster, LeaseOptions::new().ttl(DELAY * 3));
    lease.acquire(Wait::No).await.expect("it is free");
    cluster.refuse("job", Code::QueueFull);
    let whole = lease.remaining();
    cluster.clock().advance(DELAY * 6 / 5);
    until("it is renewed", || lease.remaining() >= whole).await;
    assert_eq!(lease.release().await, Ok(true));
    assert_eq!(refusal(&lease).await, Some(Code::QueueFull));
}

#[tokio::test]
async fn semaphore_held_elsewhere_has_no_permit_left() {
    let cluster = FakeCluster::new();
    let [one, other, next] = [(); 3].map(|()| lease(&cluster, LeaseOptions::new().limit(3)));
    for lease in [&one, &other] {
        lease.acquire(Wait::No).await.expect("a permit is free");
    }
    cluster.mark_held_elsewhere("job");
    assert!(!one.is_held() && !other.is_held());
    for lease in [&one, &other, &next] {
        assert_eq!(refusal(lease).await, Some(Code::Held));
    }
    cluster.mark_free("job");
    for lease in [&one, &other, &next] {
        lease.acquire(Wait::No).await.expect("a permit is free again");
    }
}
