//! The commands that wait for a log entry, in two FIFO queues.
//!
//! Commands that keep or free a lease are *urgent* and go first. A holder that cannot renew loses its lease, but a
//! refused claim can be repeated. All other commands are *ordinary*, and their wait is bounded. The queue refuses an
//! ordinary command on arrival if its expected wait is too long, and later if its real wait is too long. Both queues
//! are also bounded in number and bytes.
//!
//! The queue reads no clock: the caller passes the current time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::Command;

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

    pub fn is_empty(&self) -> bool {
        self.urgent.waiting.is_empty() && self.ordinary.waiting.is_empty()
    }

    /// Number of queued commands of a class.
    pub fn len(&self, class: Class) -> usize {
        match class {
            Class::Urgent => self.urgent.waiting.len(),
            Class::Ordinary => self.ordinary.waiting.len(),
        }
    }

    /// Appends a command to the queue of its class.
    pub fn push(&mut self, class: Class, weight: usize, job: J, now: Instant) -> Result<(), Full> {
        if class == Class::Ordinary && self.expected_wait(now) > MAX_EXPECTED_WAIT {
            return Err(Full::TooSlow);
        }
        let fifo = self.fifo(class);
        if fifo.waiting.len() >= MAX_WAITING || fifo.bytes + weight > MAX_WAITING_BYTES {
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
            late.extend(self.ordinary.pop().map(|waiting| waiting.job));
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
        let waiting = fifos.into_iter().flat_map(|fifo| std::mem::take(fifo).waiting);
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
        let commands = self.urgent.waiting.len() + self.ordinary.waiting.len();
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
    waiting: VecDeque<QueuedCommand<J>>,
    bytes: usize,
}

impl<J> Default for Fifo<J> {
    fn default() -> Fifo<J> {
        Fifo { waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<J> Fifo<J> {
    fn pop(&mut self) -> Option<QueuedCommand<J>> {
        let first = self.waiting.pop_front()?;
        self.bytes -= first.weight;
        Some(first)
    }

    fn oldest(&self) -> Option<Instant> {
        self.waiting.front().map(|first| first.since)
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

#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "testing"))]
mod transcripts;
