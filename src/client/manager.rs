//! The lease manager. A program usually creates one.

use std::fmt;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "testing")]
use super::Loss;
use super::hold::Hold;
use super::operations::{release, release_ambiguous, release_left_held};
use super::shared::ManagerInner;
use super::{
    CallError, Coordinator, Lease, LeaseGuard, LeaseOptions, ManagerOptions, RetryBudget, Wait, WithError, keeper,
};
use crate::api::Code;
use crate::clock::Clock;
use crate::time;
use crate::types::{HolderId, InvalidValue, LeaseName};

/// A holder of leases. One task renews all held leases of a manager in batches.
///
/// Cheap to clone; clones share one manager. The first acquire starts the task on its Tokio runtime. When the last
/// clone, lease and guard are dropped, the task releases the held leases in the background and ends. To wait for that,
/// call [`shutdown`](LeaseManager::shutdown).
#[derive(Clone)]
pub struct LeaseManager {
    pub(super) owner: Arc<Owner>,
}

/// Owns the tasks of a manager. Dropping it stops them.
pub(super) struct Owner {
    pub shared: Arc<ManagerInner>,
    stop: CancellationToken,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    keeper: Option<JoinHandle<()>>,
    /// One for each keeper, until it ends. It outlives its keeper while a listener blocks.
    dispatchers: Vec<JoinHandle<()>>,
}

impl LeaseManager {
    /// Creates a manager with the default options.
    pub fn new(coordinator: impl Coordinator) -> LeaseManager {
        LeaseManager::with_options(coordinator, ManagerOptions::new()).expect("the default options are valid")
    }

    /// Creates a manager with these options.
    ///
    /// # Errors
    ///
    /// An option is outside its bounds. The error has the value and the bounds.
    pub fn with_options(coordinator: impl Coordinator, options: ManagerOptions) -> Result<LeaseManager, InvalidValue> {
        options.check()?;
        let shared = Arc::new(ManagerInner::new(Arc::new(coordinator), options));
        Ok(LeaseManager { owner: Arc::new(Owner { shared, stop: CancellationToken::new(), tasks: Mutex::default() }) })
    }

    /// The holder under whose name this manager acquires leases.
    pub fn holder(&self) -> &HolderId {
        &self.owner.shared.options.holder
    }

    /// Returns a handle of a lease with the default options. The call sends no request. All handles with one name share
    /// one lease.
    ///
    /// # Errors
    ///
    /// The name is not a valid lease name.
    pub fn lease(&self, name: impl AsRef<str>) -> Result<Lease, InvalidValue> {
        self.handle(name.as_ref(), self.holder(), None)
    }

    /// Returns a handle of a lease and sets its options. They apply to all handles of the lease from the next acquire
    /// on.
    ///
    /// # Errors
    ///
    /// The name is not a valid lease name, or an option is outside the bounds of every cluster.
    pub fn lease_with(&self, name: impl AsRef<str>, options: LeaseOptions) -> Result<Lease, InvalidValue> {
        self.handle(name.as_ref(), self.holder(), Some(options))
    }

    /// Acquires a lease if it is free now. Returns `None` if another holder or another guard of this manager has it.
    /// The result is also `None` during a lock delay, if another process should hold the lease, and if another acquire of
    /// this manager waits for the lease during the whole
    /// [`operation_timeout`](ManagerOptions::operation_timeout).
    ///
    /// # Errors
    ///
    /// The same as [`Lease::acquire`], without the refusals that return `None`.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// The same as [`Lease::acquire`].
    pub async fn try_acquire(&self, name: impl AsRef<str>) -> Result<Option<LeaseGuard>, CallError> {
        match self.lease(name)?.guard(Wait::No).await {
            Ok(guard) => Ok(Some(guard)),
            Err(CallError::Refused(problem)) if is_taken(problem.code) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires a lease if it is free now, runs `work` while it is held, and releases it at the end. When the lease is
    /// lost, the manager drops `work`.
    ///
    /// To set options or to wait for the lease, use [`Lease::with`].
    ///
    /// # Errors
    ///
    /// The same as [`Lease::with`].
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// The same as [`Lease::with`].
    pub async fn with<T, W>(&self, name: impl AsRef<str>, work: impl FnOnce(Lease) -> W) -> Result<T, WithError>
    where
        W: Future<Output = T>,
    {
        self.lease(name).map_err(CallError::from)?.with(Wait::No, work).await
    }

    /// Releases all held leases concurrently. Returns the leases whose release failed, with the errors.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while a lease is held.
    ///
    /// # Cancel safety
    ///
    /// The same as [`Lease::release`], for each lease.
    pub async fn release_all(&self) -> Vec<(LeaseName, CallError)> {
        self.release_each(self.owner.shared.all_held()).await
    }

    async fn release_each(&self, holds: Vec<Arc<Hold>>) -> Vec<(LeaseName, CallError)> {
        let shared = &self.owner.shared;
        let released = join_all(holds.into_iter().map(|hold| async move {
            let released = release(shared, &hold, None).await;
            released.err().map(|error| (hold.name.clone(), error))
        }));
        released.await.into_iter().flatten().collect()
    }

    /// Leaves all queues, then releases all held leases, then ends the manager's tasks. Returns the leases that the
    /// cluster may still count as held or waiting, with the errors.
    ///
    /// A waiting acquire returns [`ShutDown`](CallError::ShutDown) after the cluster has confirmed that it left the
    /// queue. Without that confirmation the acquire returns [`Unknown`](CallError::Unknown). Each later acquire returns
    /// `ShutDown`.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while a lease is held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not reopen the manager: each later acquire returns `ShutDown`. Call `shutdown` again to
    /// release the remaining leases.
    pub async fn shutdown(&self) -> Vec<(LeaseName, CallError)> {
        let shared = &self.owner.shared;
        shared.closing.cancel();
        let resolved = shared.claims_resolved.clone().drop_guard();
        shared.claims.close();
        shared.claims.wait().await;
        // This comes before the releases: the next waiter of a released lease may be an abandoned claim of this
        // manager.
        let mut failed = self.resolve_claims().await;
        drop(resolved);
        // In this order: a release that fails in between moves its lease from the first list to the second.
        let mut held = shared.all_held();
        let left = shared.all_left_held();
        held.retain(|hold| !left.iter().any(|left| Arc::ptr_eq(left, hold)));
        let (left, held) = tokio::join!(self.release_left_held(left), self.release_each(held));
        failed.extend(left.into_iter().chain(held));
        self.owner.stop.cancel();
        let running = std::mem::take(&mut *self.owner.tasks.lock().expect(UNPOISONED));
        for task in running.keeper.into_iter().chain(running.dispatchers) {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the lease manager failed");
            }
        }
        failed
    }

    /// Releases the leases that an earlier release left held. Returns those where that failed.
    async fn release_left_held(&self, holds: Vec<Arc<Hold>>) -> Vec<(LeaseName, CallError)> {
        let shared = &self.owner.shared;
        let released = join_all(holds.into_iter().map(|hold| async move {
            let released = release_left_held(shared, &hold).await;
            released.err().map(|error| (hold.name.clone(), error))
        }));
        released.await.into_iter().flatten().collect()
    }

    /// Resolves all claims with an unknown outcome. Returns the leases where that failed.
    async fn resolve_claims(&self) -> Vec<(LeaseName, CallError)> {
        let shared = &self.owner.shared;
        let resolved = join_all(shared.all_ambiguous().into_iter().map(|hold| async move {
            let resolved = release_ambiguous(shared, &hold).await;
            if resolved.is_ok() {
                // Each claim had ended before.
                hold.claims(|open| open.clear());
            }
            resolved.err().map(|error| (hold.name.clone(), error))
        }));
        resolved.await.into_iter().flatten().collect()
    }

    /// Whether [`shutdown`](LeaseManager::shutdown) was called. Every later acquire fails.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.owner.shared.closing.is_cancelled()
    }

    /// Waits for the call of [`shutdown`](LeaseManager::shutdown).
    pub(crate) async fn closing(&self) {
        self.owner.shared.closing.cancelled().await;
    }

    /// The transport to the cluster. It does not keep the manager alive.
    pub(crate) fn coordinator(&self) -> Arc<dyn Coordinator> {
        self.owner.shared.coordinator.clone()
    }

    /// The time limit of one request with its retries.
    pub(crate) fn budget(&self) -> RetryBudget {
        RetryBudget::within(self.owner.shared.options.operation_timeout)
    }

    /// The clock of this manager's deadlines.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.owner.shared.options.clock.clone()
    }

    /// Returns a function that ends a held lease as lost. Only the fake cluster of tests uses it. The function does not
    /// keep the manager alive.
    #[cfg(feature = "testing")]
    pub(crate) fn lose_hook(&self) -> impl Fn(&LeaseName, Loss) + Send + Sync + use<> {
        let owner = Arc::downgrade(&self.owner);
        move |name, why| {
            let held = owner.upgrade().map(|owner| owner.shared.all_held()).unwrap_or_default();
            for hold in held.iter().filter(|hold| hold.name == *name) {
                if let Some(token) = hold.granted_token() {
                    hold.lose(token, why);
                }
            }
        }
    }

    /// Returns a handle of a lease for this holder, which may differ from the manager's.
    pub(crate) fn handle(
        &self,
        name: &str,
        holder: &HolderId,
        options: Option<LeaseOptions>,
    ) -> Result<Lease, InvalidValue> {
        let name = LeaseName::new(name)?;
        let shared = &self.owner.shared;
        let drift = shared.options.drift_permille;
        let hold = shared.hold(&name, holder, || {
            Hold::new(name.clone(), holder.clone(), LeaseOptions::new(), drift, shared.listener_queue.clone())
        });
        if let Some(options) = options {
            hold.set_options(options)?;
        }
        Ok(Lease { owner: self.owner.clone(), hold })
    }
}

impl Owner {
    /// Starts the tasks if no keeper runs. It has stopped if its runtime was shut down.
    pub fn ensure_running(&self) {
        let mut tasks = self.tasks.lock().expect(UNPOISONED);
        tasks.dispatchers.retain(|task| !task.is_finished());
        let is_running = tasks.keeper.as_ref().is_some_and(|keeper| !keeper.is_finished());
        if !is_running && !self.shared.closing.is_cancelled() {
            let listener_queue = self.shared.listener_queue.clone();
            let stop_dispatch = CancellationToken::new();
            let (keeper_ended, stop, shared) = (stop_dispatch.clone(), self.stop.clone(), self.shared.clone());
            tasks.keeper = Some(tokio::spawn(time::inherit_time(async move {
                let _keeper_ended = keeper_ended.drop_guard();
                keeper::run(shared, stop).await;
            })));
            let dispatch = async move { listener_queue.dispatch(stop_dispatch).await };
            tasks.dispatchers.push(tokio::spawn(time::inherit_time(dispatch)));
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for LeaseManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseManager").field("options", &self.owner.shared.options).finish_non_exhaustive()
    }
}

/// Whether a refusal means that another holder has the lease or should get it. A claim without a wait gets `wait_timeout`
/// only behind another acquire of this manager.
fn is_taken(code: Code) -> bool {
    matches!(code, Code::Held | Code::LockDelay | Code::ShouldNotHold | Code::WaitTimeout)
}

const UNPOISONED: &str = "no code panics while it holds this lock";

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::time::Duration;

    use crate::client::{CallError, LeaseOptions, Loss, ManagerOptions, Wait};
    use crate::testing::{FakeCluster, Line, Switch};

    #[tokio::test]
    async fn manager_says_that_it_is_shut_down() {
        let manager = FakeCluster::new().manager();
        assert!(!manager.is_shut_down());
        manager.shutdown().await;
        assert!(manager.is_shut_down());
    }

    /// A program that holds one name after the other must not keep all of them.
    #[tokio::test]
    async fn keeper_forgets_a_lease_that_has_ended() {
        let cluster = FakeCluster::new();
        let manager = cluster.manager();
        for name in ["lost", "released"] {
            let lease = manager.lease(name).expect("a name");
            lease.acquire(Wait::No).await.expect("it is free");
            match name {
                "lost" => cluster.lose(name, Loss::Revoked),
                _ => assert_eq!(lease.release().await, Ok(true)),
            }
        }
        cluster.clock().advance(Duration::from_secs(60));
        let shared = &manager.owner.shared;
        for _ in 0..1_000 {
            shared.wake.notify_one();
            tokio::task::yield_now().await;
        }
        assert_eq!(shared.all_held().len(), 0);
    }

    /// The check of the lease comes during its hand-over.
    #[tokio::test(start_paused = true)]
    async fn keeper_forgets_an_infinite_lease_after_its_hand_over() {
        let cluster = FakeCluster::new();
        let switch = Switch::new(cluster.clone());
        let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
        let lease = manager.lease_with("job", LeaseOptions::new().infinite()).expect("a name");
        lease.acquire(Wait::No).await.expect("it is free");
        switch.set(Line::Cut);
        let check = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cluster.clock().advance(Duration::from_secs(60));
        };
        let (handed_over, ()) = tokio::join!(lease.hand_over(None), check);
        assert!(matches!(handed_over, Err(CallError::Unknown { .. })), "{handed_over:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(manager.owner.shared.all_held().len(), 0);
    }
}
