//! Records the operations of all clients on each lease: the request, the outcome and the times.
//!
//! One clock gives all times: the clock of this process, which no fault changes.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};

use super::judge::history::{Ended, History, Operation, RequestKind};
use super::judge::{ObservedQueue, Progress, reads_are_current};

/// Shorter gaps are normal between the answers of many clients.
const MIN_GAP: Duration = Duration::from_millis(50);

/// The time since the machine started.
pub fn now() -> Duration {
    SystemClock.elapsed()
}

/// The records of one lease.
#[derive(Default)]
pub struct LeaseRecord {
    pub history: History,
    pub queues: Vec<ObservedQueue>,
}

/// An operation without an outcome so far.
pub struct PendingOperation {
    name: LeaseName,
    place: usize,
    episode: u64,
    /// The highest log index that any client had seen when the operation began.
    floor: u64,
}

/// A period without an answer to any client.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerGap {
    pub from: Duration,
    pub until: Duration,
}

impl AnswerGap {
    pub fn lasted(&self) -> Duration {
        self.until.saturating_sub(self.from)
    }
}

#[derive(Default)]
pub struct Recorder {
    records: HashMap<LeaseName, LeaseRecord>,
    in_flight: BTreeMap<u64, usize>,
    highest: u64,
    pub highest_token: Option<FencingToken>,
    pub progress: Progress,
    /// Counts of operations by kind and outcome.
    pub counts: BTreeMap<(&'static str, String), u64>,
    last_done: Option<Duration>,
    gaps: Vec<AnswerGap>,
}

impl Recorder {
    pub fn begin(&mut self, episode: u64, by: &HolderId, name: &LeaseName, what: RequestKind) -> PendingOperation {
        *self.in_flight.entry(episode).or_default() += 1;
        let record = self.records.entry(name.clone()).or_default();
        let place = record.history.begin(by, name, what, now());
        PendingOperation { name: name.clone(), place, episode, floor: self.highest }
    }

    /// Records the outcome of an operation, and the log index that the answer shows, if any. Fails if that index is
    /// below one that a client had seen before the operation began.
    pub fn end(&mut self, pending: PendingOperation, ended: Ended, index: Option<u64>) -> Result<(), String> {
        let PendingOperation { name, place, episode, floor } = pending;
        *self.in_flight.get_mut(&episode).expect("the operation began") -= 1;
        let now = now();
        if let Ended::Held(token, _) = &ended {
            self.highest_token = self.highest_token.max(Some(*token));
        }
        let Some(record) = self.records.get_mut(&name) else { return Ok(()) };
        let what = word(&record.history.operations[place].what);
        *self.counts.entry((what, outcome(&ended))).or_default() += 1;
        if index.is_some() {
            self.answered(now);
        }
        let record = self.records.get_mut(&name).expect("it is in the map");
        record.history.end(place, ended, now);
        record.history.operations[place].index = index;
        let Some(index) = index else { return Ok(()) };
        self.highest = self.highest.max(index);
        self.progress.saw(index, now);
        reads_are_current::check_index(&record.history.operations[place], index, floor)
    }

    fn answered(&mut self, now: Duration) {
        if let Some(from) = self.last_done.replace(now) {
            let gap = AnswerGap { from, until: now };
            if gap.lasted() >= MIN_GAP {
                self.gaps.push(gap);
            }
        }
    }

    /// Records an observed wait queue, first waiter first.
    pub fn queue(&mut self, name: &LeaseName, queued: ObservedQueue) {
        self.records.entry(name.clone()).or_default().queues.push(queued);
    }

    /// The number of operations of an episode without an outcome.
    pub fn in_flight(&self, episode: u64) -> usize {
        self.in_flight.get(&episode).copied().unwrap_or(0)
    }

    /// The operations on a lease so far.
    pub fn operations_of(&self, name: &str) -> &[Operation] {
        let record = LeaseName::new(name).ok().and_then(|name| self.records.get(&name));
        record.map_or(&[], |record| record.history.operations.as_slice())
    }

    /// The names with this prefix.
    pub fn names(&self, prefix: &str) -> Vec<LeaseName> {
        self.records.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect()
    }

    /// Removes and returns the records of all names with this prefix.
    pub fn take(&mut self, prefix: &str) -> BTreeMap<LeaseName, LeaseRecord> {
        self.records.extract_if(|name, _| name.as_str().starts_with(prefix)).collect()
    }

    /// Removes and returns the gaps since the last call.
    pub fn take_gaps(&mut self) -> Vec<AnswerGap> {
        std::mem::take(&mut self.gaps)
    }

    pub fn operations(&self) -> u64 {
        self.counts.values().sum()
    }
}

pub fn word(what: &RequestKind) -> &'static str {
    match what {
        RequestKind::Acquire { wait_ms: Some(_), .. } => "acquire, waiting",
        RequestKind::Acquire { .. } => "acquire",
        RequestKind::Renew { .. } => "renew",
        RequestKind::Release { .. } => "release",
        RequestKind::HandOver { .. } => "hand over",
        RequestKind::UpdateMetadata { .. } => "update metadata",
        RequestKind::Revoke => "revoke",
        RequestKind::Read => "read",
    }
}

fn outcome(ended: &Ended) -> String {
    match ended {
        Ended::Held(..) | Ended::Saw(..) | Ended::Showed | Ended::Updated { .. } | Ended::Changed(true) => {
            "done".to_owned()
        }
        Ended::Changed(false) => "nothing to do".to_owned(),
        Ended::Refused(code) => code.clone(),
        Ended::Unknown => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_older_than_a_seen_index_is_an_error() {
        let (by, name) = (HolderId::new("a").expect("valid"), LeaseName::new("job").expect("valid"));
        let mut recorder = Recorder::default();
        let early = recorder.begin(1, &by, &name, RequestKind::Read);
        let first = recorder.begin(1, &by, &name, RequestKind::Read);
        recorder.end(first, Ended::Saw(Vec::new(), 9), Some(9)).expect("no client saw an index before");
        recorder.end(early, Ended::Saw(Vec::new(), 7), Some(7)).expect("it began before a client saw 9");
        let late = recorder.begin(1, &by, &name, RequestKind::Read);
        assert_eq!(recorder.in_flight(1), 1);
        recorder.end(late, Ended::Saw(Vec::new(), 8), Some(8)).expect_err("a client saw 9 before it began");
        assert_eq!(recorder.operations(), 3);
        assert_eq!(recorder.take("jo").len(), 1);
    }
}
