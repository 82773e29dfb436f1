//! Watches: the last transitions of this replica in order, and a cursor for each watcher.
//!
//! All watchers share one copy of the transitions, so a slow watcher costs no memory. A watcher gets [`Compacted`] if
//! transitions that it has not seen are dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lease::{Machine, Transition};
use crate::raft::{AppliedEntry, ApplyObserver};

/// Number of transitions kept for slow and resumed watchers.
const KEPT_TRANSITIONS: usize = 100_000;

/// A position in the order of transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchPosition {
    /// Log index of an entry.
    pub index: u64,
    /// The position is after this transition of the entry, or after all of them if `None`.
    pub part: Option<u32>,
}

/// This node does not keep every transition after the requested position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transitions up to log index {oldest} are no longer kept")]
pub struct Compacted {
    /// A watch can start after this log index.
    pub oldest: u64,
}

/// The reason why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// Transitions that the watch has not delivered are dropped.
    #[error(transparent)]
    Compacted(#[from] Compacted),
    /// The node stops. It can apply further transitions until its end: go on at another node after the last event.
    #[error("the node has stopped")]
    Stopped,
}

/// The last [`KEPT_TRANSITIONS`] transitions.
pub(super) struct EventLog {
    kept: Mutex<RetainedEvents>,
    /// Log index of the last applied entry.
    applied: watch::Sender<u64>,
    /// Cancelled when the node begins to stop.
    stop: CancellationToken,
}

struct RetainedEvents {
    transitions: VecDeque<Arc<Transition>>,
    /// Every transition after this log index is kept.
    floor: u64,
}

/// A cursor that delivers each transition once, in order. See [`Node::watch`](crate::node::Node::watch).
pub struct Watch {
    events: Arc<EventLog>,
    applied: watch::Receiver<u64>,
    after: (u64, u32),
}

impl EventLog {
    pub fn new(stop: CancellationToken) -> EventLog {
        let kept = Mutex::new(RetainedEvents { transitions: VecDeque::new(), floor: 0 });
        EventLog { kept, applied: watch::Sender::new(0), stop }
    }

    fn add(&self, index: u64, transitions: &[Transition]) {
        if !transitions.is_empty() {
            let mut kept = self.kept.lock();
            kept.transitions.extend(transitions.iter().cloned().map(Arc::new));
            while kept.transitions.len() > KEPT_TRANSITIONS {
                let forgotten = kept.transitions.pop_front().expect("more than KEPT_TRANSITIONS are kept");
                kept.floor = forgotten.index;
            }
        }
        self.applied.send_if_modified(|applied| {
            *applied = index;
            // Only entries with transitions wake the watchers. A watcher sees the other ones at its next wake-up.
            !transitions.is_empty()
        });
    }

    /// Drops all transitions after a snapshot replaced the state at `index`. This node does not know the transitions in
    /// between.
    pub fn forget(&self, index: u64) {
        let mut kept = self.kept.lock();
        kept.transitions.clear();
        kept.floor = index;
        drop(kept);
        self.applied.send_replace(index);
    }

    /// Returns a cursor after `after`, or after the last applied entry.
    pub fn watch(self: &Arc<Self>, after: Option<WatchPosition>) -> Result<Watch, Compacted> {
        let is_from_now = after.is_none();
        let applied = self.applied.subscribe();
        let after = match after {
            Some(WatchPosition { index, part }) => (index, part.unwrap_or(u32::MAX)),
            None => (*applied.borrow(), u32::MAX),
        };
        let mut watch = Watch { events: self.clone(), applied, after };
        match watch.look() {
            // A snapshot has replaced the state meanwhile.
            Err(Compacted { oldest }) if is_from_now => watch.after = (oldest, u32::MAX),
            looked => drop(looked?),
        }
        Ok(watch)
    }
}

impl ApplyObserver for EventLog {
    fn applied(&self, entry: &AppliedEntry<'_>) {
        self.add(entry.position.index, &entry.effects.transitions);
    }

    fn replaced(&self, index: u64, _: &Machine) {
        self.forget(index);
    }
}

impl Watch {
    /// Waits for the next transition.
    ///
    /// # Errors
    ///
    /// [`WatchEnd`] if this node has dropped transitions that the watch has not delivered, or has stopped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no transition.
    pub async fn next(&mut self) -> Result<Arc<Transition>, WatchEnd> {
        loop {
            // Read before the look, which then finds the transitions of each entry up to this one.
            let applied = *self.applied.borrow_and_update();
            if let Some((transition, is_last)) = self.look()? {
                self.after = (transition.index, if is_last { u32::MAX } else { transition.part });
                return Ok(transition);
            }
            // Entries without transitions move the position, too. Otherwise the next snapshot would be ahead of it.
            self.after = self.after.max((applied, u32::MAX));
            tokio::select! {
                biased;
                changed = self.applied.changed() => changed.expect("the event log owns the sender"),
                () = self.events.stop.cancelled() => return Err(WatchEnd::Stopped),
            }
        }
    }

    /// Returns a position after the last delivered transition and before the next one. A call of [`next`](Watch::next)
    /// that finds no transition moves it to the last applied entry, also if the call is dropped.
    pub fn position(&self) -> WatchPosition {
        let (index, part) = self.after;
        WatchPosition { index, part: (part != u32::MAX).then_some(part) }
    }

    /// Returns the next transition, and whether it is the last one of its entry. All transitions of an entry become
    /// visible at once.
    fn look(&self) -> Result<Option<(Arc<Transition>, bool)>, Compacted> {
        let kept = self.events.kept.lock();
        let (index, part) = self.after;
        // The dropped entry at the floor may have had more parts than the last delivered one.
        if index < kept.floor || (index == kept.floor && part != u32::MAX && kept.floor > 0) {
            return Err(Compacted { oldest: kept.floor });
        }
        let place = kept.transitions.partition_point(|kept| (kept.index, kept.part) <= self.after);
        let Some(next) = kept.transitions.get(place) else { return Ok(None) };
        let is_last = kept.transitions.get(place + 1).is_none_or(|following| following.index != next.index);
        Ok(Some((next.clone(), is_last)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::lease::{Change, GrantCause};
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName};

    fn entry(index: u64, parts: u32) -> Vec<Transition> {
        let transition = |part| Transition {
            index,
            part,
            name: LeaseName::new("job").expect("valid"),
            holder: HolderId::new("a").expect("valid"),
            token: FencingToken { term: 1, index },
            change: Change::Granted(GrantCause::Asked),
            at: 0,
            wall_ms: 0,
        };
        (0..parts).map(transition).collect()
    }

    fn take(watch: &mut Watch, count: usize) -> Vec<(u64, u32)> {
        let mut taken = Vec::new();
        for _ in 0..count {
            let transition = watch.next().now_or_never().expect("it is applied").expect("it is kept");
            taken.push((transition.index, transition.part));
        }
        taken
    }

    fn behind(index: u64) -> Option<WatchPosition> {
        Some(WatchPosition { index, part: None })
    }

    #[tokio::test]
    async fn resumed_watch_delivers_each_transition_once_in_order() {
        let events = Arc::new(EventLog::new(CancellationToken::new()));
        let mut early = events.watch(None).expect("nothing is dropped");
        for index in 1..=3 {
            events.add(index, &entry(index, 2));
        }
        let all = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)];
        assert_eq!(take(&mut early, 6), all);
        assert_eq!(early.position(), WatchPosition { index: 3, part: None }, "after the whole last entry");
        for cut in 0..6 {
            let mut first = events.watch(behind(0)).expect("kept");
            let mut taken = take(&mut first, cut);
            let mut second = events.watch(Some(first.position())).expect("kept");
            taken.extend(take(&mut second, 6 - cut));
            assert_eq!(taken, all, "resumed after {cut}");
        }
    }

    #[tokio::test]
    async fn watch_of_dropped_transitions_is_compacted() {
        let events = Arc::new(EventLog::new(CancellationToken::new()));
        let mut slow = events.watch(None).expect("nothing is dropped");
        for index in 1..=KEPT_TRANSITIONS as u64 + 1 {
            events.add(index, &entry(index, 1));
        }
        assert_eq!(slow.next().await.unwrap_err(), WatchEnd::Compacted(Compacted { oldest: 1 }));
        assert!(events.watch(behind(0)).is_err());
        assert_eq!(take(&mut events.watch(behind(1)).expect("kept"), 1), [(2, 0)]);
        events.forget(KEPT_TRANSITIONS as u64 + 50);
        assert!(events.watch(behind(9)).is_err());
        assert!(events.watch(behind(KEPT_TRANSITIONS as u64 + 50)).is_ok());
    }

    /// The entry is applied between the two steps of the watch: it reads the last index, and looks for transitions.
    #[test]
    fn entry_that_is_applied_while_a_watch_looks_is_delivered() {
        let events = Arc::new(EventLog::new(CancellationToken::new()));
        let mut watch = events.watch(None).expect("nothing is dropped");
        let (begin, begun) = std::sync::mpsc::channel();
        let looking = std::thread::spawn(move || {
            begun.recv().expect("the test begins it");
            watch.next().now_or_never()
        });
        // The other thread cannot read the index meanwhile.
        events.applied.send_modify(|applied| {
            begin.send(()).expect("it waits");
            std::thread::sleep(Duration::from_millis(100));
            events.kept.lock().transitions.extend(entry(1, 1).into_iter().map(Arc::new));
            *applied = 1;
        });
        let delivered = looking.join().expect("no panic");
        assert!(matches!(&delivered, Some(Ok(transition)) if transition.index == 1), "{delivered:?}");
    }

    /// A snapshot sets the floor, and then the index of the last applied entry.
    #[test]
    fn watch_from_now_begins_at_a_snapshot_that_arrives() {
        let events = Arc::new(EventLog::new(CancellationToken::new()));
        events.kept.lock().floor = 5;
        let watch = events.watch(None).expect("it asks for no position");
        assert_eq!(watch.position(), WatchPosition { index: 5, part: None });
        assert_eq!(events.watch(behind(4)).err(), Some(Compacted { oldest: 5 }));
    }

    #[test]
    fn last_100_000_transitions_are_kept() {
        let events = Arc::new(EventLog::new(CancellationToken::new()));
        for index in 1..=100_000 {
            events.add(index, &entry(index, 1));
        }
        assert_eq!(take(&mut events.watch(behind(0)).expect("all are kept"), 2), [(1, 0), (2, 0)]);
        events.add(100_001, &entry(100_001, 1));
        assert_eq!(events.watch(behind(0)).err(), Some(Compacted { oldest: 1 }));
    }

    /// Entries have two parts, and one part of the oldest entry is dropped.
    #[tokio::test]
    async fn watch_resumes_after_a_partly_kept_entry() {
        let events = Arc::new(EventLog::new(CancellationToken::new()));
        let entries = KEPT_TRANSITIONS as u64 / 2;
        for index in 1..=entries {
            events.add(index, &entry(index, 2));
        }
        events.add(entries + 1, &entry(entries + 1, 1));
        for part in [Some(0), Some(1)] {
            let inside = events.watch(Some(WatchPosition { index: 1, part }));
            assert_eq!(inside.err(), Some(Compacted { oldest: 1 }), "after part {part:?}");
        }
        assert_eq!(events.watch(behind(0)).err(), Some(Compacted { oldest: 1 }));
        let mut oldest = events.watch(behind(1)).expect("the first resumable position");
        assert_eq!(take(&mut oldest, 3), [(2, 0), (2, 1), (3, 0)]);
        let mut inside =
            events.watch(Some(WatchPosition { index: 2, part: Some(0) })).expect("the whole entry is kept");
        assert_eq!(take(&mut inside, 2), [(2, 1), (3, 0)]);
        assert_eq!(inside.position(), WatchPosition { index: 3, part: Some(0) });
    }

    #[tokio::test]
    async fn watch_of_a_stopping_node_drains_and_ends() {
        let stop = CancellationToken::new();
        let events = Arc::new(EventLog::new(stop.clone()));
        let mut watch = events.watch(None).expect("nothing is dropped");
        events.add(1, &entry(1, 2));
        stop.cancel();
        assert_eq!(take(&mut watch, 2), [(1, 0), (1, 1)]);
        assert_eq!(watch.next().await.unwrap_err(), WatchEnd::Stopped);
    }

    /// The watch wakes up after both, the event and the stop.
    #[tokio::test]
    async fn waiting_watch_of_a_stopping_node_delivers_the_last_event() {
        let stop = CancellationToken::new();
        let events = Arc::new(EventLog::new(stop.clone()));
        let mut watch = events.watch(None).expect("nothing is dropped");
        let mut next = Box::pin(watch.next());
        assert!(next.as_mut().now_or_never().is_none(), "nothing is applied");
        events.add(1, &entry(1, 1));
        stop.cancel();
        let last = next.await.expect("the event comes before the end");
        assert_eq!((last.index, last.part), (1, 0));
        assert_eq!(watch.next().await.unwrap_err(), WatchEnd::Stopped);
    }
}
