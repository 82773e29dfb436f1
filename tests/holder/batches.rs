//! Renewals of many leases, and of several holders.

use tenure::client::{Lease, LeaseOptions, Wait};
use tenure::semaphore::Semaphore;

use crate::link::{Link, TTL, USABLE};
use crate::world::until;

/// The number of leases in each renewal that was sent.
fn sent(link: &Link) -> Vec<usize> {
    link.sent_renewals.lock().expect("no panic").iter().map(|(leases, _)| *leases).collect()
}

#[tokio::test(start_paused = true)]
async fn each_permit_has_its_own_renewal_request() {
    let link = Link::new();
    let uploads = Semaphore::new(&link.manager(), "uploads", 2, LeaseOptions::new().ttl(TTL)).expect("a valid name");
    let first = uploads.acquire(Wait::No).await.expect("a permit is free");
    let second = uploads.acquire(Wait::No).await.expect("a permit is free");
    assert!(first.token() < second.token() && first.holder() != second.holder());
    for round in 1..=3 {
        link.cluster.clock().advance(TTL * 2 / 5);
        until("both are renewed", || [&first, &second].iter().all(|permit| permit.remaining() == Some(USABLE))).await;
        assert_eq!(sent(&link), vec![1; 2 * round]);
    }
    assert!(first.is_held() && second.is_held(), "the tokens are the same");
}

#[tokio::test(start_paused = true)]
async fn renewal_request_has_at_most_10_000_leases() {
    const LEASES: usize = 10_001;
    let link = Link::new();
    let manager = link.manager();
    let lease = |number| manager.lease_with(format!("job-{number}"), LeaseOptions::new().ttl(TTL)).expect("a name");
    let leases: Vec<Lease> = (0..LEASES).map(lease).collect();
    for lease in &leases {
        lease.acquire(Wait::No).await.expect("the lease is free");
    }
    link.cluster.clock().advance(TTL * 2 / 5);
    let is_renewed = |lease: &Lease| lease.remaining() == Some(USABLE);
    until("all are renewed", || leases.iter().all(is_renewed)).await;
    let sent = sent(&link);
    assert_eq!(sent.iter().sum::<usize>(), LEASES, "{sent:?}");
    assert!(sent.iter().all(|leases| *leases <= 10_000), "{sent:?}");
}
