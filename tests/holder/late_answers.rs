//! The time of a lease counts from the request and not from its answer, however late the answer comes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::api::{
    self, Acquire, Code, EventId, Explanation, HandOver, Release, Released, RenewBatch, Renewed, Standing,
    UpdateMetadata,
};
use tenure::client::{
    Answer, CallError, Coordinator, Events, HoldState, Lease, LeaseOptions, ManagerOptions, RetryBudget, Wait,
};
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
    claims: Arc<AtomicUsize>,
    renewals: Arc<AtomicUsize>,
    /// The cluster does not notice when a claim is given up: it goes on waiting.
    loses_hang_ups: Arc<AtomicBool>,
    releases: Arc<AtomicUsize>,
    /// The answers to the next releases are lost; whether each is carried out.
    lost_releases: Arc<Mutex<Vec<bool>>>,
}

impl Link {
    fn new() -> Link {
        Link {
            cluster: FakeCluster::new(),
            delay_ms: Arc::default(),
            claims: Arc::default(),
            renewals: Arc::default(),
            loses_hang_ups: Arc::default(),
            releases: Arc::default(),
            lost_releases: Arc::default(),
        }
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
    fn acquire(&self, name: LeaseName, claim: Acquire, patience: RetryBudget) -> Answer<'_, api::Lease> {
        Box::pin(async move {
            self.claims.fetch_add(1, Ordering::SeqCst);
            let answer = if self.loses_hang_ups.load(Ordering::SeqCst) {
                let cluster = self.cluster.clone();
                tokio::spawn(async move { cluster.acquire(name, claim, patience).await }).await.expect("no panic")
            } else {
                self.cluster.acquire(name, claim, patience).await
            };
            self.carry_answer();
            answer
        })
    }

    fn renew(&self, batch: RenewBatch, patience: RetryBudget) -> Answer<'_, Renewed> {
        Box::pin(async move {
            let answer = self.cluster.renew(batch, patience).await;
            self.carry_answer();
            self.renewals.fetch_add(1, Ordering::SeqCst);
            answer
        })
    }

    fn release(&self, name: LeaseName, release: Release, patience: RetryBudget) -> Answer<'_, Released> {
        Box::pin(async move {
            self.releases.fetch_add(1, Ordering::SeqCst);
            let lost = self.lost_releases.lock().expect("no panic").pop();
            if lost != Some(false) {
                let answer = self.cluster.release(name, release, patience).await;
                if lost.is_none() {
                    return answer;
                }
            }
            Err(CallError::Unknown { why: "the answer is lost".to_owned(), last: None })
        })
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, patience: RetryBudget) -> Answer<'_, api::Lease> {
        self.cluster.hand_over(name, hand_over, patience)
    }

    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        patience: RetryBudget,
    ) -> Answer<'_, api::Lease> {
        self.cluster.update_metadata(name, update, patience)
    }

    fn explain(&self, name: LeaseName, holder: HolderId, patience: RetryBudget) -> Answer<'_, Explanation> {
        self.cluster.explain(name, holder, patience)
    }

    fn held(&self, prefix: String, patience: RetryBudget) -> Answer<'_, Vec<api::Lease>> {
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
async fn grant_older_than_its_ttl_is_refused_as_lost() {
    let link = Link::new();
    let lease = link.lease();
    link.delay_next(TTL + Duration::from_secs(1));
    let refused = lease.acquire(Wait::No).await.expect_err("it has expired");
    assert!(matches!(&refused, CallError::Refused(problem) if problem.code == Code::Lost), "{refused}");
    assert!(!lease.is_held());
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

/// A place in the queue that outlives its claim would be granted the lease for a whole ttl.
#[tokio::test]
async fn waiter_that_the_cluster_keeps_is_withdrawn() {
    let link = Link::new();
    let (held, lease) = (link.cluster.manager(), link.lease());
    let held = held.lease_with("job", LeaseOptions::new().infinite()).expect("a name");
    held.acquire(Wait::No).await.expect("it is free");
    let waits = async || {
        let explanation = link.cluster.explain(lease.name().clone(), lease.holder().clone(), RetryBudget::within(TTL));
        matches!(explanation.await.expect("an answer").standing, Some(Standing::Waits { .. }))
    };
    link.loses_hang_ups.store(true, Ordering::SeqCst);
    let claim = tokio::spawn({
        let lease = lease.clone();
        async move { lease.acquire(Wait::UpTo(TTL)).await }
    });
    while !waits().await {
        tokio::task::yield_now().await;
    }
    claim.abort();
    // The cluster may notice by itself. The manager gives it a quarter of a second for that.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!((waits().await, link.claims.load(Ordering::SeqCst)), (true, 1), "withdrawn before its time");
    }
    for _ in 0..30 {
        link.cluster.clock().advance(Duration::from_millis(300));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!waits().await, "it is still in the queue");
    assert!(!lease.is_held());
    assert_eq!(held.release().await, Ok(true));
}

#[tokio::test]
async fn history_settles_a_release_whose_answer_is_lost() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("it is free");
    *link.lost_releases.lock().expect("no panic") = vec![true];
    assert_eq!(lease.release().await, Ok(true), "it was carried out");
    lease.acquire(Wait::No).await.expect("it is free");
    *link.lost_releases.lock().expect("no panic") = vec![false];
    let unknown = lease.release().await.expect_err("the cluster still counts it as held");
    assert!(matches!(unknown, CallError::Unknown { .. }), "{unknown}");
    assert_eq!(lease.release().await, Ok(true), "the same token is released once more");
    assert_eq!(lease.release().await, Ok(false), "nothing is left to release");
}

/// The token of the old grant is released before the next claim, and only then.
#[tokio::test]
async fn leftover_token_is_released_once() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("it is free");
    *link.lost_releases.lock().expect("no panic") = vec![false];
    assert!(lease.release().await.is_err());
    lease.acquire(Wait::No).await.expect("the old token is released first");
    assert_eq!(link.releases.load(Ordering::SeqCst), 2);
    assert_eq!(lease.release().await, Ok(true));
    lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!(link.releases.load(Ordering::SeqCst), 3);
}
