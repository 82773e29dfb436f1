//! Group commit: commands that arrive while entries are in flight share the next log entry and its disk sync.

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lease::{Batch, Command, Limits, Outcome, Refusal};
use crate::node::leader::LeaderClock;
use crate::node::request::RequestError;
use crate::node::request::queue::{Class, CommandQueue, Full, QueuedCommand};
use crate::raft::{Applied, MAX_ENTRY_BYTES, Proposal, RaftHandle, WriteError};
use crate::storage::{Position, Storage};
use crate::types::Metadata;

/// Most entries in flight. Two keep the disk and the network busy; more only make entries smaller.
const MAX_IN_FLIGHT: usize = 2;
/// Largest command, in bytes as estimated by [`weight`].
pub(in crate::node) const MAX_COMMAND_BYTES: usize = MAX_ENTRY_BYTES / 2;

/// An error instead of the outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) enum ProposeError {
    /// Certainly not applied: this node does not lead.
    NotLeader,
    /// This node no longer serves the request, but its waiter may still be in the replicated queue and may be granted.
    StillWaits,
    /// Certainly not applied. The caller gets this error.
    Refused(RequestError),
    /// The command may have been applied or may still be applied.
    Unknown(String),
}

struct Job {
    command: Command,
    answer: oneshot::Sender<Result<AppliedOutcome, ProposeError>>,
}

/// The outcome of a command, and the position of its log entry.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::node) struct AppliedOutcome {
    pub outcome: Outcome,
    pub position: Position,
}

/// The sending half of the command queue.
#[derive(Clone)]
pub(in crate::node) struct Proposer(Arc<SharedQueue>);

/// The receiving half of the command queue. After it is dropped, [`Proposer::propose`] refuses commands.
pub(in crate::node) struct JobReceiver(Arc<SharedQueue>);

struct SharedQueue {
    /// `None` after the receiving half is dropped.
    queue: Mutex<Option<CommandQueue<Job>>>,
    /// Notified when the queue becomes non-empty, and when the first ordinary command gets its latest time.
    changed: Notify,
    refused: RefusalCounters,
}

/// Counters of refused commands by cause.
struct RefusalCounters {
    too_slow: Counter,
    too_many: Counter,
    late: Counter,
}

impl Proposer {
    pub fn new() -> (Proposer, JobReceiver) {
        let counter = |reason: &'static str| counter!("tenure_refused_total", "reason" => reason);
        let refused = RefusalCounters {
            too_slow: counter("queue_slow"),
            too_many: counter("queue_full"),
            late: counter("queue_late"),
        };
        let queue = Mutex::new(Some(CommandQueue::new(MAX_COMMAND_BYTES, MAX_IN_FLIGHT)));
        let shared = Arc::new(SharedQueue { queue, changed: Notify::new(), refused });
        (Proposer(shared.clone()), JobReceiver(shared))
    }

    /// Proposes a command and waits until this node has applied it.
    pub async fn propose(&self, command: Command) -> Result<AppliedOutcome, ProposeError> {
        let weight = weight(&command);
        if weight > MAX_COMMAND_BYTES {
            return Err(ProposeError::Refused(RequestError::TooLarge));
        }
        let (answer, answered) = oneshot::channel();
        self.enqueue(weight, Job { command, answer }).map_err(ProposeError::Refused)?;
        answered.await.unwrap_or_else(|_| Err(ProposeError::Unknown("the node stopped".into())))
    }

    fn enqueue(&self, weight: usize, job: Job) -> Result<(), RequestError> {
        let SharedQueue { queue, changed, refused } = &*self.0;
        let mut queue = queue.lock();
        let queue = queue.as_mut().ok_or(RequestError::ShuttingDown)?;
        let (was_empty, next_late) = (queue.is_empty(), queue.next_late());
        queue.push(Class::of(&job.command), weight, job, Instant::now()).map_err(|full| {
            match full {
                Full::TooSlow => refused.too_slow.increment(1),
                Full::TooMany => refused.too_many.increment(1),
            }
            RequestError::Busy
        })?;
        if was_empty || queue.next_late() != next_late {
            changed.notify_one();
        }
        Ok(())
    }

    /// Number of commands of a class that wait for a log entry.
    pub fn waiting(&self, class: Class) -> usize {
        self.0.queue.lock().as_ref().map_or(0, |queue| queue.len(class))
    }
}

impl JobReceiver {
    fn queue<R>(&self, with: impl FnOnce(&mut CommandQueue<Job>) -> R) -> R {
        with(self.0.queue.lock().as_mut().expect("the queue exists until the receiving half is dropped"))
    }

    /// Refuses the ordinary commands that have waited for too long.
    fn refuse_late(&self) {
        let late = self.queue(|queue| queue.take_late(Instant::now()));
        self.0.refused.late.increment(late.len() as u64);
        answer_all(late, &ProposeError::Refused(RequestError::Busy));
    }

    /// Takes the jobs of the next entry; `None` if the queue is empty.
    fn next_entry(&self) -> Option<Vec<QueuedCommand<Job>>> {
        // A claim without a caller is dropped: a grant would block the lease until its ttl is over.
        let entry = self.queue(|queue| queue.take_entry(|job| !job.answer.is_closed()));
        (!entry.is_empty()).then_some(entry)
    }

    /// Records the end of the entry that was sent at `sent`, and queues its postponed jobs again.
    fn entry_done(&self, sent: Instant, postponed: Vec<QueuedCommand<Job>>) {
        self.queue(|queue| {
            queue.entry_done(sent, Instant::now());
            queue.requeue(postponed);
        });
    }
}

impl Drop for JobReceiver {
    fn drop(&mut self) {
        let left = self.0.queue.lock().take();
        answer_all(
            left.map_or(Vec::new(), |mut queue| queue.take_all()),
            &ProposeError::Refused(RequestError::ShuttingDown),
        );
    }
}

/// Proposes the queued commands until `stop`. The remaining ones are then refused as certainly not applied.
///
/// While the limits in the state differ from `limits`, every entry begins with a command that sets them. So every claim
/// of this term is applied under the limits of this leader.
pub(in crate::node) async fn run<S: Storage>(
    jobs: JobReceiver,
    raft: Arc<RaftHandle<S>>,
    clock: LeaderClock,
    limits: Limits,
    stop: CancellationToken,
) {
    let mut in_flight = FuturesUnordered::new();
    let mut leads = clock.changes();
    loop {
        let leads_here = leads.borrow_and_update().is_some();
        if !leads_here {
            // Without a majority the entries in flight may never finish, so queued commands must not wait for them.
            answer_all(jobs.queue(CommandQueue::take_all), &ProposeError::NotLeader);
        }
        let room = in_flight.len() < MAX_IN_FLIGHT || !leads_here;
        let next_late = jobs.queue(|queue| queue.next_late());
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some((sent, postponed)) = in_flight.next(), if !in_flight.is_empty() => jobs.entry_done(sent, postponed),
            // Without room, this round takes no command, but the next one waits until the first of them is late.
            () = jobs.0.changed.notified() => {}
            _ = leads.changed() => {}
            // A command can exceed its wait only without room: otherwise this round takes it.
            () = tokio::time::sleep_until(next_late.unwrap_or_else(Instant::now)), if !room && next_late.is_some() => {}
        }
        jobs.refuse_late();
        while in_flight.len() < MAX_IN_FLIGHT
            && let Some(mut batch) = jobs.next_entry()
        {
            let Some(leader_term) = clock.leader_term() else {
                answer_all(batch.into_iter().map(|waiting| waiting.job), &ProposeError::NotLeader);
                continue;
            };
            if raft.replica().read(|state| state.machine.limits()) != limits {
                batch.insert(0, set_limits(limits));
            }
            let (raft, stamp, sent) = (raft.clone(), clock.stamp(&leader_term), Instant::now());
            jobs.queue(|queue| queue.entry_sent(sent));
            in_flight.push(async move { (sent, propose(raft, leader_term.term, stamp, batch).await) });
        }
    }
}

/// Returns a job without a caller.
fn set_limits(limits: Limits) -> QueuedCommand<Job> {
    let command = Command::SetLimits(limits);
    let (class, weight) = (Class::of(&command), weight(&command));
    QueuedCommand { class, since: Instant::now(), weight, job: Job { command, answer: oneshot::channel().0 } }
}

/// Proposes one entry and answers its jobs. Returns the jobs that must go into another entry.
async fn propose<S: Storage>(
    raft: Arc<RaftHandle<S>>,
    term: u64,
    stamp: crate::lease::Stamp,
    jobs: Vec<QueuedCommand<Job>>,
) -> Vec<QueuedCommand<Job>> {
    let part = |QueuedCommand { class, since, weight, job }: QueuedCommand<Job>| {
        (job.command, (class, since, weight, job.answer))
    };
    let (commands, rest): (Vec<Command>, Vec<_>) = jobs.into_iter().map(part).unzip();
    let batch = Batch { stamp, commands };
    let proposal = Proposal::leases(&batch);
    // No replica could apply a larger entry. This check fails only if `weight` underestimates a command.
    let fits = proposal.0.len() <= MAX_ENTRY_BYTES;
    let proposed = if fits { Some(raft.propose(term, proposal).await) } else { None };
    let join = |(command, (class, since, weight, answer))| QueuedCommand {
        class,
        since,
        weight,
        job: Job { command, answer },
    };
    let jobs = batch.commands.into_iter().zip(rest).map(join);
    let no_outcome = match proposed {
        Some(Ok((position, Applied(outcomes)))) => return answer_each(jobs.collect(), position, outcomes),
        Some(Err(WriteError::NotLeader)) => ProposeError::NotLeader,
        Some(Err(WriteError::Unknown(reason))) => ProposeError::Unknown(reason),
        None => ProposeError::Refused(RequestError::TooLarge),
    };
    answer_all(jobs.map(|waiting| waiting.job), &no_outcome);
    Vec::new()
}

fn answer_each(jobs: Vec<QueuedCommand<Job>>, position: Position, outcomes: Vec<Outcome>) -> Vec<QueuedCommand<Job>> {
    assert_eq!(jobs.len(), outcomes.len(), "an entry has one outcome per command");
    let mut again = Vec::new();
    for (waiting, outcome) in jobs.into_iter().zip(outcomes) {
        if outcome == Outcome::Refused(Refusal::GrantedInThisEntry) {
            again.push(waiting);
        } else {
            // The caller may be gone, but the command is applied.
            let _ = waiting.job.answer.send(Ok(AppliedOutcome { outcome, position }));
        }
    }
    again
}

fn answer_all(jobs: impl IntoIterator<Item = Job>, how: &ProposeError) {
    for job in jobs {
        let _ = job.answer.send(Err(how.clone()));
    }
}

/// Upper bound of the encoded size of a command in an entry, in bytes.
fn weight(command: &Command) -> usize {
    const NUMBERS: usize = 96;
    NUMBERS
        + match command {
            Command::Acquire(acquire) => {
                acquire.name.as_str().len() + acquire.holder.as_str().len() + metadata_weight(&acquire.metadata)
            }
            Command::UpdateMetadata { name, holder, metadata, .. } => {
                name.as_str().len() + holder.as_str().len() + metadata_weight(metadata)
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

fn metadata_weight(metadata: &Metadata) -> usize {
    metadata.iter().map(|(key, value)| key.len() + value.len() + 10).sum()
}

pub(in crate::node) fn renewal_weight(renewal: &crate::lease::Renewal) -> usize {
    renewal.name.as_str().len() + 32
}

pub(in crate::node) fn waiter_weight(waiter: &crate::lease::WaiterId) -> usize {
    waiter.name.as_str().len() + waiter.holder.as_str().len() + 8
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::lease::{Acquire, Renewal, Stamp, WaiterId};
    use crate::token::FencingToken;
    use crate::types::{
        HolderId, LeaseName, MAX_HOLDER_BYTES, MAX_METADATA_BYTES, MAX_METADATA_ENTRIES, MAX_NAME_BYTES,
        MAX_REASON_BYTES, MAX_TTL_MS, Metadata, Ttl,
    };

    /// The largest command of each kind.
    fn largest() -> Vec<Command> {
        let name = || LeaseName::new("n".repeat(MAX_NAME_BYTES)).expect("valid");
        let holder = || HolderId::new("h".repeat(MAX_HOLDER_BYTES)).expect("valid");
        let token = FencingToken { term: u64::MAX, index: u64::MAX };
        let bytes = MAX_METADATA_BYTES / MAX_METADATA_ENTRIES - 2;
        let entry = |number: usize| (format!("{number:02}"), "v".repeat(bytes));
        let metadata = Metadata::new((0..MAX_METADATA_ENTRIES).map(entry).collect()).expect("it fits");
        let ttl = Ttl::millis(MAX_TTL_MS).expect("the longest ttl");
        let renewal = || Renewal { name: name(), token, ttl: Some(ttl) };
        let waiter = || WaiterId { name: name(), holder: holder() };
        let limits = Limits {
            max_leases: u64::MAX,
            max_waiters: u32::MAX,
            history: u32::MAX,
            ended_keep_ms: u64::MAX,
            ended_keep: u64::MAX,
            patience_ms: u64::MAX,
        };
        let (wait_ms, lock_delay_ms, limit) = (Some(u64::MAX), u64::MAX, u32::MAX);
        vec![
            Command::Acquire(Acquire { name: name(), holder: holder(), ttl, wait_ms, lock_delay_ms, limit, metadata }),
            Command::Renew { holder: holder(), leases: (0..200).map(|_| renewal()).collect() },
            Command::Release { name: name(), holder: holder(), token },
            Command::Revoke { name: name(), reason: "r".repeat(MAX_REASON_BYTES) },
            Command::HandOver { name: name(), holder: holder(), token, to: Some(holder()) },
            Command::KeepWaiting { waiters: (0..100).map(|_| waiter()).collect() },
            Command::LeaveQueue { waiter: waiter() },
            Command::Tick,
            Command::SetLimits(limits),
        ]
    }

    #[test]
    fn weight_is_at_least_the_encoded_size() {
        let stamp = Stamp { now: u64::MAX, wall_ms: u64::MAX };
        let bytes = |commands: Vec<Command>| Proposal::leases(&Batch { stamp, commands }).0.len();
        let empty = bytes(Vec::new());
        for command in largest() {
            let (taken, weighed) = (bytes(vec![command.clone()]) - empty, weight(&command));
            assert!(taken <= weighed, "{taken} bytes have weight {weighed}: {command:?}");
        }
    }

    #[tokio::test]
    async fn command_weighs_at_most_64_kib() {
        let revoke = |bytes: usize| {
            let empty = Command::Revoke { name: LeaseName::new("n").expect("valid"), reason: String::new() };
            let reason = "r".repeat(bytes - weight(&empty));
            Command::Revoke { name: LeaseName::new("n").expect("valid"), reason }
        };
        assert_eq!(weight(&revoke(65_536)), 65_536);
        let (proposer, jobs) = Proposer::new();
        assert_eq!(proposer.propose(revoke(65_536)).now_or_never(), None);
        assert_eq!(jobs.queue(|queue| queue.len(Class::Ordinary)), 1, "the command waits for an entry");
        let refused = proposer.propose(revoke(65_537)).now_or_never();
        assert_eq!(refused, Some(Err(ProposeError::Refused(RequestError::TooLarge))));
        assert_eq!(jobs.queue(|queue| queue.len(Class::Ordinary)), 1);
    }
}
