//! The time of a lease counts from the request and not from its answer, however late the answer comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tenure::api::{
    self, Acquire, EventId, Explanation, HandOver, Release, Released, RenewBatch, Renewed, UpdateMetadata,
};
use tenure::client::{Answer, Coordinator, Events, HoldState, Lease, LeaseOptions, ManagerOptions, Patience, Wait};
use tenure::testing::FakeCluster;
use tenure::types::{HolderId, LeaseName};

use crate::world::until;

const TTL: Duration = Duration::from_secs(60);
/// A holder uses a ttl without the part by which clocks may differ.
const USABLE: Duration = Duration::from_millis(59_400);

/// A link to a cluster: the clock advances while an answer is on its way back.
#[derive(Clone)]
struct Link {
    cluster: FakeCluster,
    delay_ms: Arc<AtomicU64>,
    renewals: Arc<AtomicUsize>,
}

impl Link {
    fn new() -> Link {
        Link { cluster: FakeCluster::new(), delay_ms: Arc::default(), renewals: Arc::default() }
    }

    fn lease(&self) -> Lease {
        let manager = self.cluster.manager_through(self.clone(), ManagerOptions::new());
        manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name")
    }

    /// The next answer takes so long. The ones after it take no time.
    fn delay_next(&self, delay: Duration) {
        self.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    fn carry_answer(&self) {
        self.cluster.clock().advance(Duration::from_millis(self.delay_ms.swap(0, Ordering::SeqCst)));
    }
}

impl Coordinator for Link {
    fn acquire(&self, name: LeaseName, claim: Acquire, patience: Patience) -> Answer<'_, api::Lease> {
        Box::pin(async move {
            let answer = self.cluster.acquire(name, claim, patience).await;
            self.carry_answer();
            answer
        })
    }

    fn renew(&self, batch: RenewBatch, patience: Patience) -> Answer<'_, Renewed> {
        Box::pin(async move {
            let answer = self.cluster.renew(batch, patience).await;
            self.carry_answer();
            self.renewals.fetch_add(1, Ordering::SeqCst);
            answer
        })
    }

    fn release(&self, name: LeaseName, release: Release, patience: Patience) -> Answer<'_, Released> {
        self.cluster.release(name, release, patience)
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, patience: Patience) -> Answer<'_, api::Lease> {
        self.cluster.hand_over(name, hand_over, patience)
    }

    fn update_metadata(&self, name: LeaseName, update: UpdateMetadata, patience: Patience) -> Answer<'_, api::Lease> {
        self.cluster.update_metadata(name, update, patience)
    }

    fn explain(&self, name: LeaseName, holder: HolderId, patience: Patience) -> Answer<'_, Explanation> {
        self.cluster.explain(name, holder, patience)
    }

    fn held(&self, prefix: String, patience: Patience) -> Answer<'_, Vec<api::Lease>> {
        self.cluster.held(prefix, patience)
    }

    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events> {
        self.cluster.watch(prefix, after)
    }
}

#[tokio::test]
async fn grant_counts_from_its_claim() {
    let (link, delay) = (Link::new(), Duration::from_secs(10));
    let lease = link.lease();
    link.delay_next(delay);
    lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!(lease.remaining(), Some(USABLE - delay));
}

#[tokio::test]
async fn grant_older_than_a_third_is_renewed_first() {
    let link = Link::new();
    let lease = link.lease();
    link.delay_next(TTL / 3 + Duration::from_millis(1));
    lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!((lease.remaining(), link.renewals.load(Ordering::SeqCst)), (Some(USABLE), 1));
}

#[tokio::test]
async fn renewal_counts_from_its_request() {
    let (link, delay) = (Link::new(), Duration::from_secs(15));
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("it is free");
    link.delay_next(delay);
    link.cluster.clock().advance(TTL * 2 / 5);
    until("it is renewed", || link.renewals.load(Ordering::SeqCst) > 0 && lease.remaining() > Some(TTL / 2)).await;
    assert_eq!(lease.remaining(), Some(USABLE - delay));
}

#[tokio::test]
async fn renewal_answered_after_the_deadline_revives_nothing() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("it is free");
    // The cluster extends the lease in time, and its answer comes when the holder has stopped.
    link.delay_next(TTL * 4 / 5);
    link.cluster.clock().advance(TTL * 2 / 5);
    until("it is renewed", || link.renewals.load(Ordering::SeqCst) > 0).await;
    for _ in 0..100 {
        assert!(!lease.is_held() && lease.token().is_none() && lease.remaining().is_none());
        tokio::task::yield_now().await;
    }
    until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
    assert!(!lease.is_held());
}
