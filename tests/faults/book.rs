//! Records the operations of all clients on each lease: the request, the outcome and the times.
//!
//! One clock gives all times: the clock of this process, which no fault changes.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::types::{HolderId, LeaseName};

use super::history::{Ended, History, Operation, What};
use super::progress::Progress;
use super::promises::Queued;

/// Shorter gaps are normal between the answers of many clients.
const NOTED_SILENCE: Duration = Duration::from_millis(50);

/// The time since the machine started.
pub fn now() -> Duration {
    SystemClock.elapsed()
}

/// The records of one lease.
#[derive(Default)]
pub struct Page {
    pub history: History,
    pub queues: Vec<Queued>,
}

/// An operation without an outcome so far.
pub struct Ticket {
    name: LeaseName,
    place: usize,
    episode: u64,
    /// The highest log index that any client had seen when the operation began.
    floor: u64,
}

/// A period without an answer to any client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    pub from: Duration,
    pub until: Duration,
}

impl Silence {
    pub fn lasted(&self) -> Duration {
        self.until.saturating_sub(self.from)
    }
}

#[derive(Default)]
pub struct Book {
    pages: HashMap<LeaseName, Page>,
    in_flight: BTreeMap<u64, usize>,
    highest: u64,
    pub progress: Progress,
    /// Counts of operations by kind and outcome.
    pub counts: BTreeMap<(&'static str, String), u64>,
    last_done: Option<Duration>,
    silences: Vec<Silence>,
}

impl Book {
    pub fn begin(&mut self, episode: u64, by: &HolderId, name: &LeaseName, what: What) -> Ticket {
        *self.in_flight.entry(episode).or_default() += 1;
        let page = self.pages.entry(name.clone()).or_default();
        let place = page.history.begin(by, name, what, now());
        Ticket { name: name.clone(), place, episode, floor: self.highest }
    }

    /// Records the outcome of an operation, and the log index that the answer shows, if any. Fails if that index is
    /// below one that a client had seen before the operation began.
    pub fn end(&mut self, ticket: Ticket, ended: Ended, index: Option<u64>) -> Result<(), String> {
        let Ticket { name, place, episode, floor } = ticket;
        *self.in_flight.get_mut(&episode).expect("the operation began") -= 1;
        let now = now();
        let Some(page) = self.pages.get_mut(&name) else { return Ok(()) };
        let what = word(&page.history.operations[place].what);
        *self.counts.entry((what, outcome(&ended))).or_default() += 1;
        if index.is_some() {
            self.answered(now);
        }
        let page = self.pages.get_mut(&name).expect("it is in the map");
        page.history.end(place, ended, now);
        page.history.operations[place].index = index;
        let Some(index) = index else { return Ok(()) };
        self.highest = self.highest.max(index);
        self.progress.saw(index, now);
        if index < floor {
            let operation = &page.history.operations[place];
            return Err(format!(
                "{operation:?} shows the log up to {index}; expected at least {floor}, which a client saw before"
            ));
        }
        Ok(())
    }

    fn answered(&mut self, now: Duration) {
        if let Some(from) = self.last_done.replace(now) {
            let silence = Silence { from, until: now };
            if silence.lasted() >= NOTED_SILENCE {
                self.silences.push(silence);
            }
        }
    }

    /// Records an observed wait queue, first waiter first.
    pub fn queue(&mut self, name: &LeaseName, queued: Queued) {
        self.pages.entry(name.clone()).or_default().queues.push(queued);
    }

    /// The number of operations of an episode without an outcome.
    pub fn in_flight(&self, episode: u64) -> usize {
        self.in_flight.get(&episode).copied().unwrap_or(0)
    }

    /// The operations on a lease so far.
    pub fn operations_of(&self, name: &str) -> &[Operation] {
        let page = LeaseName::new(name).ok().and_then(|name| self.pages.get(&name));
        page.map_or(&[], |page| page.history.operations.as_slice())
    }

    /// The names with this prefix.
    pub fn names(&self, prefix: &str) -> Vec<LeaseName> {
        self.pages.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect()
    }

    /// Removes and returns the records of all names with this prefix.
    pub fn take(&mut self, prefix: &str) -> BTreeMap<LeaseName, Page> {
        self.pages.extract_if(|name, _| name.as_str().starts_with(prefix)).collect()
    }

    /// Removes and returns the gaps since the last call.
    pub fn take_silences(&mut self) -> Vec<Silence> {
        std::mem::take(&mut self.silences)
    }

    pub fn operations(&self) -> u64 {
        self.counts.values().sum()
    }
}

pub fn word(what: &What) -> &'static str {
    match what {
        What::Acquire { wait: true, .. } => "acquire, waiting",
        What::Acquire { .. } => "acquire",
        What::Renew { .. } => "renew",
        What::Release { .. } => "release",
        What::HandOver { .. } => "hand over",
        What::Revoke => "revoke",
        What::Read => "read",
    }
}

fn outcome(ended: &Ended) -> String {
    match ended {
        Ended::Held(..) | Ended::Saw(..) | Ended::Changed(true) => "done".to_owned(),
        Ended::Changed(false) => "nothing to do".to_owned(),
        Ended::Refused(code) => code.clone(),
        Ended::Unknown => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_from_before_what_was_seen_is_noticed() {
        let (by, name) = (HolderId::new("a").expect("valid"), LeaseName::new("job").expect("valid"));
        let mut book = Book::default();
        let early = book.begin(1, &by, &name, What::Read);
        let first = book.begin(1, &by, &name, What::Read);
        book.end(first, Ended::Saw(Vec::new(), 9), Some(9)).expect("no client saw an index before");
        book.end(early, Ended::Saw(Vec::new(), 7), Some(7)).expect("it began before a client saw 9");
        let late = book.begin(1, &by, &name, What::Read);
        assert_eq!(book.in_flight(1), 1);
        book.end(late, Ended::Saw(Vec::new(), 8), Some(8)).expect_err("a client saw 9 before it began");
        assert_eq!(book.operations(), 3);
        assert_eq!(book.take("jo").len(), 1);
    }
}
