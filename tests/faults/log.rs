//! The transitions of all leases, combined from the event streams of all watchers. Each watcher must receive every
//! transition once and in order.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tenure::api::Event;
use tenure::token::FencingToken;

use super::judge::Transition;

/// A position in the log: the index of an entry, and the number of a transition in that entry.
type Position = (u64, u32);

#[derive(Default)]
struct Watcher {
    at: Position,
    /// Ranges of compacted log that the watcher did not receive: after the first index, up to the second.
    gaps: Vec<(u64, u64)>,
}

/// A transition that some watchers have not reached yet, and which watchers received it.
struct Pending {
    event: Event,
    got: Vec<bool>,
}

pub struct Log {
    names: HashMap<String, Vec<Transition>>,
    watchers: Vec<Watcher>,
    pending: BTreeMap<Position, Pending>,
    /// The number of transitions that all watchers received.
    pub complete: u64,
    pub highest_token: Option<FencingToken>,
}

impl Log {
    pub fn new(watchers: usize) -> Log {
        let watchers = (0..watchers).map(|_| Watcher::default()).collect();
        Log { names: HashMap::new(), watchers, pending: BTreeMap::new(), complete: 0, highest_token: None }
    }

    /// Records an event of a watcher. Fails if it contradicts an earlier event of this or of another watcher.
    pub fn saw(&mut self, watcher: usize, event: Event, at: Duration) -> Result<(), String> {
        let position = (event.index, event.part);
        self.highest_token = self.highest_token.max(Some(event.token));
        let before = std::mem::replace(&mut self.watchers[watcher].at, position);
        if position <= before {
            return Err(format!("watcher {watcher} received {position:?} after {before:?}: {event:?}"));
        }
        let watchers = self.watchers.len();
        if let Some(first) = self.pending.get_mut(&position) {
            first.got[watcher] = true;
            if first.event != event {
                return Err(format!(
                    "two watchers received different events at {position:?}: {:?} and {event:?}",
                    first.event
                ));
            }
        } else if self
            .watchers
            .iter()
            .enumerate()
            .any(|(other, seen)| other != watcher && seen.at > position && !seen.has_gap_at(position.0))
        {
            return Err(format!("watcher {watcher} received {event:?}, and a watcher beyond {position:?} did not"));
        } else {
            let got = (0..watchers).map(|other| other == watcher).collect();
            let seen = self.names.entry(event.name.clone()).or_default();
            let behind = seen.partition_point(|seen| seen.position() < position);
            seen.insert(behind, Transition::of_watch(&event, at));
            self.pending.insert(position, Pending { event, got });
        }
        self.complete_passed()
    }

    /// Records that the log between the position of a watcher and `oldest` is compacted on every node.
    pub fn compacted(&mut self, watcher: usize, oldest: u64) {
        let watcher = &mut self.watchers[watcher];
        watcher.gaps.push((watcher.at.0, oldest));
        watcher.at = watcher.at.max((oldest, u32::MAX));
    }

    /// Completes the transitions that all watchers have passed. Fails if a watcher did not receive one of them.
    fn complete_passed(&mut self) -> Result<(), String> {
        let slowest = self.watchers.iter().map(|watcher| watcher.at).min().unwrap_or_default();
        while let Some(first) = self.pending.first_entry().filter(|first| *first.key() <= slowest) {
            let (position, Pending { event, got }) = first.remove_entry();
            let missed = |(watcher, got): &(usize, bool)| !got && !self.watchers[*watcher].has_gap_at(position.0);
            if let Some((watcher, _)) = got.into_iter().enumerate().find(missed) {
                return Err(format!("watcher {watcher} missed {position:?}: {event:?}"));
            }
            self.complete += 1;
        }
        Ok(())
    }

    /// Whether every watcher has reached this index.
    pub fn is_beyond(&self, index: u64) -> bool {
        self.watchers.iter().all(|watcher| watcher.at >= (index, 0))
    }

    /// The log index of each watcher.
    pub fn indices(&self) -> Vec<u64> {
        self.watchers.iter().map(|watcher| watcher.at.0).collect()
    }

    pub fn of(&self, name: &str) -> &[Transition] {
        self.names.get(name).map_or(&[], Vec::as_slice)
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    pub fn forget(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Whether no watcher received some transition since the last call: a compacted range is common to all watchers.
    pub fn take_common_gap(&mut self) -> bool {
        let gaps: Vec<Vec<(u64, u64)>> = self.watchers.iter().map(|watcher| watcher.gaps.clone()).collect();
        let meet = |one: &(u64, u64), other: &(u64, u64)| one.0 < other.1 && other.0 < one.1;
        let common_gap =
            gaps.iter().flatten().any(|gap| gaps.iter().all(|other| other.iter().any(|other| meet(gap, other))));
        self.watchers.iter_mut().for_each(|watcher| watcher.gaps.retain(|(_, to)| *to >= watcher.at.0));
        common_gap
    }
}

impl Watcher {
    fn has_gap_at(&self, index: u64) -> bool {
        self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&index))
    }
}

/// The event that a watcher received for a transition.
#[cfg(test)]
pub fn event(transition: &Transition) -> Event {
    let Transition { event, cause, index, part, name, holder, token, .. } = transition;
    let value = serde_json::json!({
        "event": event, "cause": cause, "index": index, "part": part, "name": name, "holder": holder,
        "token": token.to_string(), "at": "2026-01-01T00:00:00.000Z",
    });
    serde_json::from_value(value).expect("an event")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::held;
    use crate::judge::samples::{expired, granted};

    #[test]
    fn watchers_with_the_same_events_agree() {
        let mut log = Log::new(2);
        for watcher in [0, 1] {
            for seen in [granted(1, "a", 5), expired(2, "a", 5, 9)] {
                log.saw(watcher, event(&seen), seen.at).expect("in order");
            }
        }
        assert_eq!((log.complete, log.of("job").len()), (2, 2));
        assert!(log.is_beyond(9) && !log.is_beyond(10));
        assert_eq!((held(&log.of("job")[..1]).len(), held(log.of("job")).len()), (1, 0));
    }

    #[test]
    fn missed_transition_is_detected() {
        let (first, second) = (event(&granted(1, "a", 5)), event(&expired(2, "a", 5, 9)));
        let mut log = Log::new(2);
        log.saw(0, first.clone(), Duration::ZERO).expect("in order");
        log.saw(0, second.clone(), Duration::ZERO).expect("in order");
        let missed = log.saw(1, second.clone(), Duration::ZERO).expect_err("watcher 1 did not receive the first event");
        assert!(missed.contains("watcher 1 missed (5, 0)"), "{missed}");

        // In the other order: the watcher that was ahead did not receive a later event.
        let mut log = Log::new(2);
        log.saw(0, second, Duration::ZERO).expect("in order");
        assert!(log.saw(1, first, Duration::ZERO).is_err());
    }

    #[test]
    fn repeated_or_changed_transition_is_detected() {
        let seen = event(&granted(1, "a", 5));
        let mut log = Log::new(2);
        log.saw(0, seen.clone(), Duration::ZERO).expect("in order");
        assert!(log.saw(0, seen.clone(), Duration::ZERO).is_err(), "twice");
        let mut changed = seen;
        changed.holder = "b".into();
        assert!(log.saw(1, changed, Duration::ZERO).is_err(), "changed");
    }

    #[test]
    fn compacted_log_is_a_gap_and_not_a_miss() {
        let (first, second) = (event(&granted(1, "a", 5)), event(&expired(2, "a", 5, 9)));
        let mut log = Log::new(2);
        log.saw(0, first, Duration::ZERO).expect("in order");
        log.compacted(1, 7);
        log.saw(0, second.clone(), Duration::ZERO).expect("in order");
        log.saw(1, second, Duration::ZERO).expect("the first was compacted");
        assert!(!log.take_common_gap(), "watcher 0 received both events");
        log.compacted(0, 20);
        log.compacted(1, 30);
        assert!(log.take_common_gap());
    }
}
