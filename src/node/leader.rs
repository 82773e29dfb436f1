//! Carrying out requests on the node that leads.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::lead::Lead;
use super::proposer::{Answered, MAX_COMMAND_BYTES, NoOutcome, renewal_weight};
use super::request::{Answer, Consistency, Query, Request, Response, Served};
use super::waiting::{Seat, Wake};
use crate::lease::{Acquire, Command, DropCause, Outcome, Refusal, Renewal, WaiterId};
use crate::peer::Transport;
use crate::raft::State;
use crate::storage::Storage;
use crate::types::HolderId;

/// How long a wait may outlast its own end before the request gives up on being told.
const WAIT_SLACK: Duration = Duration::from_secs(5);

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Carries a request out if this node leads. `NotLeader` means: certainly not done.
    pub(super) async fn lead(self: &Arc<Self>, request: Request) -> Result<Response, NoOutcome> {
        let lead = self.clock.lead().ok_or(NoOutcome::NotLeader)?;
        if !self.raft.heard_majority_within(self.timeouts.leaderless) {
            // Cut off: whatever it proposed would hang, and most likely never be done.
            return Err(NoOutcome::NotLeader);
        }
        let answer = match request {
            Request::Acquire(acquire) => self.acquire(&lead, acquire).await?,
            Request::Change(Command::Renew { holder, leases }) => self.renew(holder, leases).await?,
            Request::Change(command) => Answer::Outcome(self.propose(command).await?.outcome),
            Request::Read { query, consistency } => return self.read_as_leader(query, consistency).await,
            Request::Members => Answer::Members(self.members()),
        };
        Ok(Response { answer, served: self.served() })
    }

    async fn propose(&self, command: Command) -> Result<Answered, NoOutcome> {
        let proposed = tokio::time::timeout(self.timeouts.request, self.proposer.propose(command)).await;
        proposed
            .unwrap_or_else(|_| Err(NoOutcome::Unknown(format!("not committed within {:?}", self.timeouts.request))))
    }

    async fn acquire(self: &Arc<Self>, lead: &Lead, acquire: Acquire) -> Result<Answer, NoOutcome> {
        if let Some(refused) = self.refuse_from_memory(lead, &acquire) {
            return Ok(Answer::Outcome(refused));
        }
        let Some(wait_ms) = acquire.wait_ms else {
            return Ok(Answer::Outcome(self.propose(Command::Acquire(acquire)).await?.outcome));
        };
        let id = WaiterId { name: acquire.name.clone(), holder: acquire.holder.clone() };
        let mut seat = self.waiting.sit(id);
        let answered = self.propose(Command::Acquire(acquire)).await?;
        match answered.outcome {
            Outcome::Queued { .. } => self.wait(lead, seat, Duration::from_millis(wait_ms)).await,
            outcome => {
                seat.keep_place();
                Ok(Answer::Outcome(outcome))
            }
        }
    }

    /// Most tries for a held lease are refused: that changes nothing, so it needs no entry when this node's memory is
    /// certain to be current.
    fn refuse_from_memory(&self, lead: &Lead, acquire: &Acquire) -> Option<Outcome> {
        let now = self.clock.now(lead);
        let refuse = |state: &State| state.machine.held_by_other(acquire, now);
        // Looked at first: most names are free, and then nothing else has to be asked.
        self.raft.replica().read(refuse)?;
        if !self.raft.may_read_locally() {
            return None;
        }
        self.raft.replica().read(refuse).map(Outcome::Refused)
    }

    async fn wait(self: &Arc<Self>, lead: &Lead, mut seat: Seat, wait: Duration) -> Result<Answer, NoOutcome> {
        seat.is_in_queue();
        let mut leads = self.clock.changes();
        let term = lead.term;
        tokio::select! {
            biased;
            wake = seat.woken() => match wake {
                Some(Wake::Granted(lease)) => Ok(Answer::Outcome(Outcome::Held { lease: *lease, fresh: true })),
                Some(Wake::Ended(lost)) => Ok(Answer::Outcome(Outcome::Refused(Refusal::Lost(lost)))),
                Some(Wake::Dropped(DropCause::WaitTimeout)) => Ok(Answer::WaitTimeout),
                Some(Wake::Dropped(DropCause::Abandoned | DropCause::Left)) => Ok(Answer::WaitAbandoned),
                None => Err(NoOutcome::StillWaits),
            },
            // The place in the queue is replicated: the request goes on at the next leader, and keeps it.
            _ = leads.wait_for(|lead| lead.is_none_or(|lead| lead.term != term)) => {
                seat.keep_place();
                Err(NoOutcome::StillWaits)
            }
            () = tokio::time::sleep(wait + WAIT_SLACK) => {
                Err(NoOutcome::Unknown("the wait is over, and its end is not committed".into()))
            }
        }
    }

    /// Many renewals take several commands, so that no entry grows beyond what the store takes at once.
    async fn renew(&self, holder: HolderId, leases: Vec<Renewal>) -> Result<Answer, NoOutcome> {
        let parts = split(leases).into_iter().map(|leases| {
            let command = Command::Renew { holder: holder.clone(), leases };
            self.propose(command)
        });
        let mut renewed = Vec::new();
        for answered in futures_util::future::try_join_all(parts).await? {
            match answered.outcome {
                Outcome::Renewed(part) => renewed.extend(part),
                other => return Ok(Answer::Outcome(other)),
            }
        }
        Ok(Answer::Outcome(Outcome::Renewed(renewed)))
    }

    async fn read_as_leader(&self, query: Query, consistency: Consistency) -> Result<Response, NoOutcome> {
        let confirm = consistency == Consistency::Linearizable;
        if confirm || !self.raft.may_read_locally() {
            let readable = self.raft.await_readable(confirm, self.timeouts.request).await;
            readable.map_err(|error| match error {
                crate::raft::ProposeError::NotLeader => NoOutcome::NotLeader,
                crate::raft::ProposeError::Unknown(reason) => NoOutcome::Unknown(reason),
            })?;
        }
        Ok(self.read_memory(query, None))
    }

    pub(super) fn read_memory(&self, query: Query, stale_ms: Option<u64>) -> Response {
        let (answer, mut served) = self.raft.replica().read(|state| (look_up(state, query), self.served_by(state)));
        served.stale_ms = stale_ms;
        Response { answer, served }
    }

    fn served(&self) -> Served {
        self.raft.replica().read(|state| self.served_by(state))
    }

    fn served_by(&self, state: &State) -> Served {
        let now = self.clock.lead().map_or(state.machine.now(), |lead| self.clock.now(&lead));
        Served {
            node: self.id,
            term: state.applied.map_or(0, |applied| applied.leader_id.term),
            applied: state.applied.map_or(0, |applied| applied.index),
            now: now.max(state.machine.now()),
            stale_ms: None,
        }
    }
}

fn look_up(state: &State, query: Query) -> Answer {
    let machine = &state.machine;
    match query {
        Query::Lease(name) => Answer::Lease(machine.get(&name).map_or(Vec::new(), |view| {
            if view.held.is_empty() { view.ended.into_iter().last().into_iter().collect() } else { view.held }
        })),
        Query::History(name) => Answer::History(machine.history(&name)),
        Query::Queue(name) => Answer::Queue(machine.queue(&name)),
        Query::Explain { name, holder } => Answer::Explain(machine.explain(&name, holder.as_ref())),
        Query::List { filter, after, limit } => {
            let (leases, next) = machine.list(&filter, after.as_ref(), limit as usize);
            Answer::List { leases, next }
        }
    }
}

/// Cuts renewals into commands of a size that an entry takes.
fn split(leases: Vec<Renewal>) -> Vec<Vec<Renewal>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for lease in leases {
        bytes += renewal_weight(&lease);
        if bytes > MAX_COMMAND_BYTES / 2 {
            parts.push(Vec::new());
            bytes = renewal_weight(&lease);
        }
        parts.last_mut().expect("never empty").push(lease);
    }
    parts
}
