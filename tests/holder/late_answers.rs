//! The time of a lease counts from the request and not from its answer, however late the answer comes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::api::{
    self, Acquire, Code, EventId, Explanation, HandOver, Release, Released, RenewBatch, Renewed, Standing,
    UpdateMetadata,
};
use tenure::client::{
    AcquireOptions, Answer, CallError, Coordinator, Events, HoldState, Lease, LeaseManager, LeaseOptions, Loss,
    ManagerOptions, Patience, Wait,
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
    /// The answers to the next releases are lost.
    lost_releases: Arc<Mutex<Vec<Fate>>>,
    /// The next answer to a renewal has no results.
    empties_next: Arc<AtomicBool>,
}

/// What becomes of a release whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    CarriedOut,
    NotCarriedOut,
    /// Not carried out, and the lease is revoked.
    Revoked,
    /// Carried out, and the same holder has the lease again.
    GrantedAnew,
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
            empties_next: Arc::default(),
        }
    }

    fn manager(&self) -> LeaseManager {
        self.cluster.manager_through(self.clone(), ManagerOptions::new())
    }

    fn lease(&self) -> Lease {
        self.manager().lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name")
    }

    fn lose_next_release(&self, fate: Fate) {
        *self.lost_releases.lock().expect("no panic") = vec![fate];
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

    fn renew(&self, batch: RenewBatch, patience: Patience) -> Answer<'_, Renewed> {
        Box::pin(async move {
            let mut answer = self.cluster.renew(batch, patience).await;
            if self.empties_next.swap(false, Ordering::SeqCst) {
                answer.as_mut().expect("the cluster answers").results.clear();
            }
            self.carry_answer();
            self.renewals.fetch_add(1, Ordering::SeqCst);
            answer
        })
    }

    fn release(&self, name: LeaseName, release: Release, patience: Patience) -> Answer<'_, Released> {
        Box::pin(async move {
            self.releases.fetch_add(1, Ordering::SeqCst);
            let lost = self.lost_releases.lock().expect("no panic").pop();
            let claim = Acquire::new(release.holder.clone());
            match lost {
                None => return self.cluster.release(name, release, patience).await,
                Some(Fate::CarriedOut) => _ = self.cluster.release(name, release, patience).await,
                Some(Fate::NotCarriedOut) => {}
                Some(Fate::Revoked) => self.cluster.lose(name.as_str(), Loss::Revoked),
                Some(Fate::GrantedAnew) => {
                    let _ = self.cluster.release(name.clone(), release, patience).await;
                    let _ = self.cluster.acquire(name, claim, patience).await;
                }
            }
            Err(CallError::Unknown { why: "the answer is lost".to_owned(), last: None })
        })
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
        let explanation = link.cluster.explain(lease.name().clone(), lease.holder().clone(), Patience::within(TTL));
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
    link.lose_next_release(Fate::CarriedOut);
    assert_eq!(lease.release().await, Ok(true), "it was carried out");
    lease.acquire(Wait::No).await.expect("it is free");
    link.lose_next_release(Fate::NotCarriedOut);
    let unknown = lease.release().await.expect_err("the cluster still counts it as held");
    assert!(matches!(unknown, CallError::Unknown { .. }), "{unknown}");
    assert_eq!(lease.release().await, Ok(true), "the same token is released once more");
    assert_eq!(lease.release().await, Ok(false), "nothing is left to release");
    assert_eq!(link.releases.load(Ordering::SeqCst), 3, "nothing was sent for the last one");
    for fate in [Fate::Revoked, Fate::GrantedAnew] {
        lease.acquire(Wait::No).await.expect("it is free");
        link.lose_next_release(fate);
        assert_eq!(lease.release().await, Ok(false), "{fate:?}: this grant is over, and more is not known");
    }
}

/// The token of the old grant is released before the next claim, and only then.
#[tokio::test]
async fn leftover_token_is_released_once() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("it is free");
    link.lose_next_release(Fate::NotCarriedOut);
    assert!(lease.release().await.is_err());
    lease.acquire(Wait::No).await.expect("the old token is released first");
    assert_eq!(link.releases.load(Ordering::SeqCst), 2);
    assert_eq!(lease.release().await, Ok(true));
    lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!(link.releases.load(Ordering::SeqCst), 3);
}

/// The cluster has ended the other grants already.
#[tokio::test]
async fn guard_gives_back_only_grants_lost_by_its_own_clock() {
    for (why, sent) in [(Loss::Stalled, 1), (Loss::Revoked, 0)] {
        let link = Link::new();
        let guard = link.lease().guard(Wait::No).await.expect("it is free");
        link.cluster.lose("job", why);
        assert_eq!(guard.release().await, Ok(false), "{why:?}");
        drop(guard);
        let begun = link.claims.load(Ordering::SeqCst);
        // The manager gives it back in a task. It has no other work.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!((begun, link.releases.load(Ordering::SeqCst)), (1, sent), "{why:?}");
    }
}

/// One request renews every lease of this holder that is due within a sixth of its ttl.
#[tokio::test]
async fn renewal_takes_along_what_is_due_soon_and_nothing_else() {
    let link = Link::new();
    let manager = link.manager();
    let lease = |name: &str| manager.lease_with(name, LeaseOptions::new().ttl(TTL)).expect("a name");
    let [first, soon, later] = [lease("first"), lease("soon"), lease("later")];
    let advance = |seconds| link.cluster.clock().advance(Duration::from_secs(seconds));
    first.acquire(Wait::No).await.expect("it is free");
    advance(4);
    soon.acquire(Wait::No).await.expect("it is free");
    advance(13);
    later.acquire(Wait::No).await.expect("it is free");
    assert_eq!(link.renewals.load(Ordering::SeqCst), 0);
    // A renewal is due after 18 to 22 seconds.
    advance(5);
    until("the first is renewed", || first.remaining() == Some(USABLE)).await;
    assert_eq!((soon.remaining(), link.renewals.load(Ordering::SeqCst)), (Some(USABLE), 1));
    assert_eq!(later.remaining(), Some(USABLE - Duration::from_secs(5)));
}

#[tokio::test]
async fn renewal_without_a_result_has_failed() {
    let link = Link::new();
    let lease = link.lease();
    let token = lease.acquire(Wait::No).await.expect("it is free");
    link.empties_next.store(true, Ordering::SeqCst);
    link.cluster.clock().advance(TTL * 2 / 5);
    until("the renewal fails", || matches!(lease.state(), HoldState::AtRisk { .. })).await;
    link.cluster.clock().advance(TTL / 10);
    until("it is renewed", || lease.remaining() == Some(USABLE)).await;
    assert_eq!(lease.token(), Some(token));
}

#[tokio::test]
async fn acquire_is_retried_as_often_as_asked_for() {
    let link = Link::new();
    link.cluster.mark_held_elsewhere("job");
    for retries in [0, 1, 3] {
        let before = link.claims.load(Ordering::SeqCst);
        let options = AcquireOptions::new().retries(retries, Duration::from_millis(1));
        let ended = tokio::time::timeout(TTL / 3, link.lease().acquire(options)).await;
        assert!(matches!(ended, Ok(Err(CallError::Refused(_)))), "{ended:?}");
        assert_eq!(link.claims.load(Ordering::SeqCst) - before, retries as usize + 1);
    }
}

#[tokio::test]
async fn lease_is_held_until_its_deadline_and_no_longer() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("it is free");
    let (gone, stopping, nanosecond) = (lease.gone(), lease.stopping(), Duration::from_nanos(1));
    link.cluster.clock().advance(USABLE - nanosecond);
    assert_eq!((lease.is_held(), lease.remaining()), (true, Some(nanosecond)));
    link.cluster.clock().advance(nanosecond);
    assert_eq!((lease.is_held(), lease.remaining()), (false, None));
    assert!(!gone.is_cancelled() && !stopping.is_cancelled(), "the manager has not looked");
    until("the manager has looked", || gone.is_cancelled() && stopping.is_cancelled()).await;
}
