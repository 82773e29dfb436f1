//! Requests: the leader executes them, and any other node forwards them once to the leader.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::{Acquire, Command, DropCause, Outcome, Refusal, WaiterId};
use crate::node::Inner;
use crate::node::leader::LeaderTerm;
use crate::node::request::propose::{AppliedOutcome, Class, ProposeError};
use crate::node::request::wait::{WaitHandle, Wake};
use crate::node::request::{Answer, Request, RequestError, Response, Served};
use crate::peer::{Lane, Transport};
use crate::raft::State;
use crate::storage::Storage;
use crate::types::Consistency;

/// Pause before the next attempt if no leader was reached. It doubles up to `LONGEST_PAUSE`, so that many requests
/// do not slow down an election.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// Time after the end of a wait for the leader to commit that end. After it the request has an unknown outcome.
const WAIT_SLACK: Duration = Duration::from_secs(5);

/// Whether a follower forwards a request to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// Forward it. The receiver executes it only as the leader and never forwards it again.
    Once,
    /// Refuse it as [`RequestError::NotLeader`].
    Never,
}

impl<S: Storage, T: Transport> Inner<S, T> {
    pub(in crate::node) async fn route(
        self: &Arc<Self>,
        request: Request,
        forward: Forward,
    ) -> Result<Response, RequestError> {
        if self.lifecycle.draining.load(Ordering::Relaxed) {
            return Err(RequestError::ShuttingDown);
        }
        if let Request::Read { query, consistency: Consistency::Stale } = request {
            return Ok(self.read_memory(query, self.stale_ms()));
        }
        let arrived = Instant::now();
        let mut leaderless_since = arrived;
        // If an earlier attempt may have been applied, a later refusal does not prove the opposite.
        let mut ambiguous = None;
        let mut pause = FIRST_PAUSE;
        loop {
            // An attempt can wait for long at a leader. If that leader stops, the leaderless time begins only then.
            let had_leader = self.raft.leadership().leader.is_some();
            let refusal = match self.attempt(request.clone_with_remaining_wait(arrived), forward).await {
                Ok(response) => return unless_ambiguous(response, ambiguous),
                Err(ProposeError::NotLeader) => None,
                Err(ProposeError::StillWaits) => {
                    // The waiter may be granted or dropped before the next attempt reaches a leader.
                    ambiguous.get_or_insert_with(|| "it waited in the queue when the leader changed".to_owned());
                    None
                }
                Err(ProposeError::Refused(error)) => Some(error),
                Err(ProposeError::Unknown(reason)) => {
                    let again =
                        request.is_idempotent() && arrived.elapsed() < self.settings.timeouts.request + request.wait();
                    let error = (!again).then(|| RequestError::Unknown(reason.clone()));
                    ambiguous = Some(reason).filter(|_| request.is_change());
                    error
                }
            };
            // An isolated node never learns that its leader is gone, so a known leader extends only the wait.
            let has_leader = had_leader || self.raft.leadership().leader.is_some();
            if arrived.elapsed() < request.wait() && has_leader {
                leaderless_since = Instant::now();
            }
            let leaderless = leaderless_since.elapsed() >= self.settings.timeouts.leaderless;
            if let Some(error) = refusal.or(leaderless.then_some(RequestError::NoLeader)) {
                return Err(ambiguous.map_or(error, RequestError::Unknown));
            }
            tokio::select! {
                () = self.lifecycle.stop.cancelled() => {
                    return Err(ambiguous.map_or(RequestError::ShuttingDown, RequestError::Unknown));
                }
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    /// Makes one attempt at the current leader.
    pub(in crate::node) async fn attempt(
        self: &Arc<Self>,
        request: Request,
        forward: Forward,
    ) -> Result<Response, ProposeError> {
        match self.raft.leadership().leader {
            Some(leader) if leader == self.settings.id => self.execute_as_leader(request).await,
            Some(leader) => {
                let info = self.raft.member(leader).ok_or(ProposeError::NotLeader)?;
                match forward {
                    Forward::Once => self.forward(leader, &info, &request).await,
                    Forward::Never => Err(ProposeError::Refused(RequestError::NotLeader { leader, http: info.http })),
                }
            }
            None => Err(ProposeError::NotLeader),
        }
    }

    /// Upper bound of the age of this node's state. See [`Served::stale_ms`](crate::node::Served::stale_ms).
    pub(in crate::node) fn stale_ms(&self) -> Option<u64> {
        self.raft.state_age().map(|age| age.as_millis() as u64)
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Executes a request if this node leads. `NotLeader` means that the request was certainly not applied.
    pub(in crate::node) async fn execute_as_leader(
        self: &Arc<Self>,
        request: Request,
    ) -> Result<Response, ProposeError> {
        let leader_term = self.requests.clock.leader_term().ok_or(ProposeError::NotLeader)?;
        let answer = match request {
            Request::Acquire(acquire) => self.acquire(&leader_term, acquire).await?,
            Request::Change(Command::Renew { holder, leases }) => self.renew(holder, leases).await?,
            Request::Change(command) => Answer::Outcome(self.propose(command).await?.outcome),
            Request::Read { query, consistency } => return self.read_as_leader(&leader_term, query, consistency).await,
            Request::Members => Answer::Members(self.members()),
        };
        Ok(Response { answer, served: self.served() })
    }

    pub(in crate::node) async fn propose(&self, command: Command) -> Result<AppliedOutcome, ProposeError> {
        let proposed =
            tokio::time::timeout(self.settings.timeouts.request, self.requests.proposer.propose(command)).await;
        proposed.unwrap_or_else(|_| {
            Err(ProposeError::Unknown(format!("not committed within {:?}", self.settings.timeouts.request)))
        })
    }

    async fn acquire(self: &Arc<Self>, leader_term: &LeaderTerm, acquire: Acquire) -> Result<Answer, ProposeError> {
        if let Some(refused) = self.refuse_from_memory(leader_term, &acquire) {
            return Ok(Answer::Outcome(refused));
        }
        let Some(wait_ms) = acquire.wait_ms else {
            return Ok(Answer::Outcome(self.propose(Command::Acquire(acquire)).await?.outcome));
        };
        let id = WaiterId { name: acquire.name.clone(), holder: acquire.holder.clone() };
        let mut handle = self.requests.waits.register(id);
        match self.propose(Command::Acquire(acquire)).await {
            Ok(AppliedOutcome { outcome: Outcome::Queued { .. }, .. }) => {
                self.wait(leader_term, handle, Duration::from_millis(wait_ms)).await
            }
            answered => {
                // Either the waiter is not in the queue, or an earlier attempt queued it and the next leader keeps it.
                handle.keep_position();
                Ok(Answer::Outcome(answered?.outcome))
            }
        }
    }

    /// Refuses a claim of a held lease without a log entry, if this node's state is certain to be current.
    fn refuse_from_memory(&self, leader_term: &LeaderTerm, acquire: &Acquire) -> Option<Outcome> {
        let now = self.requests.clock.now(leader_term);
        let refuse = |state: &State| state.machine.held_by_other(acquire, now);
        // This check comes first because it is cheap and most names are free.
        self.raft.replica().read(refuse)?;
        if !self.raft.may_read_locally() {
            return None;
        }
        self.raft.replica().read(refuse).map(Outcome::Refused)
    }

    async fn wait(
        self: &Arc<Self>,
        leader_term: &LeaderTerm,
        mut handle: WaitHandle,
        wait: Duration,
    ) -> Result<Answer, ProposeError> {
        tokio::select! {
            biased;
            wake = handle.woken() => match wake {
                Some(Wake::Granted(lease)) => Ok(Answer::Outcome(Outcome::Held { lease: *lease, fresh: true })),
                Some(Wake::Ended(lost)) => Ok(Answer::Outcome(Outcome::Refused(Refusal::Lost(lost)))),
                Some(Wake::Dropped(DropCause::WaitTimeout)) => Ok(Answer::WaitTimeout),
                Some(Wake::Dropped(DropCause::Abandoned | DropCause::Left)) => Ok(Answer::WaitAbandoned),
                None => Err(ProposeError::StillWaits),
            },
            // The queue is replicated, so the request keeps its position and continues at the next leader.
            () = self.requests.clock.ended(leader_term.term) => {
                handle.keep_position();
                Err(ProposeError::StillWaits)
            }
            () = tokio::time::sleep(wait + WAIT_SLACK) => {
                Err(ProposeError::Unknown("the wait is over, but its end is not committed".into()))
            }
        }
    }

    fn served(&self) -> Served {
        self.raft.replica().read(|state| self.served_by(state))
    }

    pub(in crate::node) fn served_by(&self, state: &State) -> Served {
        let now = self
            .requests
            .clock
            .leader_term()
            .map_or(state.machine.now(), |leader_term| self.requests.clock.now(&leader_term));
        Served {
            node: self.settings.id,
            term: state.applied.map_or(0, |applied| applied.leader_id.term),
            applied: state.applied.map_or(0, |applied| applied.index),
            now: now.max(state.machine.now()),
            stale_ms: None,
        }
    }
}

/// Returns the answer unless an earlier attempt makes it ambiguous: a claim that is refused now may have been granted
/// to an earlier attempt. Any other answer is certain.
fn unless_ambiguous(response: Response, ambiguous: Option<String>) -> Result<Response, RequestError> {
    let is_refused =
        matches!(response.answer, Answer::Outcome(Outcome::Refused(_)) | Answer::WaitTimeout | Answer::WaitAbandoned);
    match ambiguous.filter(|_| is_refused) {
        Some(reason) => Err(RequestError::Unknown(format!("{reason}; the next attempt was refused"))),
        None => Ok(response),
    }
}

impl Request {
    /// Whether a repetition has the same effect and answer. Then an unknown outcome is retried. A repeated release or
    /// handover is answered as if the first one had not been applied.
    fn is_idempotent(&self) -> bool {
        match self {
            Request::Acquire(_) | Request::Read { .. } | Request::Members => true,
            Request::Change(command) => matches!(command, Command::Renew { .. } | Command::UpdateMetadata { .. }),
        }
    }

    pub(in crate::node) fn lane(&self) -> Lane {
        match self {
            Request::Change(command) if Class::of(command) == Class::Urgent => Lane::Urgent,
            _ => Lane::Request,
        }
    }

    pub(in crate::node) fn is_change(&self) -> bool {
        matches!(self, Request::Acquire(_) | Request::Change(_))
    }

    pub(in crate::node) fn wait(&self) -> Duration {
        match self {
            Request::Acquire(acquire) => Duration::from_millis(acquire.wait_ms.unwrap_or_default()),
            _ => Duration::ZERO,
        }
    }

    /// Clones the request for an attempt that starts now, with the remaining wait.
    fn clone_with_remaining_wait(&self, arrived: Instant) -> Request {
        let mut request = self.clone();
        if let Request::Acquire(acquire) = &mut request
            && let Some(wait_ms) = &mut acquire.wait_ms
        {
            *wait_ms = wait_ms.saturating_sub(arrived.elapsed().as_millis() as u64);
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName};

    #[test]
    fn refusal_after_a_lost_answer_stays_unknown() {
        let response =
            |answer| Response { answer, served: Served { node: 1, term: 1, applied: 1, now: 1, stale_ms: None } };
        let refusals = [
            Answer::Outcome(Outcome::Refused(Refusal::QueueFull { max_waiters: 1 })),
            Answer::WaitTimeout,
            Answer::WaitAbandoned,
        ];
        for answer in refusals {
            assert!(
                unless_ambiguous(response(answer.clone()), None).is_ok(),
                "{answer:?} after no other attempt is certain"
            );
            let answered = unless_ambiguous(response(answer.clone()), Some("lost".to_owned()));
            assert!(matches!(answered, Err(RequestError::Unknown(_))), "{answer:?}: {answered:?}");
        }
        let released = response(Answer::Outcome(Outcome::Released(true)));
        assert!(unless_ambiguous(released, Some("lost".to_owned())).is_ok());
    }

    #[test]
    fn only_idempotent_changes_are_repeated() {
        let name = || LeaseName::new("n").expect("valid");
        let holder = || HolderId::new("h").expect("valid");
        let token = FencingToken { term: 1, index: 5 };
        let changes = [
            (Command::Renew { holder: holder(), leases: Vec::new() }, true),
            (Command::Release { name: name(), holder: holder(), token }, false),
            (Command::HandOver { name: name(), holder: holder(), token, to: None }, false),
            (Command::Revoke { name: name(), reason: String::new() }, false),
        ];
        for (command, repeats) in changes {
            assert_eq!(Request::Change(command.clone()).is_idempotent(), repeats, "{command:?}");
        }
    }
}
