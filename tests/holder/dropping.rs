//! Dropped futures of releases.

use futures_util::FutureExt;
use tenure::client::{Lease, LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tenure::testing::{FakeCluster, Line, Switch};

use crate::world::LONG;

/// A manager behind a switch, and the lease of another holder.
struct World {
    switch: Switch,
    manager: LeaseManager,
    other: Lease,
}

impl World {
    fn start() -> World {
        let cluster = FakeCluster::new();
        let switch = Switch::new(cluster.clone());
        let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
        let other = cluster.manager().lease_with("job", LeaseOptions::new().infinite()).expect("a name");
        World { switch, manager, other }
    }

    fn infinite(&self) -> Lease {
        self.manager.lease_with("job", LeaseOptions::new().infinite()).expect("a name")
    }

    /// Polls a request once, without a connection, and drops it.
    fn drop_request<T>(&self, request: impl Future<Output = T>) {
        self.switch.set(Line::Cut);
        assert!(request.now_or_never().is_none(), "the request has no answer");
        self.switch.set(Line::Up);
    }
}

#[tokio::test]
async fn dropped_release_can_be_repeated() {
    let world = World::start();
    let lease = world.infinite();
    lease.acquire(Wait::No).await.expect("it is free");
    world.drop_request(lease.release());
    assert!(!lease.is_held());
    assert_eq!(lease.release().await, Ok(true));
    assert_eq!(lease.release().await, Ok(false));
    world.other.acquire(Wait::No).await.expect("it is free again");
}

#[tokio::test]
async fn acquire_after_a_dropped_release_gets_a_new_token() {
    let world = World::start();
    let lease = world.infinite();
    let token = lease.acquire(Wait::No).await.expect("it is free");
    world.drop_request(lease.release());
    assert!(lease.acquire(Wait::No).await.expect("this holder has it") > token);
}

#[tokio::test]
async fn guard_dropped_after_its_dropped_release_frees_the_lease() {
    let world = World::start();
    let guard = world.infinite().guard(Wait::No).await.expect("it is free");
    world.drop_request(guard.release());
    assert!(!guard.is_held());
    drop(guard);
    world.other.acquire(Wait::UpTo(LONG)).await.expect("the manager releases it");
}
