//! Becoming the leader.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::budget::Budget;
use super::view::{self, LeaderView};
use super::{ElectionOptions, Leadership, Observer};
use crate::api::Code;
use crate::client::{CallError, Lease, LeaseGuard, LeaseManager, LeaseOptions, Wait};
use crate::types::{InvalidValue, LeaseName};

/// How long one place in the queue is asked for. A campaign outlives it with a new place, at the end.
const PLACE: Duration = Duration::from_secs(60);
/// Pause before asking again a cluster that could not be asked, or has no room.
const PAUSE: Duration = Duration::from_millis(500);

/// An election: the candidates are those who campaign for the lease of its name.
///
/// Cheap to clone; clones are the same candidate. Making one asks nobody and joins nothing. A candidate is known by its
/// manager's [`holder`](LeaseManager::holder).
#[derive(Clone)]
pub struct Election {
    pub(super) candidate: Arc<Candidate>,
}

pub(super) struct Candidate {
    pub manager: LeaseManager,
    pub lease: Lease,
    pub options: ElectionOptions,
    budget: Mutex<Budget>,
    candidacy: watch::Sender<Candidacy>,
}

/// What a candidate waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidacy {
    /// It does not campaign: not yet, not any more, or because it was elected.
    Idle,
    /// Its [budget](ElectionOptions::budget) is used up: it joins the queue after this time, counted from when this was
    /// said.
    HeldBack { left: Duration },
    /// It asks for the lease, or waits for it in the queue.
    Waiting,
}

impl Election {
    /// A candidate, or an observer, of the election with the lease `name`.
    ///
    /// # Errors
    ///
    /// The name is not a lease's name, or an option is outside the bounds of every cluster.
    pub fn new(
        manager: &LeaseManager,
        name: impl AsRef<str>,
        options: ElectionOptions,
    ) -> Result<Election, InvalidValue> {
        view::established(&options.metadata, view::LONGEST_TOKEN)?;
        let lease_options: LeaseOptions = options.lease.clone().metadata(options.metadata.clone());
        let lease = manager.lease_with(name, lease_options)?;
        let candidate = Candidate {
            manager: manager.clone(),
            lease,
            options,
            budget: Mutex::default(),
            candidacy: watch::Sender::new(Candidacy::Idle),
        };
        Ok(Election { candidate: Arc::new(candidate) })
    }

    /// The lease's name.
    pub fn name(&self) -> &LeaseName {
        self.candidate.lease.name()
    }

    /// Waits until elected, however long that takes: through changes of leaders, and through outages of the cluster.
    /// Dropping the future gives up the place in the queue, and releases what may have been granted meanwhile.
    ///
    /// A place is asked for 60 s at a time, so that a node that hangs does not keep a candidate for ever; after that
    /// the candidate is the last in the queue. Candidates are elected in the order of the queue.
    ///
    /// # Errors
    ///
    /// Those that waiting does not mend: the cluster refuses the request as such, or the manager or its node was shut
    /// down. An unknown outcome is returned only then: this candidate may still be in the queue.
    pub async fn campaign(&self) -> Result<Leadership, CallError> {
        let candidate = &self.candidate;
        let _idle_at_the_end = Idle(candidate);
        loop {
            candidate.wait_for_budget().await;
            candidate.candidacy.send_replace(Candidacy::Waiting);
            match candidate.lease.guard(Wait::UpTo(PLACE)).await {
                Ok(guard) => return Ok(self.elected(guard)),
                Err(error) if !candidate.is_worth_waiting(&error) => return Err(error),
                Err(CallError::Refused(problem)) if problem.code == Code::WaitTimeout => {}
                Err(error) => {
                    tracing::debug!(election = %self.name(), %error, "a campaign goes on");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// What this candidate waits for, as it changes.
    pub fn candidacy(&self) -> watch::Receiver<Candidacy> {
        self.candidate.candidacy.subscribe()
    }

    /// Who leads, by the committed state at some moment during the call.
    ///
    /// # Errors
    ///
    /// Nobody could be asked.
    pub async fn current(&self) -> Result<LeaderView, CallError> {
        let Candidate { manager, lease, .. } = &*self.candidate;
        view::look(&*manager.coordinator(), lease.name(), lease.holder(), manager.budget()).await
    }

    /// Sees who leads, as it changes. Needs no candidacy.
    pub fn observe(&self) -> Observer {
        Observer::new(&self.candidate)
    }

    fn elected(&self, guard: LeaseGuard) -> Leadership {
        let candidate = &self.candidate;
        let now = candidate.manager.clock().elapsed();
        candidate.budget.lock().expect(UNPOISONED).spend(candidate.options.budget, now);
        tracing::info!(election = %self.name(), token = %guard.token(), "elected");
        Leadership::new(candidate.clone(), guard, now)
    }
}

impl Candidate {
    async fn wait_for_budget(&self) {
        loop {
            let now = self.manager.clock().elapsed();
            let held_back = self.budget.lock().expect(UNPOISONED).held_back(self.options.budget, now);
            let Some(left) = held_back else { return };
            self.candidacy.send_replace(Candidacy::HeldBack { left });
            tokio::time::sleep(left).await;
        }
    }

    /// Whether another try may end otherwise.
    fn is_worth_waiting(&self, error: &CallError) -> bool {
        match error {
            CallError::Unknown { .. } | CallError::Unavailable(_) => !self.manager.is_shut_down(),
            CallError::ShutDown => false,
            CallError::Refused(problem) => matches!(
                problem.code,
                Code::Held
                    | Code::LockDelay
                    | Code::WaitTimeout
                    | Code::WaitAbandoned
                    | Code::QueueFull
                    | Code::LeaseFull
                    | Code::TooManyLeases
                    // By the renewal of a grant that was waited for: it had ended again.
                    | Code::Lost
            ),
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", self.name()).field("candidacy", &*self.candidacy().borrow()).finish()
    }
}

/// Ends a candidacy, also one that is dropped.
struct Idle<'a>(&'a Candidate);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.candidacy.send_replace(Candidacy::Idle);
    }
}

const UNPOISONED: &str = "nothing panics while it has the lock";
