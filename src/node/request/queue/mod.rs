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

pub(in crate::node) struct Queue<J> {
    urgent: Line<J>,
    ordinary: Line<J>,
    pace: Pace,
    /// Largest sum of the weights of the commands in one entry.
    entry_bytes: usize,
    /// Most entries in flight.
    in_flight: u32,
}

/// A command in the queue, or taken from it.
pub(in crate::node) struct QueuedCommand<J> {
    pub class: Class,
    pub since: Instant,
    pub weight: usize,
    pub job: J,
}

impl<J> Queue<J> {
    pub fn new(entry_bytes: usize, in_flight: usize) -> Queue<J> {
        let pace = Pace::default();
        Queue { urgent: Line::default(), ordinary: Line::default(), pace, entry_bytes, in_flight: in_flight as u32 }
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
        let line = self.line(class);
        if line.waiting.len() >= MAX_WAITING || line.bytes + weight > MAX_WAITING_BYTES {
            return Err(Full::TooMany);
        }
        line.bytes += weight;
        line.waiting.push_back(QueuedCommand { class, since: now, weight, job });
        Ok(())
    }

    /// Puts commands back to the front, in their order and regardless of the bounds.
    pub fn push_again(&mut self, again: Vec<QueuedCommand<J>>) {
        for waiting in again.into_iter().rev() {
            let line = self.line(waiting.class);
            line.bytes += waiting.weight;
            line.waiting.push_front(waiting);
        }
    }

    /// Takes the commands of the next entry, the urgent ones first. Drops ordinary commands that are not `is_wanted`.
    pub fn take_entry(&mut self, is_wanted: impl Fn(&J) -> bool) -> Vec<QueuedCommand<J>> {
        let mut entry = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.urgent.take_if_fits(entry.len(), &mut bytes, self.entry_bytes) {
            entry.push(next);
        }
        if !self.urgent.waiting.is_empty() {
            return entry;
        }
        while let Some(next) = self.ordinary.take_if_fits(entry.len(), &mut bytes, self.entry_bytes) {
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
        self.pace.on_their_way.push_back(now);
    }

    /// Records that the entry proposed at `sent` was applied or has failed.
    pub fn entry_done(&mut self, sent: Instant, now: Instant) {
        if let Some(place) = self.pace.on_their_way.iter().position(|at| *at == sent) {
            self.pace.on_their_way.remove(place);
        }
        self.pace.last = now - sent;
    }

    /// Takes all commands.
    pub fn take_all(&mut self) -> Vec<J> {
        let lines = [&mut self.urgent, &mut self.ordinary];
        let waiting = lines.into_iter().flat_map(|line| std::mem::take(line).waiting);
        waiting.map(|waiting| waiting.job).collect()
    }

    /// Estimates the wait of an ordinary command that arrives now, from the duration of earlier entries.
    fn expected_wait(&self, now: Instant) -> Duration {
        let Pace { last, on_their_way } = &self.pace;
        let Some(oldest) = on_their_way.front().filter(|_| on_their_way.len() >= self.in_flight as usize) else {
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
        age.max(*last) * (entries as u32 / self.in_flight)
    }

    fn line(&mut self, class: Class) -> &mut Line<J> {
        match class {
            Class::Urgent => &mut self.urgent,
            Class::Ordinary => &mut self.ordinary,
        }
    }
}

/// A FIFO queue of commands, with the sum of their weights.
struct Line<J> {
    waiting: VecDeque<QueuedCommand<J>>,
    bytes: usize,
}

impl<J> Default for Line<J> {
    fn default() -> Line<J> {
        Line { waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<J> Line<J> {
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
    fn take_if_fits(&mut self, count: usize, bytes: &mut usize, entry_bytes: usize) -> Option<QueuedCommand<J>> {
        let first = self.waiting.front()?;
        let fits = count < MAX_COMMANDS && (count == 0 || *bytes + first.weight <= entry_bytes);
        fits.then(|| self.pop()).flatten().inspect(|taken| *bytes += taken.weight)
    }
}

/// The duration of entries from proposal to apply.
#[derive(Default)]
struct Pace {
    /// Duration of the last finished entry.
    last: Duration,
    /// Proposal times of the entries in flight, oldest first.
    on_their_way: VecDeque<Instant>,
}

#[cfg(test)]
mod tests;
