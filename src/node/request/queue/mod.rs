//! Commands that wait for an entry of the log, in two lines.
//!
//! What keeps or frees a lease is *urgent* and goes first: a holder that cannot renew loses what it has, while a
//! claim that is refused can be made again. What asks for more is *ordinary*. It is bounded by time: it is refused at
//! the door when it would have to wait for too long, and later if it then did wait for too long all the same. Both
//! lines are bounded in number and bytes as well.
//!
//! No clock is read here: the caller says when it is.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::Command;

/// Commands in one entry.
const MAX_COMMANDS: usize = 1024;
/// Commands that wait in one line.
const MAX_WAITING: usize = 32_768;
/// Bytes of commands that wait in one line.
const MAX_WAITING_BYTES: usize = 32 << 20;
/// An ordinary command that would have to wait for longer is refused at once.
const MAX_EXPECTED_WAIT: Duration = Duration::from_millis(400);
/// An ordinary command that has waited for this long is refused: what came before it took longer than expected.
const MAX_WAIT: Duration = Duration::from_millis(800);

/// Which line a command waits in.
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

/// Why a command is not taken. Certainly not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum Full {
    /// It would have to wait for too long.
    TooSlow,
    /// As many wait as may, or as many bytes.
    TooMany,
}

pub(in crate::node) struct Queue<J> {
    urgent: Line<J>,
    ordinary: Line<J>,
    pace: Pace,
    /// Largest sum of the weights of an entry's commands.
    entry_bytes: usize,
    /// Entries that may be on their way at once.
    in_flight: u32,
}

/// A command that waits, or has waited.
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

    /// How many wait in a line.
    pub fn len(&self, class: Class) -> usize {
        match class {
            Class::Urgent => self.urgent.waiting.len(),
            Class::Ordinary => self.ordinary.waiting.len(),
        }
    }

    /// Takes a command in, at the end of its line.
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

    /// Takes commands back, in front of those that came later, whatever the bounds.
    pub fn push_again(&mut self, again: Vec<QueuedCommand<J>>) {
        for waiting in again.into_iter().rev() {
            let line = self.line(waiting.class);
            line.bytes += waiting.weight;
            line.waiting.push_front(waiting);
        }
    }

    /// The commands of the next entry: the urgent ones first. Leaves out those of the ordinary line that `is_wanted`
    /// says nobody waits for any more. Empty if there are none.
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

    /// Ordinary commands that have waited for too long, taken out.
    pub fn take_late(&mut self, now: Instant) -> Vec<J> {
        let mut late = Vec::new();
        while self.ordinary.oldest().is_some_and(|since| now - since >= MAX_WAIT) {
            late.extend(self.ordinary.pop().map(|waiting| waiting.job));
        }
        late
    }

    /// When the next ordinary command will have waited for too long.
    pub fn next_late(&self) -> Option<Instant> {
        self.ordinary.oldest().map(|since| since + MAX_WAIT)
    }

    /// An entry went on its way.
    pub fn entry_sent(&mut self, now: Instant) {
        self.pace.on_their_way.push_back(now);
    }

    /// The entry that went on its way then came through, or was given up.
    pub fn entry_done(&mut self, sent: Instant, now: Instant) {
        if let Some(place) = self.pace.on_their_way.iter().position(|at| *at == sent) {
            self.pace.on_their_way.remove(place);
        }
        self.pace.last = now - sent;
    }

    /// Everything that waits, taken out.
    pub fn take_all(&mut self) -> Vec<J> {
        let lines = [&mut self.urgent, &mut self.ordinary];
        let waiting = lines.into_iter().flat_map(|line| std::mem::take(line).waiting);
        waiting.map(|waiting| waiting.job).collect()
    }

    /// How long an ordinary command that comes now will wait to go on its way, as far as the entries before it tell.
    fn expected_wait(&self, now: Instant) -> Duration {
        let Pace { last, on_their_way } = &self.pace;
        let Some(oldest) = on_their_way.front().filter(|_| on_their_way.len() >= self.in_flight as usize) else {
            // It goes at once, however long the last one took.
            return Duration::ZERO;
        };
        let age = now - *oldest;
        if age > MAX_EXPECTED_WAIT.max(2 * *last) {
            // It hangs, and nobody knows for how long.
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

/// First come, first served.
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

    /// The next one, if an entry that has `count` commands of so many `bytes` takes it. An empty one takes any.
    fn take_if_fits(&mut self, count: usize, bytes: &mut usize, entry_bytes: usize) -> Option<QueuedCommand<J>> {
        let first = self.waiting.front()?;
        let fits = count < MAX_COMMANDS && (count == 0 || *bytes + first.weight <= entry_bytes);
        fits.then(|| self.pop()).flatten().inspect(|taken| *bytes += taken.weight)
    }
}

/// How long entries take.
#[derive(Default)]
struct Pace {
    last: Duration,
    /// When those that have not come through yet were sent.
    on_their_way: VecDeque<Instant>,
}

#[cfg(test)]
mod tests;
