//! Claims in flight. Each one is a task of its manager, which outlives the caller of the acquire.

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

/// A claim in flight. It runs in a task of the manager, so that its caller can stop polling or be dropped. Dropping the
/// `SentClaim` aborts the task.
#[derive(Debug)]
pub(super) struct SentClaim {
    task: AbortOnDropHandle<Option<Result<LeaseInfo, CallError>>>,
    /// The runtime of the task was shut down before the answer.
    is_cut_off: bool,
    waits: bool,
    /// The outcome of an earlier claim of this holder is unknown.
    pub follows_ambiguous: bool,
}

impl SentClaim {
    /// Sends the claim. It ends within its wait and the limit. The task does not keep the manager alive: the manager may
    /// own the `SentClaim`.
    pub fn send(
        shared: &ManagerInner,
        hold: &Arc<Hold>,
        claim: Acquire,
        wait: Duration,
        limit: Duration,
        follows_ambiguous: bool,
    ) -> SentClaim {
        let (coordinator, closing, claimed) = (shared.coordinator.clone(), shared.closing.clone(), hold.clone());
        // Until an answer or a read shows otherwise, the cluster may apply the claim after a read that does not show it.
        let earlier = hold.set_abandoned(Some(shared.now().saturating_add(shared.ambiguous_time(hold, wait))));
        let budget = RetryBudget::within(shared.options.operation_timeout);
        let waits = claim.wait_ms.is_some();
        let task = shared.claims.spawn(trace::in_current(async move {
            let mut answer = std::pin::pin!(async {
                let answer = coordinator.acquire(claimed.name.clone(), claim, RetryBudget::within(limit)).await;
                claimed.set_abandoned(earlier);
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
                () = until_known(&*coordinator, &claimed, budget), if waits => {
                    claimed.set_abandoned(None);
                }
                () = tokio::time::sleep(budget.total) => {}
            }
            None
        }));
        SentClaim { task: AbortOnDropHandle::new(task), is_cut_off: false, waits, follows_ambiguous }
    }

    /// Waits for the end of the task.
    pub async fn ended(&mut self) -> Ended {
        Ended((&mut self.task).await)
    }

    /// The answer to a claim that its caller has abandoned. `None`: there is none, and the caller of this function drops
    /// the claim and asks the cluster. The node withdraws a claim that waits in a queue.
    ///
    /// An abort before the cluster knows the claim proves nothing: the cluster may apply the claim later. Then the claim
    /// stays marked as abandoned.
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
            hold.set_abandoned(None);
        }
        None
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
