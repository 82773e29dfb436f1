//! Observation of the leader.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::campaign::Candidate;
use super::view::{self, LeaderView};
use crate::client::{CallError, Coordinator, RefreshTrigger, RetryBudget};
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName};

/// Pause after a failed read.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// An observer of the leader. Each result is a linearizable read of the committed state. It never shows a leader that
/// was replaced before the read began, and never goes back to an earlier state.
///
/// An observer returns the newest state and can miss a leader between two reads. The leader can also change after a
/// result was returned, so a client that sends work to the leader must add the token.
pub struct Observer {
    coordinator: Arc<dyn Coordinator>,
    budget: RetryBudget,
    name: LeaseName,
    holder: HolderId,
    trigger: RefreshTrigger,
    last: Option<LeaderView>,
    highest: Option<FencingToken>,
    as_of: Option<Instant>,
}

impl Observer {
    pub(super) fn new(candidate: &Candidate) -> Observer {
        let (manager, lease) = (&candidate.manager, &candidate.lease);
        let coordinator = manager.coordinator();
        let prefix = lease.name().to_string();
        Observer {
            trigger: RefreshTrigger::new(coordinator.clone(), prefix, candidate.options.refresh),
            coordinator,
            budget: manager.budget(),
            name: lease.name().clone(),
            holder: lease.holder().clone(),
            last: None,
            highest: None,
            as_of: None,
        }
    }

    /// Returns the leader: at first the current one, then each change. The token rises from one leader to the next.
    ///
    /// The observer reads when the lease changes its holder, and at least every
    /// [`refresh`](super::ElectionOptions::refresh). While the cluster is unavailable or refuses the reads, the call waits
    /// and [`as_of`](Observer::as_of) does not advance.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> LeaderView {
        loop {
            if let Ok(view) = self.next_or_refusal().await {
                return view;
            }
        }
    }

    /// Like [`next`](Observer::next), but a refusal by the cluster ends the call. The next call reads again.
    pub(crate) async fn next_or_refusal(&mut self) -> Result<LeaderView, CallError> {
        loop {
            self.trigger.changed(|event| event.name == self.name.as_str()).await;
            let begun = Instant::now();
            match view::read_leader(&*self.coordinator, &self.name, &self.holder, self.budget).await {
                Ok(view) => {
                    self.trigger.refreshed();
                    self.as_of = Some(begun);
                    if self.is_new(&view) {
                        self.last = Some(view.clone());
                        self.highest = self.highest.max(view.leader.as_ref().map(|leader| leader.token));
                        return Ok(view);
                    }
                }
                Err(error) => {
                    tracing::debug!(election = %self.name, %error, "the read of the leader failed");
                    self.trigger.failed(RETRY_DELAY);
                    if matches!(error, CallError::Refused(_)) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// The newest time at which the last result is known to be current. `None` before the first result. It advances
    /// while [`next`](Observer::next) waits.
    pub fn as_of(&self) -> Option<Instant> {
        self.as_of
    }

    fn is_new(&self, view: &LeaderView) -> bool {
        // Linearizable reads exclude an older leader. The check is a second defense: clients must never get one.
        let is_older = view.leader.as_ref().is_some_and(|leader| Some(leader.token) < self.highest);
        !is_older && self.last.as_ref() != Some(view)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("name", &self.name).field("last", &self.last).finish_non_exhaustive()
    }
}
