//! Leases on the shards that belong to this process.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::shard::{ShardTask, UNPOISONED};
use super::{Group, GroupError, Shard};
use crate::client::LeaseOptions;
use crate::types::LeaseName;

/// Largest number of shards of one [`Shards`].
pub const MAX_SHARDS: usize = 10_000;

/// The tasks of a set of shards. They acquire and work on the shards that belong to this process, and release the
/// others.
///
/// Call [`stop`](Shards::stop) at the end. Dropping the value drops the work and releases the leases in the background.
#[must_use = "dropping the value stops the work"]
pub struct Shards {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    held: Arc<Mutex<BTreeSet<LeaseName>>>,
}

impl Group {
    /// Holds the leases of the shards that belong to this process, and runs `work` on each while its lease is held.
    /// Each shard has its own task.
    ///
    /// - When a shard moves to this process, the task waits in the queue of its lease, so that the previous process can
    ///   finish.
    /// - When a shard moves away, [`Shard::leaving`] is cancelled. The work has [`LeaseOptions::drain`] to end and is
    ///   then dropped. After that the task releases the lease.
    /// - When a lease is lost, its work is dropped at once.
    /// - When the work ends or panics, it starts again after half a second if the shard still belongs to this process.
    ///
    /// `options` apply to each lease. The placement replaces their `should_hold`.
    ///
    /// # Errors
    ///
    /// An option is outside the bounds of every cluster, or there are more than [`MAX_SHARDS`] shards.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime.
    pub fn keep_assigned<W, F>(
        &self,
        shards: impl IntoIterator<Item = LeaseName>,
        options: LeaseOptions,
        work: W,
    ) -> Result<Shards, GroupError>
    where
        W: Fn(Shard) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let shards: BTreeSet<LeaseName> = shards.into_iter().collect();
        if shards.len() > MAX_SHARDS {
            return Err(GroupError::TooManyShards { shards: shards.len() });
        }
        let leases: Result<Vec<_>, _> = shards.iter().map(|name| self.lease(name.as_str(), options.clone())).collect();
        let (stop, work, options) = (CancellationToken::new(), Arc::new(work), Arc::new(options));
        let held = Arc::<Mutex<BTreeSet<LeaseName>>>::default();
        let mut tasks = JoinSet::new();
        for lease in leases? {
            let task = ShardTask {
                roster: self.roster.clone(),
                lease,
                options: options.clone(),
                held: held.clone(),
                work: work.clone(),
            };
            tasks.spawn(task.run(stop.clone()));
        }
        Ok(Shards { tasks, stop, held })
    }
}

impl Shards {
    /// The shards that this process holds and works on, including those that drain, ordered by name.
    pub fn held(&self) -> Vec<LeaseName> {
        self.held.lock().expect(UNPOISONED).iter().cloned().collect()
    }

    /// Drains all shards concurrently and releases their leases. Leave the group after this call, not before.
    ///
    /// The work has [`LeaseOptions::drain`] to end. Then the [`before_release`](crate::client::Lease::before_release)
    /// listeners of the lease have the same time, if there are any. A release takes at most two requests.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the leases in the background.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "the task of a shard failed");
            }
        }
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards").field("held", &self.held()).finish_non_exhaustive()
    }
}
