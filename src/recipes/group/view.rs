//! A group as one process sees it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::roster::Roster;
use super::{Changes, GroupError, GroupSnapshot, Placement};
use crate::client::{CallError, Lease, LeaseManager, LeaseOptions, RefreshTrigger};
use crate::types::{InvalidValue, LeaseName};

/// Pause after a look that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// The members of a group, kept up to date by a task. [`close`](Group::close) joins the task; dropping it ends it.
pub struct Group {
    pub(super) manager: LeaseManager,
    pub(super) roster: Arc<Roster>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Group {
    /// Sees a group without being a member. The list is read at least every `refresh`, and when somebody comes or goes.
    ///
    /// # Errors
    ///
    /// The name is not the beginning of a lease's name, or nobody could be asked.
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
        let group = Group::start(manager, name, None, refresh.max(Duration::from_millis(10)))?;
        group.roster.look().await?;
        Ok(group)
    }

    pub(super) fn start(
        manager: &LeaseManager,
        name: &str,
        me: Option<(&str, &Lease)>,
        refresh: Duration,
    ) -> Result<Group, InvalidValue> {
        let prefix = format!("{}:", LeaseName::new(name)?);
        let roster = Roster::new(manager.coordinator(), manager.budget(), manager.clock(), prefix, me);
        let roster = Arc::new(roster);
        let stop = CancellationToken::new();
        let task = tokio::spawn(keep_up(roster.clone(), refresh, stop.clone()));
        Ok(Group { manager: manager.clone(), roster, stop, task: Some(task) })
    }

    /// The group as it is known now. Asks nobody.
    pub fn snapshot(&self) -> GroupSnapshot {
        self.roster.snapshot()
    }

    /// Where names belong by the members that are ready now. Asks nobody.
    pub fn placement(&self) -> Placement {
        self.snapshot().placement()
    }

    /// Asks who is a member now, so that the next snapshot is not older than this call.
    ///
    /// # Errors
    ///
    /// Nobody could be asked.
    pub async fn refresh(&self) -> Result<(), CallError> {
        self.roster.look().await
    }

    /// Who joins, leaves and changes from now on.
    pub fn changes(&self) -> Changes {
        Changes::new(self.roster.changes())
    }

    /// A handle of a lease that this process should hold when the placement says so: elsewhere acquiring is refused
    /// as `should_not_hold`, and [`Lease::should_hold`] says it without asking. It takes the place of
    /// [`LeaseOptions::should_hold`] in `options`.
    ///
    /// A lease that is held stays held when it should be elsewhere: ask now and then, or have
    /// [`keep_assigned`](Group::keep_assigned) do it all. The name must not start with the group's own and a colon if it
    /// is to be told from a member by people.
    ///
    /// # Errors
    ///
    /// As [`LeaseManager::lease_with`].
    pub fn lease(&self, name: &str, options: LeaseOptions) -> Result<Lease, InvalidValue> {
        let (roster, own) = (self.roster.clone(), name.to_owned());
        self.manager.lease_with(name, options.should_hold(move || roster.is_mine(&own)))
    }

    /// Ends the task and waits for it.
    pub async fn close(mut self) {
        self.end().await;
    }

    pub(super) async fn end(&mut self) {
        self.stop.cancel();
        if let Some(Err(error)) = match self.task.take() {
            Some(task) => Some(task.await),
            None => None,
        } {
            tracing::error!(%error, "the task that keeps a group up to date failed");
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

async fn keep_up(roster: Arc<Roster>, refresh: Duration, stop: CancellationToken) {
    let mut lookout = RefreshTrigger::new(roster.coordinator(), roster.prefix.clone(), refresh);
    let keep = async {
        loop {
            lookout.changed(|_| true).await;
            match roster.look().await {
                Ok(()) => lookout.looked(),
                Err(error) => {
                    tracing::debug!(group = %roster.prefix, %error, "nobody could be asked who is a member");
                    lookout.failed(PAUSE);
                }
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep => {}
    }
}
