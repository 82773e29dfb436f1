//! The view of a group in one process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::roster::Roster;
use super::{Changes, GroupError, GroupSnapshot, Placement};
use crate::client::{CallError, Lease, LeaseManager, LeaseOptions, RefreshTrigger, check_refresh};
use crate::types::{InvalidValue, LeaseName};

/// Pause after a failed read.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The members of a group. A task refreshes them: [`close`](Group::close) ends and joins the task, dropping the group
/// only ends it.
pub struct Group {
    pub(super) manager: LeaseManager,
    pub(super) roster: Arc<Roster>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Group {
    /// Watches a group without joining it. The list is read after each change and at least every `refresh`, which is 10 ms
    /// to 24 h.
    ///
    /// # Errors
    ///
    /// - [`GroupError::Invalid`]: the name is not a valid lease name, or `refresh` is outside its bounds.
    /// - [`GroupError::Call`]: no node answered in time.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the task.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(manager: tenure::client::LeaseManager) -> Result<(), Box<dyn std::error::Error>> {
    /// let group = tenure::group::Group::watch(&manager, "consumers", std::time::Duration::from_secs(1)).await?;
    /// for member in group.snapshot().ready {
    ///     println!("{} {}", member.id, member.weight);
    /// }
    /// group.close().await;
    /// # Ok(()) }
    /// ```
    pub async fn watch(manager: &LeaseManager, name: &str, refresh: Duration) -> Result<Group, GroupError> {
        let group = Group::start(manager, name, None, refresh)?;
        group.roster.refresh().await?;
        Ok(group)
    }

    pub(super) fn start(
        manager: &LeaseManager,
        name: &str,
        me: Option<(&str, &Lease)>,
        refresh: Duration,
    ) -> Result<Group, InvalidValue> {
        check_refresh(refresh)?;
        let prefix = format!("{}:", LeaseName::new(name)?);
        let roster = Roster::new(manager.coordinator(), manager.budget(), manager.clock(), prefix, me);
        let roster = Arc::new(roster);
        let stop = CancellationToken::new();
        let task = tokio::spawn(refresh_members(roster.clone(), refresh, stop.clone()));
        Ok(Group { manager: manager.clone(), roster, stop, task: Some(task) })
    }

    /// The known members. Sends no request.
    pub fn snapshot(&self) -> GroupSnapshot {
        self.roster.snapshot()
    }

    /// The placement on the known ready members. Sends no request.
    pub fn placement(&self) -> Placement {
        self.snapshot().placement()
    }

    /// Reads the members, so that the next snapshot is not older than this call.
    ///
    /// # Errors
    ///
    /// No node answered in time. The list does not change.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn refresh(&self) -> Result<(), CallError> {
        self.roster.refresh().await
    }

    /// Subscribes to the changes of the group from now on.
    pub fn changes(&self) -> Changes {
        Changes::new(self.roster.changes(), self.stop.clone())
    }

    /// Returns a handle of a lease that only the process should hold to which `name` belongs. In other processes an
    /// acquire is refused with code `should_not_hold`. The placement replaces [`LeaseOptions::should_hold`] in
    /// `options`.
    ///
    /// A held lease stays held when its name moves to another process. Check [`Lease::should_hold`] regularly, or use
    /// [`keep_assigned`](Group::keep_assigned). The name should not start with the name of the group and a colon,
    /// because members have such names.
    ///
    /// # Errors
    ///
    /// The same as [`LeaseManager::lease_with`].
    pub fn lease(&self, name: &str, options: LeaseOptions) -> Result<Lease, InvalidValue> {
        self.manager.lease_with(name, self.roster.assign(name, options))
    }

    /// Ends the task and waits for it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the task without waiting for it.
    pub async fn close(mut self) {
        self.end().await;
    }

    pub(super) fn name(&self) -> &str {
        self.roster.prefix.strip_suffix(':').expect("the prefix ends with a colon")
    }

    pub(super) async fn end(&mut self) {
        self.stop.cancel();
        if let Some(Err(error)) = match self.task.take() {
            Some(task) => Some(task.await),
            None => None,
        } {
            tracing::error!(%error, "the task that refreshes a group failed");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("prefix", &self.roster.prefix).finish_non_exhaustive()
    }
}

async fn refresh_members(roster: Arc<Roster>, refresh: Duration, stop: CancellationToken) {
    let mut trigger = RefreshTrigger::new(roster.coordinator(), roster.prefix.clone(), refresh);
    let keep = async {
        loop {
            trigger.changed(|_| true).await;
            match roster.refresh().await {
                Ok(()) => trigger.refreshed(),
                Err(error) => {
                    tracing::debug!(group = %roster.prefix, %error, "the read of the members failed");
                    trigger.failed(RETRY_DELAY);
                }
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep => {}
    }
}
