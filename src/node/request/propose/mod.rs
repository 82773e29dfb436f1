//! Group commit: commands that arrive while entries are in flight share the next log entry and its disk sync.
//!
//! The commands wait for a log entry in two FIFO queues. Commands that keep or free a lease are *urgent* and go first.
//! A holder that cannot renew loses its lease, but a refused claim can be repeated. All other commands are *ordinary*,
//! and their wait is bounded. The queue refuses an ordinary command on arrival if its expected wait is too long, and
//! later if its real wait is too long. Both queues are also bounded in number and bytes.
//!
//! The queue reads no clock: the caller passes the current time.

#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "testing"))]
mod transcripts;
mod undecided;
mod weights;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(in crate::node) use weights::{renewal_weight, waiter_weight};

use crate::lease::{Batch, Command, HolderCommand, Limits, Outcome, Refusal};
use crate::node::leader::LeaderClock;
use crate::node::request::RequestError;
use crate::raft::{Applied, MAX_ENTRY_BYTES, Proposal, RaftHandle, WriteError};
use crate::storage::{Position, Storage};

use undecided::{EntryOrder, Undecided};
use weights::weight;

/// Most entries in flight. Two keep the disk and the network busy; more only make entries smaller.
const MAX_IN_FLIGHT: usize = 2;
/// Largest command, in bytes as estimated by [`weight`].
pub(in crate::node) const MAX_COMMAND_BYTES: usize = MAX_ENTRY_BYTES / 2;
/// Most commands in one entry.
const MAX_COMMANDS: usize = 1024;
/// Most commands in each queue.
const MAX_WAITING: usize = 32_768;
/// Most bytes of commands in each queue.
const MAX_WAITING_BYTES: usize = 32 << 20;
/// An ordinary command with a longer expected wait is refused on arrival.
const MAX_EXPECTED_WAIT: Duration = Duration::from_millis(400);
/// An ordinary command that has waited for this long is refused: earlier entries took longer than expected.
const MAX_WAIT: Duration = Duration::from_millis(800);

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

impl From<WriteError> for ProposeError {
    fn from(error: WriteError) -> ProposeError {
        match error {
            WriteError::NotLeader => ProposeError::NotLeader,
            WriteError::Unknown(reason) => ProposeError::Unknown(reason),
        }
    }
}

struct Job {
    /// The term in which this node accepted the command as the leader. It is not proposed in another term.
    term: u64,
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

    /// Queues a command as the leader of `term` at once. The future waits until this node has applied it.
    pub fn propose(&self, term: u64, command: Command) -> impl Future<Output = Result<AppliedOutcome, ProposeError>> {
        let weight = weight(&command);
        let (answer, answered) = oneshot::channel();
        let queued = if weight > MAX_COMMAND_BYTES {
            Err(RequestError::TooLarge)
        } else {
            self.enqueue(weight, Job { term, command, answer })
        };
        async move {
            queued.map_err(ProposeError::Refused)?;
            answered.await.unwrap_or_else(|_| Err(ProposeError::Unknown("the node stopped".into())))
        }
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

/// The priority of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum Class {
    Urgent,
    Ordinary,
}

impl Class {
    pub fn of(command: &Command) -> Class {
        match command {
            Command::Renew { .. }
            | Command::Release { .. }
            | Command::HandOver { .. }
            | Command::KeepWaiting { .. }
            | Command::LeaveQueue { .. }
            | Command::Tick
            | Command::SetLimits(_) => Class::Urgent,
            Command::Acquire(_) | Command::Revoke { .. } | Command::UpdateMetadata { .. } => Class::Ordinary,
            Command::As { command, .. } => match command {
                HolderCommand::Renew { .. } | HolderCommand::Release { .. } | HolderCommand::HandOver { .. } => {
                    Class::Urgent
                }
                HolderCommand::Acquire(_) | HolderCommand::UpdateMetadata { .. } => Class::Ordinary,
            },
        }
    }
}

/// The reason why the queue refuses a command. The command is certainly not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum Full {
    /// The expected wait is too long.
    TooSlow,
    /// The queue has reached its bound in number or bytes.
    TooMany,
}

pub(in crate::node) struct CommandQueue<J> {
    urgent: Fifo<J>,
    ordinary: Fifo<J>,
    latency: CommitLatency,
    /// Largest sum of the weights of the commands in one entry.
    entry_bytes: usize,
    /// Most entries in flight.
    max_in_flight: u32,
}

/// A command in the queue, or taken from it.
pub(in crate::node) struct QueuedCommand<J> {
    pub class: Class,
    pub since: Instant,
    pub weight: usize,
    pub job: J,
}

impl<J> CommandQueue<J> {
    pub fn new(entry_bytes: usize, max_in_flight: usize) -> CommandQueue<J> {
        let latency = CommitLatency::default();
        CommandQueue {
            urgent: Fifo::default(),
            ordinary: Fifo::default(),
            latency,
            entry_bytes,
            max_in_flight: max_in_flight as u32,
        }
    }

    /// Whether no command can go into an entry now.
    pub fn is_empty(&self) -> bool {
        self.urgent.waiting.is_empty() && self.ordinary.waiting.is_empty()
    }

    /// Number of queued commands of a class.
    pub fn len(&self, class: Class) -> usize {
        match class {
            Class::Urgent => self.urgent.len(),
            Class::Ordinary => self.ordinary.len(),
        }
    }

    /// Appends a command to the queue of its class.
    pub fn push(&mut self, class: Class, weight: usize, job: J, now: Instant) -> Result<(), Full> {
        if class == Class::Ordinary && self.expected_wait(now) > MAX_EXPECTED_WAIT {
            return Err(Full::TooSlow);
        }
        let fifo = self.fifo(class);
        if fifo.len() >= MAX_WAITING || fifo.bytes + weight > MAX_WAITING_BYTES {
            return Err(Full::TooMany);
        }
        fifo.bytes += weight;
        fifo.waiting.push_back(QueuedCommand { class, since: now, weight, job });
        Ok(())
    }

    /// Puts commands back to the front, in their order and regardless of the bounds.
    pub fn requeue(&mut self, again: Vec<QueuedCommand<J>>) {
        for waiting in again.into_iter().rev() {
            let fifo = self.fifo(waiting.class);
            fifo.bytes += waiting.weight;
            fifo.waiting.push_front(waiting);
        }
    }

    /// Holds ordinary commands back that were taken for an entry. They keep their room and their time limit.
    pub fn hold_back(&mut self, held: impl Iterator<Item = QueuedCommand<J>>) {
        for command in held {
            self.ordinary.bytes += command.weight;
            self.ordinary.held_back.push_back(command);
        }
    }

    /// Puts the commands that were held back to the front, in their order.
    pub fn end_hold(&mut self) {
        self.ordinary.end_hold();
    }

    /// Takes the commands of the next entry, the urgent ones first. Drops ordinary commands that are not `is_wanted`.
    pub fn take_entry(&mut self, is_wanted: impl Fn(&J) -> bool) -> Vec<QueuedCommand<J>> {
        let mut entry = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.urgent.pop_if_fits(entry.len(), &mut bytes, self.entry_bytes) {
            entry.push(next);
        }
        if !self.urgent.waiting.is_empty() {
            return entry;
        }
        while let Some(next) = self.ordinary.pop_if_fits(entry.len(), &mut bytes, self.entry_bytes) {
            if is_wanted(&next.job) {
                entry.push(next);
            } else {
                bytes -= next.weight;
            }
        }
        entry
    }

    /// Takes the ordinary commands that have waited for [`MAX_WAIT`].
    pub fn take_late(&mut self, now: Instant) -> Vec<J> {
        let mut late = Vec::new();
        while self.ordinary.oldest().is_some_and(|since| now - since >= MAX_WAIT) {
            late.extend(self.ordinary.pop_oldest().map(|waiting| waiting.job));
        }
        late
    }

    /// The time at which the oldest ordinary command will have waited for [`MAX_WAIT`].
    pub fn next_late(&self) -> Option<Instant> {
        self.ordinary.oldest().map(|since| since + MAX_WAIT)
    }

    /// Records that an entry was proposed.
    pub fn entry_sent(&mut self, now: Instant) {
        self.latency.in_flight.push_back(now);
    }

    /// Records that the entry proposed at `sent` was applied or has failed.
    pub fn entry_done(&mut self, sent: Instant, now: Instant) {
        if let Some(position) = self.latency.in_flight.iter().position(|at| *at == sent) {
            self.latency.in_flight.remove(position);
        }
        self.latency.last = now - sent;
    }

    /// Takes all commands.
    pub fn take_all(&mut self) -> Vec<J> {
        let fifos = [&mut self.urgent, &mut self.ordinary];
        let waiting = fifos.into_iter().flat_map(|fifo| {
            fifo.end_hold();
            std::mem::take(fifo).waiting
        });
        waiting.map(|waiting| waiting.job).collect()
    }

    /// Estimates the wait of an ordinary command that arrives now, from the duration of earlier entries.
    fn expected_wait(&self, now: Instant) -> Duration {
        let CommitLatency { last, in_flight } = &self.latency;
        let Some(oldest) = in_flight.front().filter(|_| in_flight.len() >= self.max_in_flight as usize) else {
            // An entry can be proposed at once, however long the last one took.
            return Duration::ZERO;
        };
        let age = now - *oldest;
        if age > MAX_EXPECTED_WAIT.max(2 * *last) {
            // The oldest entry is stalled: the best estimate of its remaining time is its age.
            return age;
        }
        let commands = self.urgent.len() + self.ordinary.len();
        let entries = (commands / MAX_COMMANDS).max((self.urgent.bytes + self.ordinary.bytes) / self.entry_bytes);
        age.max(*last) * (entries as u32 / self.max_in_flight)
    }

    fn fifo(&mut self, class: Class) -> &mut Fifo<J> {
        match class {
            Class::Urgent => &mut self.urgent,
            Class::Ordinary => &mut self.ordinary,
        }
    }
}

/// A FIFO queue of commands, with the sum of their weights.
struct Fifo<J> {
    /// Commands that no entry takes until [`end_hold`](Fifo::end_hold). They arrived before `waiting`.
    held_back: VecDeque<QueuedCommand<J>>,
    waiting: VecDeque<QueuedCommand<J>>,
    bytes: usize,
}

impl<J> Default for Fifo<J> {
    fn default() -> Fifo<J> {
        Fifo { held_back: VecDeque::new(), waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<J> Fifo<J> {
    fn len(&self) -> usize {
        self.held_back.len() + self.waiting.len()
    }

    fn end_hold(&mut self) {
        self.held_back.append(&mut self.waiting);
        std::mem::swap(&mut self.held_back, &mut self.waiting);
    }

    fn pop(&mut self) -> Option<QueuedCommand<J>> {
        let first = self.waiting.pop_front()?;
        self.bytes -= first.weight;
        Some(first)
    }

    fn pop_oldest(&mut self) -> Option<QueuedCommand<J>> {
        let Some(first) = self.held_back.pop_front() else { return self.pop() };
        self.bytes -= first.weight;
        Some(first)
    }

    fn oldest(&self) -> Option<Instant> {
        self.held_back.front().or(self.waiting.front()).map(|first| first.since)
    }

    /// Takes the next command if it fits into an entry that has `count` commands of `bytes`. An empty entry takes any
    /// command.
    fn pop_if_fits(&mut self, count: usize, bytes: &mut usize, entry_bytes: usize) -> Option<QueuedCommand<J>> {
        let first = self.waiting.front()?;
        let fits = count < MAX_COMMANDS && (count == 0 || *bytes + first.weight <= entry_bytes);
        fits.then(|| self.pop()).flatten().inspect(|taken| *bytes += taken.weight)
    }
}

/// The duration of entries from proposal to apply.
#[derive(Default)]
struct CommitLatency {
    /// Duration of the last finished entry.
    last: Duration,
    /// Proposal times of the entries in flight, oldest first.
    in_flight: VecDeque<Instant>,
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

    /// Takes the jobs of the next entry in a term; `None` if there are none. Holds claims back that are `undecided`, or
    /// that could overtake a claim of the entry.
    fn next_entry(&self, undecided: &Undecided, term: u64) -> Option<Vec<QueuedCommand<Job>>> {
        self.queue(|queue| {
            loop {
                // A claim without a caller is dropped: a grant would block the lease until its ttl is over.
                let mut entry = queue.take_entry(|job| !job.answer.is_closed());
                if entry.is_empty() {
                    return None;
                }
                // This node may have stopped leading and led again since it accepted a command. A refused claim must
                // hold no other claim back: no entry would end that hold.
                let earlier = entry.extract_if(.., |waiting| waiting.job.term != term);
                answer_all(earlier.map(|waiting| waiting.job), &ProposeError::NotLeader);
                let mut order = EntryOrder::default();
                queue.hold_back(entry.extract_if(.., |waiting| {
                    undecided.holds_back(&waiting.job.command) || order.holds_back(&waiting.job.command)
                }));
                if !entry.is_empty() {
                    return Some(entry);
                }
            }
        })
    }

    /// Records the end of the entry that was sent at `sent`, and queues its postponed jobs again. The jobs that may have
    /// waited for its outcome follow them.
    fn entry_done(&self, sent: Instant, ends_hold: bool, postponed: Vec<QueuedCommand<Job>>) {
        self.queue(|queue| {
            queue.entry_done(sent, Instant::now());
            if ends_hold {
                queue.end_hold();
            }
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
///
/// A claim that its entry postpones must not be overtaken. So later claims of its name wait until the outcome of the
/// entry is known, also a claim with a wait that shares its entry.
pub(in crate::node) async fn run<S: Storage>(
    jobs: JobReceiver,
    raft: Arc<RaftHandle<S>>,
    clock: LeaderClock,
    limits: Limits,
    stop: CancellationToken,
) {
    let mut in_flight = FuturesUnordered::new();
    let mut undecided = Undecided::default();
    let mut leads = clock.changes();
    loop {
        let leads_here = leads.borrow_and_update().is_some();
        if !leads_here {
            // Without a majority the entries in flight may never finish, so queued commands must not wait for them.
            answer_all(jobs.queue(CommandQueue::take_all), &ProposeError::NotLeader);
        }
        let next_late = jobs.queue(|queue| queue.next_late());
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some((sent, names, postponed)) = in_flight.next(), if !in_flight.is_empty() => {
                undecided.remove(&names);
                jobs.entry_done(sent, !names.is_empty(), postponed);
            }
            // At the limit of entries in flight, this round takes no command, but the next one waits until the first of them is late.
            () = jobs.0.changed.notified() => {}
            _ = leads.changed() => {}
            // A command can exceed its wait at that limit, or while it is held back: otherwise this round takes it.
            () = tokio::time::sleep_until(next_late.unwrap_or_else(Instant::now)), if next_late.is_some() => {}
        }
        jobs.refuse_late();
        // Without a term, the next round answers the commands: the clock has changed.
        while in_flight.len() < MAX_IN_FLIGHT
            && let Some(leader_term) = clock.leader_term()
            && let Some(mut batch) = jobs.next_entry(&undecided, leader_term.term)
        {
            if raft.replica().read(|state| state.machine.limits()) != limits {
                batch.insert(0, set_limits(leader_term.term, limits));
            }
            let (raft, stamp, sent) = (raft.clone(), clock.stamp(&leader_term), Instant::now());
            jobs.queue(|queue| queue.entry_sent(sent));
            let names = undecided.add(batch.iter().map(|waiting| &waiting.job.command));
            in_flight.push(async move { (sent, names, propose(raft, leader_term.term, stamp, batch).await) });
        }
    }
}

/// Returns a job without a caller.
fn set_limits(term: u64, limits: Limits) -> QueuedCommand<Job> {
    let command = Command::SetLimits(limits);
    let (class, weight) = (Class::of(&command), weight(&command));
    QueuedCommand { class, since: Instant::now(), weight, job: Job { term, command, answer: oneshot::channel().0 } }
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
        job: Job { term, command, answer },
    };
    let jobs = batch.commands.into_iter().zip(rest).map(join);
    let no_outcome = match proposed {
        Some(Ok((position, Applied(outcomes)))) => return answer_each(jobs.collect(), position, outcomes),
        Some(Err(error)) => ProposeError::from(error),
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
