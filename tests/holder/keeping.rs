//! Renewals: in time, batched, and through the failure of a node.

use std::time::Duration;

use tenure::client::{Endpoints, LeaseManager, Remote, Wait};

use crate::freezer::StallingProxy;
use crate::steady::steady;
use crate::world::{LONG_TTL, TTL, Transport, World, over_both_transports, short};

steady!(hanging_node_costs_no_lease);

over_both_transports!(
    renewals_come_at_a_third_of_the_ttl,
    one_request_renews_all_held_leases,
    leases_of_all_ttls_are_renewed
);

async fn renewals_come_at_a_third_of_the_ttl(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    tokio::time::sleep(TTL * 4).await;
    let renewals = world.remote().get(lease.name()).await.expect("the cluster answers").renewals;
    // Four ttls are 12 intervals with 10 % jitter. The bounds allow for a busy machine.
    assert!((8..=14).contains(&renewals), "{renewals}");
}

async fn one_request_renews_all_held_leases(world: &World) {
    let holder = world.holder();
    const LEASES: usize = 100;
    let mut leases = Vec::new();
    for n in 0..LEASES {
        leases.push(holder.manager.lease_with(format!("job-{n}"), short().ttl(LONG_TTL)).expect("a valid name"));
    }
    // All at once would take a busy machine longer than the timeout of one.
    for some in leases.chunks(50) {
        let acquired = futures_util::future::join_all(some.iter().map(|lease| lease.acquire(Wait::No))).await;
        let failed: Vec<_> = acquired.iter().filter_map(|acquired| acquired.as_ref().err()).collect();
        assert!(failed.is_empty(), "{failed:?}");
    }
    let before = holder.switch.renewals();
    tokio::time::sleep(LONG_TTL * 2).await;
    let sent = holder.switch.renewals() - before;
    assert!(leases.iter().all(|lease| lease.is_held()));
    // Two ttls are six rounds. The first rounds may need more than one request.
    assert!((3..=14).contains(&sent), "{sent} requests for {LEASES} leases");
    let renewals = world.remote().get(leases[LEASES - 1].name()).await.expect("the cluster answers").renewals;
    assert!(renewals >= 3, "{renewals}");
}

async fn leases_of_all_ttls_are_renewed(world: &World) {
    let holder = world.holder();
    let lease = |name: &str, ttl: u64| {
        holder.manager.lease_with(name, short().ttl(Duration::from_millis(ttl))).expect("a valid name")
    };
    let leases = [lease("a", 1_000), lease("b", 3_000), lease("c", 60_000)];
    let mut tokens = Vec::new();
    for lease in &leases {
        tokens.push(lease.acquire(Wait::No).await.expect("the lease is free"));
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    for (lease, token) in leases.iter().zip(tokens) {
        assert_eq!(lease.token(), Some(token), "{:?}", lease.state());
        assert_eq!(lease.check().await, Ok(true));
    }
}

async fn hanging_node_costs_no_lease() {
    let world = World::start(Transport::OverTheNetwork).await;
    let proxy = StallingProxy::before(world.address(0)).await;
    let urls = format!("{},{},{}", proxy.address, world.address(1), world.address(2));
    let manager = LeaseManager::new(Remote::new(urls.parse::<Endpoints>().expect("URLs")));
    let lease = manager.lease_with("job", short().ttl(LONG_TTL)).expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    // The first endpoint has answered, so the client prefers it.
    proxy.freeze();
    tokio::time::sleep(LONG_TTL * 2).await;
    assert_eq!(lease.token(), Some(token), "{:?}", lease.state());
    assert_eq!(lease.release().await, Ok(true));
    manager.shutdown().await;
    world.end().await;
}
