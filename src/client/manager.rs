//! The holder of leases: what a program makes once.

use std::fmt;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::hold::Hold;
use super::operations::release_doubtful;
use super::shared::Shared;
use super::{
    CallError, Coordinator, Endpoints, InvalidEndpoints, Lease, LeaseGuard, LeaseOptions, ManagerOptions, Patience,
    Remote, Wait, WithError, keeper,
};
use crate::api::Code;
use crate::clock::Clock;
use crate::pace;
use crate::types::{HolderId, InvalidValue, LeaseName};

/// A holder of leases, with one connection to a cluster and one task that renews all it holds in one request.
///
/// Cheap to clone; clones are the same manager. The task is started by the first acquire, on its runtime. When the
/// last clone, lease and guard are gone it asks for the release of what is still held and ends;
/// [`shutdown`](LeaseManager::shutdown) does the same and waits for it.
#[derive(Clone)]
pub struct LeaseManager {
    pub(super) owner: Arc<Owner>,
}

/// Ends the keeper when it goes.
pub(super) struct Owner {
    pub shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: Mutex<Tasks>,
}

type Tasks = Vec<JoinHandle<()>>;

impl LeaseManager {
    /// A manager with the default options.
    pub fn new(coordinator: impl Coordinator) -> LeaseManager {
        LeaseManager::with_options(coordinator, ManagerOptions::new())
    }

    /// A manager over the network: URLs of the cluster's nodes, commas between them.
    pub fn connect(endpoints: &str) -> Result<LeaseManager, InvalidEndpoints> {
        Ok(LeaseManager::new(Remote::new(endpoints.parse::<Endpoints>()?)))
    }

    pub fn with_options(coordinator: impl Coordinator, options: ManagerOptions) -> LeaseManager {
        let shared = Arc::new(Shared::new(Arc::new(coordinator), options));
        LeaseManager { owner: Arc::new(Owner { shared, stop: CancellationToken::new(), tasks: Mutex::default() }) }
    }

    /// Who holds what this manager acquires.
    pub fn holder(&self) -> &HolderId {
        &self.owner.shared.options.holder
    }

    /// A handle of a lease, with default options. Acquires nothing and asks nobody. All handles of one name are of one
    /// lease.
    ///
    /// # Errors
    ///
    /// The name is not a lease's name.
    pub fn lease(&self, name: impl AsRef<str>) -> Result<Lease, InvalidValue> {
        self.handle(name.as_ref(), self.holder(), None)
    }

    /// A handle of a lease that is held with these options from its next acquire on.
    ///
    /// # Errors
    ///
    /// The name is not a lease's name, or an option is outside the bounds of every cluster.
    pub fn lease_with(&self, name: impl AsRef<str>, options: LeaseOptions) -> Result<Lease, InvalidValue> {
        self.handle(name.as_ref(), self.holder(), Some(options))
    }

    /// Acquires a lease if it is free now; `None` if somebody else holds it, a lock delay runs, or another guard of
    /// this manager has it.
    ///
    /// # Errors
    ///
    /// It is not known whether it was acquired, or nobody could be asked.
    pub async fn acquire_or_none(&self, name: impl AsRef<str>) -> Result<Option<LeaseGuard>, CallError> {
        match self.lease(name)?.guard(Wait::No).await {
            Ok(guard) => Ok(Some(guard)),
            Err(CallError::Refused(problem)) if is_taken(problem.code) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires a lease if it is free now, does the work while it is held, and releases it at the end. The lease is
    /// renewed meanwhile; at its loss the work is dropped before it runs any further.
    ///
    /// With options, or to wait for the lease: [`Lease::with`].
    pub async fn with<T, W>(&self, name: impl AsRef<str>, work: impl FnOnce(Lease) -> W) -> Result<T, WithError>
    where
        W: Future<Output = T>,
    {
        self.lease(name).map_err(CallError::from)?.with(Wait::No, work).await
    }

    /// Releases everything that is held, all at once. Returns those of which it is not known that they were.
    pub async fn release_all(&self) -> Vec<(LeaseName, CallError)> {
        let leases = self.owner.shared.all_held().into_iter().map(|hold| Lease { owner: self.owner.clone(), hold });
        let released = join_all(leases.map(|lease| async move {
            let released = lease.release().await;
            released.err().map(|error| (lease.name().clone(), error))
        }));
        released.await.into_iter().flatten().collect()
    }

    /// Leaves every queue, then releases everything that is held, then ends the manager's tasks.
    ///
    /// Acquires that wait end as [`ShutDown`](CallError::ShutDown) once the cluster has confirmed that they wait no
    /// more, and as unknown if it does not. Every later acquire ends as `ShutDown`. Returns the leases that may still be
    /// held or waited for.
    pub async fn shutdown(&self) -> Vec<(LeaseName, CallError)> {
        let shared = &self.owner.shared;
        shared.closing.cancel();
        let settled = shared.settled.clone().drop_guard();
        shared.claims.close();
        shared.claims.wait().await;
        // Before anything is released: the next in a queue may be one of ours.
        let mut failed = self.settle_claims().await;
        drop(settled);
        failed.extend(self.release_all().await);
        self.owner.stop.cancel();
        let running = std::mem::take(&mut *self.owner.tasks.lock().expect(UNPOISONED));
        for task in running {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the lease manager failed");
            }
        }
        failed
    }

    /// Has no claim left of which it is not known whether it was granted. Returns those where that failed.
    async fn settle_claims(&self) -> Vec<(LeaseName, CallError)> {
        let shared = &self.owner.shared;
        let settled = join_all(shared.all_in_doubt().into_iter().map(|hold| async move {
            let settled = release_doubtful(shared, &hold).await;
            settled.err().map(|error| (hold.name.clone(), error))
        }));
        settled.await.into_iter().flatten().collect()
    }

    /// Whether [`shutdown`](LeaseManager::shutdown) was called: no acquire succeeds ever after.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.owner.shared.closing.is_cancelled()
    }

    /// The way to the cluster. Keeping it does not keep the manager.
    pub(crate) fn coordinator(&self) -> Arc<dyn Coordinator> {
        self.owner.shared.coordinator.clone()
    }

    /// Time for one request, all its attempts together.
    pub(crate) fn patience(&self) -> Patience {
        Patience::within(self.owner.shared.options.operation_timeout)
    }

    /// Where this manager's deadlines are read.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.owner.shared.options.clock.clone()
    }

    /// A handle of a lease that may be held under another holder than the manager's.
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
            Hold::new(name.clone(), holder.clone(), LeaseOptions::new(), drift, shared.notices.clone())
        });
        if let Some(options) = options {
            hold.set_options(options)?;
        }
        Ok(Lease { owner: self.owner.clone(), hold })
    }
}

impl Owner {
    /// Starts the tasks if they do not run, which they do not if the runtime that they ran on is gone.
    pub fn ensure_running(&self) {
        let mut tasks = self.tasks.lock().expect(UNPOISONED);
        tasks.retain(|task| !task.is_finished());
        if tasks.is_empty() && !self.shared.closing.is_cancelled() {
            let notices = self.shared.notices.clone();
            let told = CancellationToken::new();
            let (all_told, stop, shared) = (told.clone(), self.stop.clone(), self.shared.clone());
            tasks.push(tokio::spawn(pace::kept(async move {
                let _last = all_told.drop_guard();
                keeper::keep(shared, stop).await;
            })));
            tasks.push(tokio::spawn(pace::kept(async move { notices.tell(told).await })));
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

/// Refusals that say that somebody else has the lease, or will.
fn is_taken(code: Code) -> bool {
    matches!(code, Code::Held | Code::LockDelay | Code::ShouldNotHold)
}

const UNPOISONED: &str = "nothing panics while it has the lock";

#[cfg(all(test, feature = "testing"))]
mod tests {
    use crate::client::{Loss, Wait};
    use crate::testing::FakeCluster;

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
        cluster.clock().advance(std::time::Duration::from_secs(60));
        let shared = &manager.owner.shared;
        for _ in 0..1_000 {
            shared.wake.notify_one();
            tokio::task::yield_now().await;
        }
        assert_eq!(shared.all_held().len(), 0);
    }
}
