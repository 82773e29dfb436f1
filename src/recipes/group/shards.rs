//! Holding exactly what belongs here.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::shard::{Keeper, UNPOISONED};
use super::{Group, GroupError, Shard};
use crate::client::LeaseOptions;
use crate::types::LeaseName;

/// Most shards of one [`Shards`].
pub const MAX_SHARDS: usize = 10_000;

/// Shards that are kept: those that the placement gives to this process are acquired and worked on, the others given
/// up. [`stop`](Shards::stop) it; dropping it drops the work, and asks for the leases' release.
#[must_use = "dropping it stops the work"]
pub struct Shards {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    held: Arc<Mutex<BTreeSet<LeaseName>>>,
}

impl Group {
    /// Holds those of these shards that the placement gives to this process, for as long as it does, and works on each
    /// while its lease is held.
    ///
    /// A shard that comes here is waited for in its lease's queue, so that whoever has it can finish. One that goes
    /// elsewhere is drained: [`Shard::leaving`] fires, the work has [`LeaseOptions::drain`] to end, and is dropped after
    /// that; only then is the lease released. At the loss of a lease its work is dropped at once. Work that ends by itself,
    /// or panics, is begun again after half a second if the shard still belongs here.
    ///
    /// Each shard is worked on in a task of its own. `options` are for each lease; their `should_hold` is the
    /// placement's.
    ///
    /// # Errors
    ///
    /// An option is outside the bounds of every cluster, or there are more than [`MAX_SHARDS`].
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
        let (stop, work, held) =
            (CancellationToken::new(), Arc::new(work), Arc::<Mutex<BTreeSet<LeaseName>>>::default());
        let mut tasks = JoinSet::new();
        for lease in leases? {
            let keeper = Keeper { roster: self.roster.clone(), lease, held: held.clone(), work: work.clone() };
            tasks.spawn(keeper.keep(stop.clone()));
        }
        Ok(Shards { tasks, stop, held })
    }
}

impl Shards {
    /// Those that are held and worked on now, or drained, in the order of their names.
    pub fn held(&self) -> Vec<LeaseName> {
        self.held.lock().expect(UNPOISONED).iter().cloned().collect()
    }

    /// Drains all of them at once, gives them back, and waits for that: for
    /// [`LeaseOptions::drain`] and a request at most. Leave the group after it, not before.
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
