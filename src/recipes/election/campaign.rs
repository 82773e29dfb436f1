//! The campaign of a candidate.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::budget::ElectionBudget;
use super::view::{self, LeaderView};
use super::{ElectionOptions, Leadership, Observer};
use crate::api::Code;
use crate::client::{CallError, Lease, LeaseGuard, LeaseManager, LeaseOptions, Wait, check_refresh};
use crate::types::{InvalidValue, LeaseName};

/// Longest wait of one claim in the queue. A longer campaign claims again and gets a new place at the end of the queue.
const QUEUE_WAIT: Duration = Duration::from_secs(60);
/// Pause before another claim, after the cluster was unavailable or had no room.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Interval between two checks of a used up budget. A suspend advances the clock of the manager, and no timer.
const BUDGET_CHECK: Duration = Duration::from_millis(100);

/// An election: its candidates campaign for the lease with its name.
///
/// Cheap to clone; clones are the same candidate. Creating an `Election` sends no request. The cluster knows a
/// candidate by the [`holder`](LeaseManager::holder) of its manager.
#[derive(Clone)]
pub struct Election {
    pub(super) candidate: Arc<Candidate>,
}

pub(super) struct Candidate {
    pub manager: LeaseManager,
    pub lease: Lease,
    /// The manager shares the options of a lease among its handles. So each claim has those of its candidate.
    lease_options: LeaseOptions,
    pub options: ElectionOptions,
    budget: Mutex<ElectionBudget>,
    /// Held by each campaign. A campaign that looked at the budget during another campaign would exceed it.
    campaigning: tokio::sync::Mutex<()>,
    candidacy: watch::Sender<Candidacy>,
}

/// The state of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Candidacy {
    /// The candidate does not campaign: not yet, no longer, or because it was elected.
    Idle,
    /// The [budget](ElectionOptions::budget) is used up. The candidate joins the queue `left` after this state began.
    HeldBack {
        /// The time until the budget allows another election.
        left: Duration,
    },
    /// The candidate claims the lease or waits for it in the queue.
    Waiting,
}

impl Election {
    /// Creates a candidate or an observer of the election with the lease `name`.
    ///
    /// # Errors
    ///
    /// The name is not a valid lease name, or an option is outside its bounds.
    pub fn new(
        manager: &LeaseManager,
        name: impl AsRef<str>,
        options: ElectionOptions,
    ) -> Result<Election, InvalidValue> {
        check_refresh(options.refresh)?;
        view::established(&options.metadata, view::LONGEST_TOKEN)?;
        let lease_options: LeaseOptions = options.lease.clone().metadata(options.metadata.clone());
        lease_options.check()?;
        let candidate = Candidate {
            manager: manager.clone(),
            lease: manager.lease(name)?,
            lease_options,
            options,
            budget: Mutex::default(),
            campaigning: tokio::sync::Mutex::default(),
            candidacy: watch::Sender::new(Candidacy::Idle),
        };
        Ok(Election { candidate: Arc::new(candidate) })
    }

    /// The name of the lease.
    pub fn name(&self) -> &LeaseName {
        self.candidate.lease.name()
    }

    /// Waits until this candidate is elected. The wait has no time limit and continues through changes of the leader
    /// and outages of the cluster.
    ///
    /// The cluster elects candidates in the order of its queue. One claim waits at most 60 s, so that a node that hangs
    /// cannot block a candidate. After that, the candidate claims again and gets the last place in the queue.
    ///
    /// # Errors
    ///
    /// Only errors that a longer wait cannot resolve:
    ///
    /// - [`Refused`](CallError::Refused): the cluster refuses the request itself.
    /// - [`ShutDown`](CallError::ShutDown): the manager or its node is shut down.
    /// - [`Unknown`](CallError::Unknown): the manager was shut down, and this candidate may still be in the queue.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the candidacy. The manager leaves the queue, and releases the lease if the cluster
    /// granted it.
    pub async fn campaign(&self) -> Result<Leadership, CallError> {
        let candidate = &self.candidate;
        let _other_campaigns_wait = candidate.campaigning.lock().await;
        let _idle_at_the_end = IdleOnDrop(candidate);
        let _resolved_at_the_end = ResolveOnDrop(&candidate.lease);
        loop {
            tokio::select! {
                biased;
                () = candidate.manager.closing() => return Err(candidate.lease.ended_by_shutdown().await),
                () = candidate.wait_for_budget() => {}
            }
            candidate.candidacy.send_replace(Candidacy::Waiting);
            let own = Some(candidate.lease_options.clone());
            match candidate.lease.guard_with(own, Wait::UpTo(QUEUE_WAIT).into()).await {
                Ok(guard) => return Ok(self.elected(guard)),
                Err(error) if !candidate.is_retryable(&error) => return Err(error),
                Err(CallError::Refused(problem)) if problem.code == Code::WaitTimeout => {}
                Err(error) => {
                    tracing::debug!(election = %self.name(), %error, "a campaign continues after an error");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Subscribes to the state of this candidate.
    pub fn candidacy(&self) -> watch::Receiver<Candidacy> {
        self.candidate.candidacy.subscribe()
    }

    /// Reads the leader from the committed state at some moment during the call.
    ///
    /// # Errors
    ///
    /// No node answered in time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn current(&self) -> Result<LeaderView, CallError> {
        let Candidate { manager, lease, .. } = &*self.candidate;
        view::read_leader(&*manager.coordinator(), lease.name(), lease.holder(), manager.budget()).await
    }

    /// Creates an observer of the leader. An observer need not be a candidate.
    pub fn observe(&self) -> Observer {
        Observer::new(&self.candidate)
    }

    fn elected(&self, guard: LeaseGuard) -> Leadership {
        let candidate = &self.candidate;
        let now = candidate.manager.clock().elapsed();
        candidate.budget.lock().expect(UNPOISONED).record(candidate.options.budget, now);
        tracing::info!(election = %self.name(), token = %guard.token(), "elected");
        Leadership::new(candidate.clone(), guard, now)
    }
}

impl Candidate {
    async fn wait_for_budget(&self) {
        let wait_time = || {
            let now = self.manager.clock().elapsed();
            self.budget.lock().expect(UNPOISONED).wait_time(self.options.budget, now)
        };
        let Some(left) = wait_time() else { return };
        self.candidacy.send_replace(Candidacy::HeldBack { left });
        while let Some(left) = wait_time() {
            tokio::time::sleep(left.min(BUDGET_CHECK)).await;
        }
    }

    /// Whether another claim may succeed after this error.
    fn is_retryable(&self, error: &CallError) -> bool {
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
                    // The grant ended before its first renewal.
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

/// Resets the candidacy when a campaign ends or is dropped.
struct IdleOnDrop<'a>(&'a Candidate);

impl Drop for IdleOnDrop<'_> {
    fn drop(&mut self) {
        self.0.candidacy.send_replace(Candidacy::Idle);
    }
}

/// A candidate can leave after a claim that was granted and not answered.
struct ResolveOnDrop<'a>(&'a Lease);

impl Drop for ResolveOnDrop<'_> {
    fn drop(&mut self) {
        self.0.resolve_lazily();
    }
}

const UNPOISONED: &str = "no code panics while it holds this lock";
