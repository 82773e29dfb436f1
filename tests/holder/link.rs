//! A coordinator in memory that delays, withholds and loses answers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::api::{
    self, Acquire, Code, EventId, Explanation, HandOver, Problem, Release, Released, RenewBatch, Renewed,
    UpdateMetadata,
};
use tenure::client::{
    CallError, Coordinator, Events, Lease, LeaseManager, LeaseOptions, Loss, ManagerOptions, ResponseFuture,
    RetryBudget,
};
use tenure::testing::FakeCluster;
use tenure::types::{HolderId, LeaseName};
use tokio::sync::watch;

use crate::world::{is_waiting, until, wait_in_queue};

pub const TTL: Duration = Duration::from_secs(60);
/// The ttl less the drift margin of 1 %.
pub const USABLE: Duration = Duration::from_millis(59_400);

/// A coordinator that advances the clock before it returns an answer.
#[derive(Clone)]
pub struct Link {
    pub cluster: FakeCluster,
    delay_ms: Arc<AtomicU64>,
    pub claims: Arc<AtomicUsize>,
    pub renewals: Arc<AtomicUsize>,
    /// Of each renewal that was sent: its number of leases, and its time limit.
    pub sent_renewals: Arc<Mutex<Vec<(usize, Duration)>>>,
    /// The answers that wait, although the cluster has carried out their requests.
    pub withheld: watch::Sender<Withheld>,
    /// The cluster does not notice that a claim was dropped: the claim stays in the queue.
    pub ignores_disconnects: Arc<AtomicBool>,
    pub releases: Arc<AtomicUsize>,
    /// The answers to the next releases are lost.
    lost_releases: Arc<Mutex<Vec<Fate>>>,
    /// The next answer to a renewal has no results.
    pub empties_next: Arc<AtomicBool>,
    /// The next renewal does not reach the cluster.
    pub loses_next_renewal: Arc<AtomicBool>,
    pub panics_at_next_renewal: Arc<AtomicBool>,
    /// What becomes of the next claims.
    pub failing_claims: Arc<Mutex<VecDeque<ClaimFate>>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Withheld {
    /// The requests, and not their answers. They arrive later, also without their sender.
    pub claim_requests: bool,
    /// The requests, and not their answers.
    pub renewal_requests: bool,
    pub renewals: bool,
    pub hand_overs: bool,
    /// The requests, and not their answers.
    pub release_requests: bool,
    pub releases: bool,
}

/// What becomes of a release whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    CarriedOut,
    NotCarriedOut,
    /// Not carried out, and the lease is revoked.
    Revoked,
    /// Carried out, and the same holder has the lease again.
    GrantedAnew,
    /// The request panics.
    Panics,
}

/// What becomes of a claim without an answer.
#[derive(Clone, Copy, Debug)]
pub enum ClaimFate {
    /// The cluster carries it out, and the answer is lost.
    AnswerLost,
    /// No node is reached.
    NotSent,
    /// The cluster refuses it for another reason than the wait, once the test withholds no claims.
    Forbidden,
    /// The cluster carries it out after this time, also without its sender, who waits until the time limit.
    Late(Duration),
    /// The node in this process is shut down.
    ShutDown,
}

impl Link {
    pub fn new() -> Link {
        Link {
            cluster: FakeCluster::new(),
            delay_ms: Arc::default(),
            claims: Arc::default(),
            renewals: Arc::default(),
            sent_renewals: Arc::default(),
            withheld: watch::Sender::default(),
            ignores_disconnects: Arc::default(),
            releases: Arc::default(),
            lost_releases: Arc::default(),
            empties_next: Arc::default(),
            loses_next_renewal: Arc::default(),
            panics_at_next_renewal: Arc::default(),
            failing_claims: Arc::default(),
        }
    }

    pub fn manager(&self) -> LeaseManager {
        self.cluster.manager_through(self.clone(), ManagerOptions::new())
    }

    pub fn lease(&self) -> Lease {
        self.manager().lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a valid name")
    }

    pub fn lose_next_release(&self, fate: Fate) {
        *self.lost_releases.lock().expect("no panic") = vec![fate];
    }

    /// Delays the next answer. Later answers have no delay.
    pub fn delay_next(&self, delay: Duration) {
        self.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// Waits while the test withholds such an answer.
    async fn wait_for_answer(&self, is_withheld: impl Fn(&Withheld) -> bool) {
        self.withheld.subscribe().wait_for(|now| !is_withheld(now)).await.expect("the link has the sender");
    }

    /// Whether the holder of this lease is in the queue.
    pub async fn waits(&self, lease: &Lease) -> bool {
        is_waiting(&self.cluster, lease).await
    }

    /// Sends a renewal and a hand-over to `next`, and returns when `next` has the lease. The test withholds both answers.
    pub async fn hand_over_during_a_renewal(
        &self,
        lease: &Lease,
        next: &Lease,
    ) -> tokio::task::JoinHandle<Result<bool, CallError>> {
        self.cluster.clock().advance(TTL * 2 / 5);
        until("the renewal is sent", || !self.sent_renewals.lock().expect("no panic").is_empty()).await;
        let waiting = wait_in_queue(&self.cluster, next, TTL).await;
        let handing_over = tokio::spawn({
            let lease = lease.clone();
            async move { lease.hand_over(None).await }
        });
        waiting.await.expect("no panic").expect("the cluster has handed the lease over");
        handing_over
    }

    fn carry_answer(&self) {
        self.cluster.clock().advance(Duration::from_millis(self.delay_ms.swap(0, Ordering::SeqCst)));
    }
}

impl Coordinator for Link {
    fn acquire(&self, name: LeaseName, claim: Acquire, budget: RetryBudget) -> ResponseFuture<'_, api::LeaseInfo> {
        Box::pin(async move {
            self.claims.fetch_add(1, Ordering::SeqCst);
            let fate = self.failing_claims.lock().expect("no panic").pop_front();
            match fate {
                None => {}
                Some(ClaimFate::ShutDown) => return Err(CallError::ShutDown),
                Some(ClaimFate::NotSent) => return Err(CallError::Unavailable("no node is reached".to_owned())),
                Some(ClaimFate::Forbidden) => {
                    self.wait_for_answer(|withheld| withheld.claim_requests).await;
                    return Err(CallError::Refused(Box::new(Problem::new(Code::Forbidden, "the rights have changed"))));
                }
                Some(ClaimFate::Late(after)) => {
                    let cluster = self.cluster.clone();
                    let carried_out = tokio::spawn(async move {
                        tokio::time::sleep(after).await;
                        cluster.acquire(name, claim, budget).await
                    });
                    return match tokio::time::timeout(budget.total, carried_out).await {
                        Ok(answer) => answer.expect("the task did not panic"),
                        Err(_) => Err(CallError::Unknown { why: "the time limit has passed".to_owned(), last: None }),
                    };
                }
                Some(ClaimFate::AnswerLost) => {
                    self.cluster.acquire(name, claim, budget).await.expect("the lease is free");
                    return Err(CallError::Unknown { why: "the answer is lost".to_owned(), last: None });
                }
            }
            let is_withheld = self.withheld.borrow().claim_requests;
            let answer = if is_withheld || self.ignores_disconnects.load(Ordering::SeqCst) {
                let link = self.clone();
                let sent = tokio::spawn(async move {
                    link.wait_for_answer(|withheld| withheld.claim_requests).await;
                    link.cluster.acquire(name, claim, budget).await
                });
                sent.await.expect("the task did not panic")
            } else {
                self.cluster.acquire(name, claim, budget).await
            };
            self.carry_answer();
            answer
        })
    }

    fn renew(&self, batch: RenewBatch, budget: RetryBudget) -> ResponseFuture<'_, Renewed> {
        Box::pin(async move {
            self.sent_renewals.lock().expect("no panic").push((batch.leases.len(), budget.total));
            if self.panics_at_next_renewal.swap(false, Ordering::SeqCst) {
                panic!("as the test says");
            }
            if self.loses_next_renewal.swap(false, Ordering::SeqCst) {
                return Err(CallError::Unavailable("the connection is refused".to_owned()));
            }
            self.wait_for_answer(|withheld| withheld.renewal_requests).await;
            let mut answer = self.cluster.renew(batch, budget).await;
            if self.empties_next.swap(false, Ordering::SeqCst) {
                answer.as_mut().expect("the cluster answers").results.clear();
            }
            self.wait_for_answer(|withheld| withheld.renewals).await;
            self.carry_answer();
            self.renewals.fetch_add(1, Ordering::SeqCst);
            answer
        })
    }

    fn release(&self, name: LeaseName, release: Release, budget: RetryBudget) -> ResponseFuture<'_, Released> {
        Box::pin(async move {
            self.releases.fetch_add(1, Ordering::SeqCst);
            self.wait_for_answer(|withheld| withheld.release_requests).await;
            let lost = self.lost_releases.lock().expect("not poisoned").pop();
            let claim = Acquire::new(release.holder.clone());
            match lost {
                None => {
                    let answer = self.cluster.release(name, release, budget).await;
                    self.wait_for_answer(|withheld| withheld.releases).await;
                    return answer;
                }
                Some(Fate::CarriedOut) => _ = self.cluster.release(name, release, budget).await,
                Some(Fate::NotCarriedOut) => {}
                Some(Fate::Panics) => panic!("as the test says"),
                Some(Fate::Revoked) => self.cluster.lose(name.as_str(), Loss::Revoked),
                Some(Fate::GrantedAnew) => {
                    let _ = self.cluster.release(name.clone(), release, budget).await;
                    let _ = self.cluster.acquire(name, claim, budget).await;
                }
            }
            Err(CallError::Unknown { why: "the answer is lost".to_owned(), last: None })
        })
    }

    fn hand_over(
        &self,
        name: LeaseName,
        hand_over: HandOver,
        budget: RetryBudget,
    ) -> ResponseFuture<'_, api::LeaseInfo> {
        Box::pin(async move {
            let answer = self.cluster.hand_over(name, hand_over, budget).await;
            self.wait_for_answer(|withheld| withheld.hand_overs).await;
            answer
        })
    }

    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        budget: RetryBudget,
    ) -> ResponseFuture<'_, api::LeaseInfo> {
        self.cluster.update_metadata(name, update, budget)
    }

    fn explain(&self, name: LeaseName, holder: HolderId, budget: RetryBudget) -> ResponseFuture<'_, Explanation> {
        self.cluster.explain(name, holder, budget)
    }

    fn held(&self, prefix: String, budget: RetryBudget) -> ResponseFuture<'_, Vec<api::LeaseInfo>> {
        self.cluster.held(prefix, budget)
    }

    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events> {
        self.cluster.watch(prefix, after)
    }
}
