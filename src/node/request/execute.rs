//! Execution of requests on the leader.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::{Acquire, Command, DropCause, Outcome, Refusal, WaiterId};
use crate::node::Inner;
use crate::node::leader_term::LeaderTerm;
use crate::node::request::propose::{AppliedOutcome, ProposeError};
use crate::node::request::read::look_up;
use crate::node::request::wait::{WaitHandle, Wake};
use crate::node::request::{Answer, Query, Request, Response, Served};
use crate::peer::Transport;
use crate::raft::State;
use crate::storage::Storage;
use crate::types::Consistency;

/// Time after the end of a wait for the leader to commit that end. After it the request has an unknown outcome.
const WAIT_SLACK: Duration = Duration::from_secs(5);

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Executes a request if this node leads. `NotLeader` means that the request was certainly not applied.
    pub(in crate::node) async fn execute_as_leader(
        self: &Arc<Self>,
        request: Request,
    ) -> Result<Response, ProposeError> {
        let leader_term = self.clock.leader_term().ok_or(ProposeError::NotLeader)?;
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
        let proposed = tokio::time::timeout(self.timeouts.request, self.proposer.propose(command)).await;
        proposed
            .unwrap_or_else(|_| Err(ProposeError::Unknown(format!("not committed within {:?}", self.timeouts.request))))
    }

    async fn acquire(self: &Arc<Self>, leader_term: &LeaderTerm, acquire: Acquire) -> Result<Answer, ProposeError> {
        if let Some(refused) = self.refuse_from_memory(leader_term, &acquire) {
            return Ok(Answer::Outcome(refused));
        }
        let Some(wait_ms) = acquire.wait_ms else {
            return Ok(Answer::Outcome(self.propose(Command::Acquire(acquire)).await?.outcome));
        };
        let id = WaiterId { name: acquire.name.clone(), holder: acquire.holder.clone() };
        let mut handle = self.waits.register(id);
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
        let now = self.clock.now(leader_term);
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
            () = self.clock.ended(leader_term.term) => {
                handle.keep_position();
                Err(ProposeError::StillWaits)
            }
            () = tokio::time::sleep(wait + WAIT_SLACK) => {
                Err(ProposeError::Unknown("the wait is over, but its end is not committed".into()))
            }
        }
    }

    async fn read_as_leader(
        &self,
        leader_term: &LeaderTerm,
        query: Query,
        consistency: Consistency,
    ) -> Result<Response, ProposeError> {
        let from_memory = consistency != Consistency::Linearizable && self.raft.may_read_locally();
        if !from_memory {
            let readable = tokio::select! {
                readable = self.raft.await_readable(self.timeouts.request) => readable,
                () = self.clock.ended(leader_term.term) => return Err(ProposeError::NotLeader),
            };
            readable.map_err(|error| match error {
                crate::raft::WriteError::NotLeader => ProposeError::NotLeader,
                crate::raft::WriteError::Unknown(reason) => ProposeError::Unknown(reason),
            })?;
        }
        Ok(self.read_memory(query, None))
    }

    pub(in crate::node) fn read_memory(&self, query: Query, stale_ms: Option<u64>) -> Response {
        let (answer, mut served) =
            self.raft.replica().read(|state| (look_up(&state.machine, query), self.served_by(state)));
        served.stale_ms = stale_ms;
        Response { answer, served }
    }

    fn served(&self) -> Served {
        self.raft.replica().read(|state| self.served_by(state))
    }

    fn served_by(&self, state: &State) -> Served {
        let now = self.clock.leader_term().map_or(state.machine.now(), |leader_term| self.clock.now(&leader_term));
        Served {
            node: self.id,
            term: state.applied.map_or(0, |applied| applied.leader_id.term),
            applied: state.applied.map_or(0, |applied| applied.index),
            now: now.max(state.machine.now()),
            stale_ms: None,
        }
    }
}
