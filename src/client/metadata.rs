//! Updates of the metadata of a held lease.

use super::operations::{check, standing};
use super::{CallError, Lease, LeaseGuard, RetryBudget};
use crate::api::{Code, Standing, UpdateMetadata};
use crate::token::FencingToken;
use crate::types::Metadata;

/// Most attempts of one update. A second attempt is necessary only if an earlier update of this holder, whose answer
/// was lost, is applied in between.
const ATTEMPTS: u32 = 5;

impl Lease {
    /// Replaces the metadata of the grant with this token.
    async fn update_metadata_of(&self, token: FencingToken, metadata: Metadata) -> Result<bool, CallError> {
        let (shared, hold) = (&self.owner.shared, &self.hold);
        let Some(_operation) = hold.lock_grant().await else { return Ok(false) };
        let mut attempt = 1;
        loop {
            if hold.token(self.now()) != Some(token) {
                return Ok(false);
            }
            let version = match standing(shared, hold).await? {
                Standing::Holds { lease, .. } if lease.token == token => lease.metadata_version,
                _ => return check(shared, hold).await.map(|_| false),
            };
            let update = UpdateMetadata { holder: hold.holder.clone(), token, version, metadata: metadata.clone() };
            let budget = RetryBudget::within(shared.options.operation_timeout);
            match shared.coordinator.update_metadata(hold.name.clone(), update, budget).await {
                Ok(_) => return Ok(hold.token(self.now()) == Some(token)),
                Err(CallError::Refused(problem)) if problem.code == Code::Lost => {
                    return check(shared, hold).await.map(|_| false);
                }
                Err(CallError::Refused(problem)) if problem.code == Code::MetadataChanged && attempt < ATTEMPTS => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl LeaseGuard {
    /// Most calls of [`update_metadata`](Self::update_metadata) for one change, while they return `false` and the grant is
    /// held. A hand-over that is refused is such a case.
    pub(crate) const MAX_UPDATES: u32 = ATTEMPTS;

    /// The error after [`MAX_UPDATES`](Self::MAX_UPDATES).
    pub(crate) fn not_updated() -> CallError {
        let why = "the cluster counts the lease as held and refuses its metadata as those of a lost lease".to_owned();
        CallError::Unknown { why, last: None }
    }

    /// Replaces the metadata of this guard's grant. Returns `false` if the lease is not held.
    ///
    /// The request names the version that it replaces, so an earlier update that arrives late cannot undo this one. A
    /// watch does not report an update of metadata: it is no transition.
    ///
    /// # Errors
    ///
    /// After any error the lease stays held and the update can be sent again. If the outcome is unknown, the cluster
    /// may have replaced the metadata.
    pub(crate) async fn update_metadata(&self, metadata: Metadata) -> Result<bool, CallError> {
        self.update_metadata_of(self.token(), metadata).await
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::api;
    use crate::client::error::refused;
    use crate::client::{Coordinator, Events, LeaseOptions, Loss, ManagerOptions, ResponseFuture, Wait};
    use crate::recipes::election::{Election, ElectionOptions, EstablishError};
    use crate::recipes::group::{Group, GroupError, MemberOptions};
    use crate::testing::FakeCluster;
    use crate::types::{HolderId, LeaseName};

    const TTL: Duration = Duration::from_secs(60);

    /// A coordinator that refuses the next updates with these codes and counts the updates. The answers to the others are
    /// late.
    #[derive(Clone)]
    struct Refusing {
        cluster: FakeCluster,
        codes: Arc<Mutex<VecDeque<Code>>>,
        updates: Arc<Mutex<usize>>,
        delay: Duration,
    }

    impl Coordinator for Refusing {
        fn acquire(
            &self,
            name: LeaseName,
            claim: api::Acquire,
            budget: RetryBudget,
        ) -> ResponseFuture<'_, api::LeaseInfo> {
            self.cluster.acquire(name, claim, budget)
        }

        fn renew(&self, batch: api::RenewBatch, budget: RetryBudget) -> ResponseFuture<'_, api::Renewed> {
            self.cluster.renew(batch, budget)
        }

        fn release(
            &self,
            name: LeaseName,
            release: api::Release,
            budget: RetryBudget,
        ) -> ResponseFuture<'_, api::Released> {
            self.cluster.release(name, release, budget)
        }

        fn hand_over(
            &self,
            name: LeaseName,
            body: api::HandOver,
            budget: RetryBudget,
        ) -> ResponseFuture<'_, api::LeaseInfo> {
            self.cluster.hand_over(name, body, budget)
        }

        fn update_metadata(
            &self,
            name: LeaseName,
            update: UpdateMetadata,
            budget: RetryBudget,
        ) -> ResponseFuture<'_, api::LeaseInfo> {
            *self.updates.lock().expect("not poisoned") += 1;
            match self.codes.lock().expect("not poisoned").pop_front() {
                Some(code) => Box::pin(async move { Err(refused(code, "refused by the test")) }),
                None => Box::pin(async move {
                    let answer = self.cluster.update_metadata(name, update, budget).await;
                    self.cluster.clock().advance(self.delay);
                    answer
                }),
            }
        }

        fn explain(
            &self,
            name: LeaseName,
            holder: HolderId,
            budget: RetryBudget,
        ) -> ResponseFuture<'_, api::Explanation> {
            self.cluster.explain(name, holder, budget)
        }

        fn held(&self, prefix: String, budget: RetryBudget) -> ResponseFuture<'_, Vec<api::LeaseInfo>> {
            self.cluster.held(prefix, budget)
        }

        fn watch(&self, prefix: String, after: Option<api::EventId>) -> Box<dyn Events> {
            self.cluster.watch(prefix, after)
        }
    }

    /// The result of an update that the cluster refuses with these codes in turn, and the number of requests.
    async fn update(codes: &[Code]) -> (Result<bool, Option<Code>>, usize) {
        update_with_delay(codes, Duration::ZERO).await
    }

    async fn update_with_delay(codes: &[Code], delay: Duration) -> (Result<bool, Option<Code>>, usize) {
        let cluster = FakeCluster::new();
        let codes = Arc::new(Mutex::new(codes.iter().copied().collect()));
        let coordinator = Refusing { cluster: cluster.clone(), codes, updates: Arc::default(), delay };
        let manager = cluster.manager_through(coordinator.clone(), ManagerOptions::new());
        let lease = manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a valid name");
        let guard = lease.guard(Wait::No).await.expect("the lease is free");
        let metadata =
            Metadata::new([("zone".to_owned(), "b".to_owned())].into()).expect("the metadata is within its limit");
        let updated = guard.update_metadata(metadata).await.map_err(|error| match error {
            CallError::Refused(problem) => Some(problem.code),
            _ => None,
        });
        assert_eq!(guard.is_held(), delay < TTL);
        let updates = *coordinator.updates.lock().expect("not poisoned");
        (updated, updates)
    }

    #[tokio::test]
    async fn guard_of_a_lost_grant_updates_no_later_grant() {
        let cluster = FakeCluster::new();
        let lease = cluster.manager().lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a valid name");
        let guard = lease.guard(Wait::No).await.expect("the lease is free");
        cluster.lose("job", Loss::Expired);
        lease.acquire(Wait::No).await.expect("the lease is free again");
        let metadata = Metadata::new([("zone".to_owned(), "b".to_owned())].into()).expect("short metadata");
        assert_eq!(guard.update_metadata(metadata).await, Ok(false));
        let budget = RetryBudget::within(TTL);
        let held = Coordinator::held(&cluster, "job".to_owned(), budget).await.expect("an answer");
        assert!(held[0].metadata.is_empty(), "the later grant keeps its metadata");
    }

    #[tokio::test]
    async fn metadata_conflict_is_retried_up_to_5_times() {
        assert_eq!(update(&[]).await, (Ok(true), 1));
        assert_eq!(update(&[Code::MetadataChanged; 4]).await, (Ok(true), 5));
        assert_eq!(update(&[Code::MetadataChanged; 9]).await, (Err(Some(Code::MetadataChanged)), 5));
    }

    #[tokio::test]
    async fn other_metadata_refusals_are_not_retried() {
        assert_eq!(update(&[Code::LeaseFull]).await, (Err(Some(Code::LeaseFull)), 1));
        assert_eq!(update(&[Code::Lost]).await, (Ok(false), 1));
    }

    /// The cluster counts the lease as held in each read.
    #[tokio::test(start_paused = true)]
    async fn change_that_is_always_refused_as_lost_ends_as_unknown() {
        const REFUSALS: usize = 1_000;
        let cluster = FakeCluster::new();
        let codes = Arc::new(Mutex::new([Code::Lost; REFUSALS].into()));
        let coordinator = Refusing { cluster: cluster.clone(), codes, updates: Arc::default(), delay: Duration::ZERO };
        let manager = cluster.manager_through(coordinator.clone(), ManagerOptions::new());
        let options = MemberOptions::new("a").ttl(TTL);
        let member = Group::join(&manager, "workers", options).await.expect("the member joins");
        let changed = member.set_ready(false).await;
        assert!(matches!(changed, Err(GroupError::Call(CallError::Unknown { .. }))), "{changed:?}");
        let election = Election::new(&manager, "leader", ElectionOptions::new().ttl(TTL)).expect("valid options");
        let leadership = election.campaign().await.expect("elected");
        let established = leadership.establish(|_| async { Ok::<_, &str>(()) }).await;
        assert!(matches!(established, Err(EstablishError::NotPublished(CallError::Unknown { .. }))), "{established:?}");
        assert!(*coordinator.updates.lock().expect("not poisoned") < REFUSALS);
    }

    /// The cluster applies each update. The caller must not take the metadata for those of a lease that it holds.
    #[tokio::test]
    async fn update_that_is_answered_after_the_deadline_is_false() {
        for (delay, is_held) in [(TTL / 2, true), (TTL, false)] {
            assert_eq!(update_with_delay(&[], delay).await, (Ok(is_held), 1), "{delay:?}");
        }
    }
}
