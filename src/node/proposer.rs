//! Gathers commands into log entries: what arrives while an entry is on its way goes into the next one, so that one
//! sync of a majority of disks serves everybody who waited for it.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::lead::LeadClock;
use super::request::RequestError;
use crate::lease::{Batch, Command, Outcome, Refusal};
use crate::raft::{Applied, MAX_ENTRY_BYTES, Proposal, ProposeError, RaftHandle};
use crate::storage::{Position, Storage};

/// Commands that wait for an entry; more are refused as busy.
const QUEUE: usize = 32_768;
/// Commands in one entry.
const MAX_COMMANDS: usize = 1024;
/// Entries on their way at once. Two keep the disk and the network busy; more would only make entries smaller.
const MAX_IN_FLIGHT: usize = 2;
/// Largest command, in bytes as estimated by [`weight`].
pub(super) const MAX_COMMAND_BYTES: usize = MAX_ENTRY_BYTES / 2;

/// Why a command has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoOutcome {
    /// Certainly not done: this node does not lead (any more, or yet).
    NotLeader,
    /// It has a place in the queue, which stays, and this node does not lead any more: it may be granted yet.
    StillWaits,
    /// Certainly not done, and final.
    Refused(RequestError),
    /// It may be done yet.
    Unknown(String),
}

struct Job {
    command: Command,
    answer: oneshot::Sender<Result<Answered, NoOutcome>>,
}

/// An outcome and the entry it came with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answered {
    pub outcome: Outcome,
    pub position: Position,
}

/// Where commands are handed in.
#[derive(Clone)]
pub(super) struct Proposer {
    jobs: mpsc::Sender<Job>,
}

/// The task's end of it.
pub(super) struct Jobs(mpsc::Receiver<Job>);

impl Proposer {
    pub fn new() -> (Proposer, Jobs) {
        let (jobs, receiver) = mpsc::channel(QUEUE);
        (Proposer { jobs }, Jobs(receiver))
    }

    /// Proposes and waits until the command is applied here.
    pub async fn propose(&self, command: Command) -> Result<Answered, NoOutcome> {
        if weight(&command) > MAX_COMMAND_BYTES {
            return Err(NoOutcome::Refused(RequestError::TooLarge));
        }
        let (answer, answered) = oneshot::channel();
        self.jobs.try_send(Job { command, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NoOutcome::Refused(RequestError::Busy),
            mpsc::error::TrySendError::Closed(_) => NoOutcome::Refused(RequestError::ShuttingDown),
        })?;
        answered.await.unwrap_or_else(|_| Err(NoOutcome::Unknown("the node stopped".into())))
    }
}

/// Runs until `stop`; whatever is still waiting then is answered as certainly not done.
pub(super) async fn run<S: Storage>(
    mut jobs: Jobs,
    raft: Arc<RaftHandle<S>>,
    clock: LeadClock,
    proposer: Proposer,
    stop: CancellationToken,
) {
    let mut again: VecDeque<Job> = VecDeque::new();
    let mut in_flight = FuturesUnordered::new();
    let mut gathered = Vec::with_capacity(MAX_COMMANDS);
    // A clone of the sender that keeps the queue open: the task ends by `stop`, not by its callers.
    let _proposer = proposer;
    loop {
        let room = in_flight.len() < MAX_IN_FLIGHT;
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(postponed) = in_flight.next(), if !in_flight.is_empty() => {
                again.extend::<Vec<Job>>(postponed);
                if again.is_empty() {
                    continue;
                }
            }
            received = jobs.0.recv_many(&mut gathered, MAX_COMMANDS), if room => {
                debug_assert!(received > 0, "the queue is held open");
                again.extend(gathered.drain(..));
            }
        }
        while in_flight.len() < MAX_IN_FLIGHT && !again.is_empty() {
            let batch = take_batch(&mut again);
            match clock.lead() {
                Some(lead) => {
                    let stamp = clock.stamp(&lead);
                    in_flight.push(propose(raft.clone(), lead.term, stamp, batch));
                }
                None => answer_all(batch, &NoOutcome::NotLeader),
            }
        }
    }
    answer_all(again.into(), &NoOutcome::Refused(RequestError::ShuttingDown));
}

fn take_batch(waiting: &mut VecDeque<Job>) -> Vec<Job> {
    let mut bytes = 0;
    let fits = waiting.iter().take(MAX_COMMANDS).take_while(|job| {
        bytes += weight(&job.command);
        bytes <= MAX_COMMAND_BYTES
    });
    let count = fits.count().max(1);
    waiting.drain(..count).collect()
}

/// Proposes one entry and answers its jobs. Returns those that have to go into another entry.
async fn propose<S: Storage>(
    raft: Arc<RaftHandle<S>>,
    term: u64,
    stamp: crate::lease::Stamp,
    jobs: Vec<Job>,
) -> Vec<Job> {
    let (commands, answers): (Vec<Command>, Vec<_>) = jobs.into_iter().map(|job| (job.command, job.answer)).unzip();
    let batch = Batch { stamp, commands };
    let proposed = raft.propose(term, Proposal::leases(&batch)).await;
    let jobs = batch.commands.into_iter().zip(answers).map(|(command, answer)| Job { command, answer });
    match proposed {
        Ok((position, Applied(outcomes))) => answer_each(jobs.collect(), position, outcomes),
        Err(ProposeError::NotLeader) => {
            answer_all(jobs.collect(), &NoOutcome::NotLeader);
            Vec::new()
        }
        Err(ProposeError::Unknown(reason)) => {
            answer_all(jobs.collect(), &NoOutcome::Unknown(reason));
            Vec::new()
        }
    }
}

fn answer_each(jobs: Vec<Job>, position: Position, outcomes: Vec<Outcome>) -> Vec<Job> {
    assert_eq!(jobs.len(), outcomes.len(), "one outcome a command");
    let mut again = Vec::new();
    for (job, outcome) in jobs.into_iter().zip(outcomes) {
        if outcome == Outcome::Refused(Refusal::GrantedInThisEntry) {
            again.push(job);
        } else {
            // The caller may have gone; the command is done all the same.
            let _ = job.answer.send(Ok(Answered { outcome, position }));
        }
    }
    again
}

fn answer_all(jobs: Vec<Job>, how: &NoOutcome) {
    for job in jobs {
        let _ = job.answer.send(Err(how.clone()));
    }
}

/// About how many bytes a command takes in an entry; never less than it does.
fn weight(command: &Command) -> usize {
    const NUMBERS: usize = 96;
    NUMBERS
        + match command {
            Command::Acquire(acquire) => {
                let metadata: usize = acquire.metadata.iter().map(|(key, value)| key.len() + value.len() + 10).sum();
                acquire.name.as_str().len() + acquire.holder.as_str().len() + metadata
            }
            Command::Renew { holder, leases } => {
                holder.as_str().len() + leases.iter().map(renewal_weight).sum::<usize>()
            }
            Command::Release { name, holder, .. } => name.as_str().len() + holder.as_str().len(),
            Command::Revoke { name, reason } => name.as_str().len() + reason.len(),
            Command::HandOver { name, holder, to, .. } => {
                let to = to.as_ref().map_or(0, |to| to.as_str().len());
                name.as_str().len() + holder.as_str().len() + to
            }
            Command::KeepWaiting { waiters } => waiters.iter().map(waiter_weight).sum(),
            Command::LeaveQueue { waiter } => waiter_weight(waiter),
            Command::Tick | Command::SetLimits(_) => 0,
        }
}

pub(super) fn renewal_weight(renewal: &crate::lease::Renewal) -> usize {
    renewal.name.as_str().len() + 32
}

pub(super) fn waiter_weight(waiter: &crate::lease::WaiterId) -> usize {
    waiter.name.as_str().len() + waiter.holder.as_str().len() + 8
}
