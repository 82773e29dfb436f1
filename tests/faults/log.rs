//! The cluster's log as those see it who watch: the transitions of all leases, put together from all watchers, each of
//! whom must have got every one of them once and in order.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tenure::api::Event;

/// A transition, and when the first watcher was told: it was committed by then.
#[derive(Clone, Debug)]
pub struct Seen {
    pub event: Event,
    pub at: Duration,
}

/// A place in the log: an entry's index, and which of its transitions.
type Place = (u64, u32);

#[derive(Default)]
struct Watcher {
    at: Place,
    /// Places that it was told are no longer kept, and so never got: behind the first, up to the second.
    gaps: Vec<(u64, u64)>,
}

/// A transition that not all watchers are beyond yet, and who got it.
struct Pending {
    event: Event,
    got: Vec<bool>,
}

pub struct Log {
    names: HashMap<String, Vec<Seen>>,
    watchers: Vec<Watcher>,
    pending: BTreeMap<Place, Pending>,
    /// Transitions that all watchers got.
    pub complete: u64,
}

impl Log {
    pub fn new(watchers: usize) -> Log {
        let watchers = (0..watchers).map(|_| Watcher::default()).collect();
        Log { names: HashMap::new(), watchers, pending: BTreeMap::new(), complete: 0 }
    }

    /// A watcher was told of a transition. Fails if that contradicts what it or another one was told.
    pub fn saw(&mut self, watcher: usize, event: Event, at: Duration) -> Result<(), String> {
        let place = (event.index, event.part);
        let before = std::mem::replace(&mut self.watchers[watcher].at, place);
        if place <= before {
            return Err(format!("watcher {watcher} got {place:?} behind {before:?}: {event:?}"));
        }
        let everybody = self.watchers.len();
        if let Some(first) = self.pending.get_mut(&place) {
            first.got[watcher] = true;
            if first.event != event {
                return Err(format!("watchers got at {place:?} {:?} and {event:?}", first.event));
            }
        } else if self
            .watchers
            .iter()
            .enumerate()
            .any(|(other, seen)| other != watcher && seen.at > place && !seen.lacks(place.0))
        {
            return Err(format!("another watcher than {watcher} is beyond {place:?} and did not get {event:?}"));
        } else {
            let got = (0..everybody).map(|other| other == watcher).collect();
            let seen = self.names.entry(event.name.clone()).or_default();
            let behind = seen.partition_point(|seen| (seen.event.index, seen.event.part) < place);
            seen.insert(behind, Seen { event: event.clone(), at });
            self.pending.insert(place, Pending { event, got });
        }
        self.settle()
    }

    /// A watcher was told that what lies behind its place, up to an index, is no longer kept anywhere.
    pub fn compacted(&mut self, watcher: usize, oldest: u64) {
        let watcher = &mut self.watchers[watcher];
        watcher.gaps.push((watcher.at.0, oldest));
        watcher.at = watcher.at.max((oldest, u32::MAX));
    }

    /// What everybody is beyond, everybody must have got.
    fn settle(&mut self) -> Result<(), String> {
        let slowest = self.watchers.iter().map(|watcher| watcher.at).min().unwrap_or_default();
        while let Some(first) = self.pending.first_entry().filter(|first| *first.key() <= slowest) {
            let (place, Pending { event, got }) = first.remove_entry();
            let missed = |(watcher, got): &(usize, bool)| !got && !self.watchers[*watcher].lacks(place.0);
            if let Some((watcher, _)) = got.into_iter().enumerate().find(missed) {
                return Err(format!("watcher {watcher} missed {place:?}: {event:?}"));
            }
            self.complete += 1;
        }
        Ok(())
    }

    /// Whether every watcher is beyond an index.
    pub fn is_beyond(&self, index: u64) -> bool {
        self.watchers.iter().all(|watcher| watcher.at >= (index, 0))
    }

    /// Where each watcher is.
    pub fn places(&self) -> Vec<u64> {
        self.watchers.iter().map(|watcher| watcher.at.0).collect()
    }

    pub fn of(&self, name: &str) -> &[Seen] {
        self.names.get(name).map_or(&[], Vec::as_slice)
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    pub fn forget(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Whether some transition may have come to nobody since the last call: of a gap no other watcher can tell.
    pub fn take_hole(&mut self) -> bool {
        let gaps: Vec<Vec<(u64, u64)>> = self.watchers.iter().map(|watcher| watcher.gaps.clone()).collect();
        let meet = |one: &(u64, u64), other: &(u64, u64)| one.0 < other.1 && other.0 < one.1;
        let hole = gaps.iter().flatten().any(|gap| gaps.iter().all(|other| other.iter().any(|other| meet(gap, other))));
        self.watchers.iter_mut().for_each(|watcher| watcher.gaps.retain(|(_, to)| *to >= watcher.at.0));
        hole
    }
}

impl Watcher {
    fn lacks(&self, index: u64) -> bool {
        self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&index))
    }
}

/// Who holds a lease after these transitions of it: the grants that have not ended.
pub fn held<'a>(seen: impl Iterator<Item = &'a Seen>) -> Vec<Seen> {
    let mut held: Vec<Seen> = Vec::new();
    for seen in seen {
        match seen.event.event {
            tenure::api::EventKind::Granted => held.push(seen.clone()),
            _ => held.retain(|grant| grant.event.token != seen.event.token || grant.event.holder != seen.event.holder),
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promises::evidence::{expired, granted};

    #[test]
    fn watchers_that_got_the_same_agree() {
        let mut log = Log::new(2);
        for watcher in [0, 1] {
            for seen in [granted(1, "a", 5), expired(2, "a", 5, 9)] {
                log.saw(watcher, seen.event, seen.at).expect("in order");
            }
        }
        assert_eq!((log.complete, log.of("job").len()), (2, 2));
        assert!(log.is_beyond(9) && !log.is_beyond(10));
        assert_eq!((held(log.of("job")[..1].iter()).len(), held(log.of("job").iter()).len()), (1, 0));
    }

    #[test]
    fn a_transition_that_one_watcher_missed_is_noticed() {
        let (first, second) = (granted(1, "a", 5).event, expired(2, "a", 5, 9).event);
        let mut log = Log::new(2);
        log.saw(0, first.clone(), Duration::ZERO).expect("fine");
        log.saw(0, second.clone(), Duration::ZERO).expect("fine");
        let missed = log.saw(1, second.clone(), Duration::ZERO).expect_err("watcher 1 never got the first");
        assert!(missed.contains("watcher 1 missed (5, 0)"), "{missed}");

        // The other way around: who was ahead did not get what comes later.
        let mut log = Log::new(2);
        log.saw(0, second, Duration::ZERO).expect("fine");
        assert!(log.saw(1, first, Duration::ZERO).is_err());
    }

    #[test]
    fn a_transition_that_comes_twice_or_late_or_changed_is_noticed() {
        let seen = granted(1, "a", 5).event;
        let mut log = Log::new(2);
        log.saw(0, seen.clone(), Duration::ZERO).expect("fine");
        assert!(log.saw(0, seen.clone(), Duration::ZERO).is_err(), "twice");
        assert!(log.saw(1, Event { holder: "b".into(), ..seen }, Duration::ZERO).is_err(), "changed");
    }

    #[test]
    fn what_is_no_longer_kept_is_missed_by_nobody_and_known_as_a_hole() {
        let (first, second) = (granted(1, "a", 5).event, expired(2, "a", 5, 9).event);
        let mut log = Log::new(2);
        log.saw(0, first, Duration::ZERO).expect("fine");
        log.compacted(1, 7);
        log.saw(0, second.clone(), Duration::ZERO).expect("fine");
        log.saw(1, second, Duration::ZERO).expect("the first was compacted");
        assert!(!log.take_hole(), "watcher 0 got it all");
        log.compacted(0, 20);
        log.compacted(1, 30);
        assert!(log.take_hole());
    }
}
