//! What happened, in order, for those who watch: the last transitions of this replica, and a cursor for each watcher.
//!
//! A watcher costs a cursor, whatever it misses: events are kept once. One that falls behind what is kept is told so.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lease::Transition;

/// Transitions that are kept for watchers that come back.
const KEPT_TRANSITIONS: usize = 100_000;

/// A place in the order of transitions: behind all of an entry's, or behind its part `part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchPosition {
    pub index: u64,
    pub part: Option<u32>,
}

/// The place asked for is no longer, or not yet, known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transitions up to log index {oldest} are no longer kept")]
pub struct Compacted {
    /// A watch can begin behind this index.
    pub oldest: u64,
}

/// Why a watch delivers nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    #[error(transparent)]
    Compacted(#[from] Compacted),
    /// Everything that it applied was delivered.
    #[error("the node has stopped")]
    Stopped,
}

/// The transitions that are kept.
pub(super) struct EventLog {
    kept: Mutex<Kept>,
    /// Log index of the last applied entry.
    applied: watch::Sender<u64>,
    /// The node's: nothing is applied any more.
    stop: CancellationToken,
}

struct Kept {
    transitions: VecDeque<Arc<Transition>>,
    /// Everything behind this index is kept.
    floor: u64,
}

/// A cursor. Delivers each transition once, in order.
pub struct Watch {
    history: Arc<EventLog>,
    applied: watch::Receiver<u64>,
    after: (u64, u32),
}

impl EventLog {
    pub fn new(stop: CancellationToken) -> EventLog {
        let kept = Mutex::new(Kept { transitions: VecDeque::new(), floor: 0 });
        EventLog { kept, applied: watch::Sender::new(0), stop }
    }

    pub fn applied(&self, index: u64, transitions: &[Transition]) {
        if !transitions.is_empty() {
            let mut kept = self.kept.lock();
            kept.transitions.extend(transitions.iter().cloned().map(Arc::new));
            while kept.transitions.len() > KEPT_TRANSITIONS {
                let forgotten = kept.transitions.pop_front().expect("more than none");
                kept.floor = forgotten.index;
            }
        }
        self.applied.send_if_modified(|applied| {
            *applied = index;
            // Entries without transitions wake nobody; a watcher learns of them with the next one that has some.
            !transitions.is_empty()
        });
    }

    /// The state was replaced: what led to it is unknown here.
    pub fn replaced(&self, index: u64) {
        let mut kept = self.kept.lock();
        kept.transitions.clear();
        kept.floor = index;
        drop(kept);
        self.applied.send_replace(index);
    }

    /// A cursor behind `after`, or behind all that is applied.
    pub fn watch(self: &Arc<Self>, after: Option<WatchPosition>) -> Result<Watch, Compacted> {
        let applied = self.applied.subscribe();
        let after = match after {
            Some(WatchPosition { index, part }) => (index, part.unwrap_or(u32::MAX)),
            None => (*applied.borrow(), u32::MAX),
        };
        let watch = Watch { history: self.clone(), applied, after };
        watch.look().map(|_| watch)
    }
}

impl Watch {
    /// The next transition. Waits until there is one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Arc<Transition>, WatchEnd> {
        loop {
            self.applied.borrow_and_update();
            if let Some((transition, is_last)) = self.look()? {
                self.after = (transition.index, if is_last { u32::MAX } else { transition.part });
                return Ok(transition);
            }
            tokio::select! {
                biased;
                changed = self.applied.changed() => changed.expect("the history that this cursor holds has the sender"),
                () = self.history.stop.cancelled() => return Err(WatchEnd::Stopped),
            }
        }
    }

    /// A place from which a later watch misses nothing that this one has not delivered.
    pub fn position(&self) -> WatchPosition {
        let (index, part) = self.after;
        WatchPosition { index, part: (part != u32::MAX).then_some(part) }
    }

    /// What comes next, and whether it is the last of its entry: all of an entry's become visible at once.
    fn look(&self) -> Result<Option<(Arc<Transition>, bool)>, Compacted> {
        let kept = self.history.kept.lock();
        let (index, part) = self.after;
        // Behind a part of a forgotten entry there may have been more of it.
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
            let transition = watch.next().now_or_never().expect("it has happened").expect("kept");
            taken.push((transition.index, transition.part));
        }
        taken
    }

    fn behind(index: u64) -> Option<WatchPosition> {
        Some(WatchPosition { index, part: None })
    }

    #[tokio::test]
    async fn a_watch_delivers_each_transition_once_and_in_order_across_resume() {
        let history = Arc::new(EventLog::new(CancellationToken::new()));
        let mut early = history.watch(None).expect("nothing is forgotten");
        for index in 1..=3 {
            history.applied(index, &entry(index, 2));
        }
        let all = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)];
        assert_eq!(take(&mut early, 6), all);
        assert_eq!(early.position(), WatchPosition { index: 3, part: None }, "the whole of the last entry");
        for cut in 0..6 {
            let mut first = history.watch(behind(0)).expect("kept");
            let mut taken = take(&mut first, cut);
            let mut second = history.watch(Some(first.position())).expect("kept");
            taken.extend(take(&mut second, 6 - cut));
            assert_eq!(taken, all, "resumed after {cut}");
        }
    }

    #[tokio::test]
    async fn a_watch_of_what_is_forgotten_says_compacted() {
        let history = Arc::new(EventLog::new(CancellationToken::new()));
        let mut slow = history.watch(None).expect("nothing is forgotten");
        for index in 1..=KEPT_TRANSITIONS as u64 + 1 {
            history.applied(index, &entry(index, 1));
        }
        assert_eq!(slow.next().await.unwrap_err(), WatchEnd::Compacted(Compacted { oldest: 1 }));
        assert!(history.watch(behind(0)).is_err());
        assert_eq!(take(&mut history.watch(behind(1)).expect("kept"), 1), [(2, 0)]);
        history.replaced(KEPT_TRANSITIONS as u64 + 50);
        assert!(history.watch(behind(9)).is_err());
        assert!(history.watch(behind(KEPT_TRANSITIONS as u64 + 50)).is_ok());
    }

    /// Entries have two parts, and one part of the oldest entry is forgotten.
    #[tokio::test]
    async fn watch_resumes_behind_an_entry_that_is_kept_in_part() {
        let history = Arc::new(EventLog::new(CancellationToken::new()));
        let entries = KEPT_TRANSITIONS as u64 / 2;
        for index in 1..=entries {
            history.applied(index, &entry(index, 2));
        }
        history.applied(entries + 1, &entry(entries + 1, 1));
        for part in [Some(0), Some(1)] {
            let inside = history.watch(Some(WatchPosition { index: 1, part }));
            assert_eq!(inside.err(), Some(Compacted { oldest: 1 }), "behind part {part:?}");
        }
        assert_eq!(history.watch(behind(0)).err(), Some(Compacted { oldest: 1 }));
        let mut oldest = history.watch(behind(1)).expect("the first place that can");
        assert_eq!(take(&mut oldest, 3), [(2, 0), (2, 1), (3, 0)]);
        let mut inside = history.watch(Some(WatchPosition { index: 2, part: Some(0) })).expect("it is kept whole");
        assert_eq!(take(&mut inside, 2), [(2, 1), (3, 0)]);
        assert_eq!(inside.position(), WatchPosition { index: 3, part: Some(0) });
    }

    #[tokio::test]
    async fn a_watch_of_a_node_that_stops_delivers_what_there_is_and_ends() {
        let stop = CancellationToken::new();
        let history = Arc::new(EventLog::new(stop.clone()));
        let mut watch = history.watch(None).expect("nothing is forgotten");
        history.applied(1, &entry(1, 2));
        stop.cancel();
        assert_eq!(take(&mut watch, 2), [(1, 0), (1, 1)]);
        assert_eq!(watch.next().await.unwrap_err(), WatchEnd::Stopped);
    }
}
