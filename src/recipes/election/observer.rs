//! Seeing who leads, as it changes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::campaign::Candidate;
use super::view::{self, LeaderView};
use crate::client::{Coordinator, RefreshTrigger, RetryBudget};
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName};

/// Pause after a look that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// Sees who leads. Every answer is one consistent read of the committed state, so none is of a leader that had been
/// replaced when the read began, and none goes back behind an earlier one.
///
/// It tells the newest state, not all that was in between: a leader that came and went between two looks is not told.
/// Between the answer and what is done with it the leader can change; whoever sends it work adds the token.
pub struct Observer {
    coordinator: Arc<dyn Coordinator>,
    budget: RetryBudget,
    name: LeaseName,
    holder: HolderId,
    lookout: RefreshTrigger,
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
            lookout: RefreshTrigger::new(coordinator.clone(), prefix, candidate.options.refresh),
            coordinator,
            budget: manager.budget(),
            name: lease.name().clone(),
            holder: lease.holder().clone(),
            last: None,
            highest: None,
            as_of: None,
        }
    }

    /// Who leads: the first time as it is, then each time it is otherwise than last told. Tokens rise from one leader to
    /// the next. While nobody can be asked it waits, and [`as_of`](Observer::as_of) grows old.
    ///
    /// Looks when the lease changes hands, and at least every [`refresh`](super::ElectionOptions::refresh). Dropping the
    /// future loses nothing.
    pub async fn next(&mut self) -> LeaderView {
        loop {
            self.lookout.changed(|event| event.name == self.name.as_str()).await;
            let begun = Instant::now();
            match view::look(&*self.coordinator, &self.name, &self.holder, self.budget).await {
                Ok(view) => {
                    self.lookout.looked();
                    self.as_of = Some(begun);
                    if self.is_news(&view) {
                        self.last = Some(view.clone());
                        self.highest = self.highest.max(view.leader.as_ref().map(|leader| leader.token));
                        return view;
                    }
                }
                Err(error) => {
                    tracing::debug!(election = %self.name, %error, "nobody could be asked who leads");
                    self.lookout.failed(PAUSE);
                }
            }
        }
    }

    /// What was told last was still so at this time. `None` before the first answer. It moves while
    /// [`next`](Observer::next) is waited for.
    pub fn as_of(&self) -> Option<Instant> {
        self.as_of
    }

    fn is_news(&self, view: &LeaderView) -> bool {
        // Reads are current, so this cannot be; and if it were, nobody may be sent to a leader of the past.
        let is_older = view.leader.as_ref().is_some_and(|leader| Some(leader.token) < self.highest);
        !is_older && self.last.as_ref() != Some(view)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("name", &self.name).field("last", &self.last).finish_non_exhaustive()
    }
}
