//! Claims in flight. Each one is a task of its manager, which outlives the caller of the acquire.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use super::error::runtime_ended;
use super::hold::Hold;
use super::operations::standing_at;
use super::shared::ManagerInner;
use super::{CallError, Coordinator, RetryBudget};
use crate::api::{Acquire, LeaseInfo, Standing};
use crate::trace;

/// Pause between two checks of an abandoned claim that may still wait in the queue.
pub(super) const RESOLVE_INTERVAL: Duration = Duration::from_millis(5);

/// The claims of one lease that the cluster may grant, or may have granted, without the knowledge of this manager.
#[derive(Default)]
pub(super) struct OpenClaims {
    /// The number of the last claim.
    last: u64,
    /// Each claim that was sent and has no result here yet. Until its time, the cluster may apply it after a read that does
    /// not show it. `None`: an answer or a read shows otherwise.
    in_flight: BTreeMap<u64, Option<Duration>>,
    /// A claim has ended, and the cluster may have granted it.
    has_unknown: bool,
    /// Until this time, the cluster may apply such a claim after a read that does not show it.
    unknown_until: Option<Duration>,
}

impl OpenClaims {
    /// Adds a claim before it is sent. Returns its number.
    pub fn send(&mut self, until: Duration) -> u64 {
        self.last += 1;
        self.in_flight.insert(self.last, Some(until));
        self.last
    }

    /// An answer to this claim, or a read, shows that the cluster does not apply it later.
    pub fn trace(&mut self, number: u64) {
        if let Some(until) = self.in_flight.get_mut(&number) {
            *until = None;
        }
    }

    /// A read shows a claim. It does not tell which one: it counts as one that has ended, or as the only one in flight.
    pub fn trace_shown(&mut self) {
        self.unknown_until = None;
        if self.in_flight.len() == 1 && !self.has_unknown {
            self.in_flight.values_mut().for_each(|until| *until = None);
        }
    }

    /// Ends a claim that is certainly not granted.
    pub fn close(&mut self, number: u64) {
        self.in_flight.remove(&number);
    }

    /// Ends a claim that may be granted.
    pub fn leave(&mut self, number: u64) {
        if let Some(until) = self.in_flight.remove(&number) {
            self.has_unknown = true;
            self.unknown_until = self.unknown_until.max(until);
        }
    }

    /// The task of this claim has ended. Without an answer, the claim may be granted.
    fn end_task(&mut self, number: u64) {
        if self.in_flight.get(&number).is_some_and(Option::is_some) {
            self.leave(number);
        }
    }

    /// No ended claim is in force. The manager resolves each claim in flight by itself.
    pub fn resolve_unknown(&mut self) {
        (self.has_unknown, self.unknown_until) = (false, None);
    }

    /// No claim is in force without the knowledge of this manager.
    pub fn clear(&mut self) {
        *self = OpenClaims { last: self.last, ..OpenClaims::default() };
    }

    pub fn is_open(&self) -> bool {
        self.has_unknown || !self.in_flight.is_empty()
    }

    /// Whether the cluster may apply a claim after a read at `now` that does not show it.
    pub fn is_untraced(&self, now: Duration) -> bool {
        self.in_flight.values().flatten().chain(&self.unknown_until).any(|until| now < *until)
    }
}

/// A claim in flight. It runs in a task of the manager, so that its caller can stop polling or be dropped. Dropping the
/// `SentClaim` aborts the task.
#[derive(Debug)]
pub(super) struct SentClaim {
    task: AbortOnDropHandle<Option<Result<LeaseInfo, CallError>>>,
    /// The runtime of the task was shut down before the answer.
    is_cut_off: bool,
    waits: bool,
    /// Its number in the [`OpenClaims`] of its lease.
    pub number: u64,
    /// The outcome of an earlier claim of this holder is unknown.
    pub follows_ambiguous: bool,
}

impl SentClaim {
    /// Sends the claim. It ends within its wait and the operation timeout. Its grant is over after `time`, also if the
    /// cluster applies the claim late. The task does not keep the manager alive: the manager may own the `SentClaim`.
    pub fn send(shared: &ManagerInner, hold: &Arc<Hold>, claim: Acquire, time: Duration) -> SentClaim {
        let (coordinator, closing) = (shared.coordinator.clone(), shared.closing.clone());
        let follows_ambiguous = hold.is_ambiguous();
        let until = shared.now().saturating_add(time);
        let number = hold.claims(|open| open.send(until));
        let claimed = ClaimTask { hold: hold.clone(), number };
        let budget = RetryBudget::within(shared.options.operation_timeout);
        let waits = claim.wait_ms.is_some();
        let task = shared.claims.spawn(trace::in_current(async move {
            let mut answer = std::pin::pin!(async {
                let answer = coordinator.acquire(claimed.hold.name.clone(), claim, budget).await;
                claimed.trace();
                answer
            });
            tokio::select! {
                biased;
                () = closing.cancelled() => {}
                answer = &mut answer => return Some(answer),
            }
            tokio::select! {
                biased;
                answer = &mut answer => return Some(answer),
                () = until_known(&*coordinator, &claimed.hold, budget), if waits => claimed.trace(),
                () = tokio::time::sleep(budget.total) => {}
            }
            None
        }));
        SentClaim { task: AbortOnDropHandle::new(task), is_cut_off: false, waits, number, follows_ambiguous }
    }

    /// Waits for the end of the task.
    pub async fn ended(&mut self) -> Ended {
        Ended((&mut self.task).await)
    }

    /// The answer to a claim that its caller has abandoned. `None`: there is none, and the caller of this function drops
    /// the claim and asks the cluster. The node withdraws a claim that waits in a queue.
    ///
    /// An abort before the cluster knows the claim proves nothing: the cluster may apply the claim later. Then the claim
    /// stays open.
    pub async fn final_answer(&mut self, shared: &ManagerInner, hold: &Hold) -> Option<Result<LeaseInfo, CallError>> {
        let mut seen = None;
        if !self.is_cut_off {
            tokio::select! {
                biased;
                ended = &mut self.task => match ended {
                    Err(error) if error.is_cancelled() => self.is_cut_off = true,
                    ended => return Ended(ended).answer(),
                },
                is_known = becomes_known(shared, hold), if self.waits => seen = Some(is_known),
            }
        }
        let is_known = match seen {
            Some(is_known) => is_known,
            None => becomes_known(shared, hold).await,
        };
        if is_known {
            hold.claims(|open| {
                open.trace(self.number);
                open.trace_shown();
            });
        }
        None
    }
}

/// Records the end of the task of a claim, also if its runtime is shut down.
struct ClaimTask {
    hold: Arc<Hold>,
    number: u64,
}

impl ClaimTask {
    fn trace(&self) {
        self.hold.claims(|open| open.trace(self.number));
    }
}

impl Drop for ClaimTask {
    fn drop(&mut self) {
        self.hold.claims(|open| open.end_task(self.number));
    }
}

/// The end of the task of a claim.
pub(super) struct Ended(Result<Option<Result<LeaseInfo, CallError>>, JoinError>);

impl Ended {
    /// The answer of the task. `None`: the manager is shut down, and the task abandoned the claim.
    pub fn answer(self) -> Option<Result<LeaseInfo, CallError>> {
        self.0.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Some(Err(runtime_ended())),
        })
    }
}

/// Waits until the cluster has applied a claim of this holder. Its node then withdraws the claim after an abort.
async fn until_known(coordinator: &dyn Coordinator, hold: &Hold, budget: RetryBudget) {
    while !standing_at(coordinator, hold, budget).await.is_ok_and(|standing| shows_claim(&standing)) {
        tokio::time::sleep(RESOLVE_INTERVAL).await;
    }
}

/// Waits until the cluster has applied a claim of this holder. Returns `false` if it does not show the claim in time.
async fn becomes_known(shared: &ManagerInner, hold: &Hold) -> bool {
    let budget = RetryBudget::within(shared.options.operation_timeout);
    tokio::time::timeout(budget.total, until_known(&*shared.coordinator, hold, budget)).await.is_ok()
}

/// Whether the cluster has applied a claim of the holder with this standing.
pub(super) fn shows_claim(standing: &Standing) -> bool {
    matches!(standing, Standing::Holds { .. } | Standing::Waits { .. })
}
