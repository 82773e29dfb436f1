//! What happened, in order, for those who watch: the last transitions of this replica, and a cursor for each watcher.
//!
//! A watcher costs a cursor, whatever it misses: events are kept once. One that falls behind what is kept is told so.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

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

/// The transitions that are kept.
pub(super) struct History {
    kept: Mutex<Kept>,
    /// Log index of the last applied entry.
    applied: watch::Sender<u64>,
}

struct Kept {
    transitions: VecDeque<Arc<Transition>>,
    /// Everything behind this index is kept.
    floor: u64,
}

/// A cursor. Delivers each transition once, in order.
pub struct Watch {
    history: Arc<History>,
    applied: watch::Receiver<u64>,
    after: (u64, u32),
}

impl History {
    pub fn new() -> History {
        let kept = Mutex::new(Kept { transitions: VecDeque::new(), floor: 0 });
        History { kept, applied: watch::Sender::new(0) }
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
    /// The next transition. Waits until there is one.
    pub async fn next(&mut self) -> Result<Arc<Transition>, Compacted> {
        loop {
            self.applied.borrow_and_update();
            if let Some(transition) = self.look()? {
                self.after = (transition.index, transition.part);
                return Ok(transition);
            }
            self.applied.changed().await.expect("the history that this cursor holds has the sender");
        }
    }

    /// A place from which a later watch misses nothing that this one has not delivered.
    pub fn position(&self) -> WatchPosition {
        let (index, part) = self.after;
        WatchPosition { index, part: (part != u32::MAX).then_some(part) }
    }

    fn look(&self) -> Result<Option<Arc<Transition>>, Compacted> {
        let kept = self.history.kept.lock();
        let (index, part) = self.after;
        // Behind a part of a forgotten entry there may have been more of it.
        if index < kept.floor || (index == kept.floor && part != u32::MAX && kept.floor > 0) {
            return Err(Compacted { oldest: kept.floor });
        }
        let next = kept.transitions.partition_point(|kept| (kept.index, kept.part) <= self.after);
        Ok(kept.transitions.get(next).cloned())
    }
}

#[cfg(test)]
mod tests {
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

    async fn take(watch: &mut Watch, count: usize) -> Vec<(u64, u32)> {
        let mut taken = Vec::new();
        for _ in 0..count {
            let transition = watch.next().await.expect("kept");
            taken.push((transition.index, transition.part));
        }
        taken
    }

    fn behind(index: u64) -> Option<WatchPosition> {
        Some(WatchPosition { index, part: None })
    }

    #[tokio::test]
    async fn a_watch_delivers_each_transition_once_and_in_order_across_resume() {
        let history = Arc::new(History::new());
        let mut early = history.watch(None).expect("nothing is forgotten");
        for index in 1..=3 {
            history.applied(index, &entry(index, 2));
        }
        let all = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)];
        assert_eq!(take(&mut early, 6).await, all);
        for cut in 0..6 {
            let mut first = history.watch(behind(0)).expect("kept");
            let mut taken = take(&mut first, cut).await;
            let mut second = history.watch(Some(first.position())).expect("kept");
            taken.extend(take(&mut second, 6 - cut).await);
            assert_eq!(taken, all, "resumed after {cut}");
        }
    }

    #[tokio::test]
    async fn a_watch_of_what_is_forgotten_says_compacted() {
        let history = Arc::new(History::new());
        let mut slow = history.watch(None).expect("nothing is forgotten");
        for index in 1..=KEPT_TRANSITIONS as u64 + 1 {
            history.applied(index, &entry(index, 1));
        }
        assert_eq!(slow.next().await.unwrap_err(), Compacted { oldest: 1 });
        assert!(history.watch(behind(0)).is_err());
        assert_eq!(take(&mut history.watch(behind(1)).expect("kept"), 1).await, [(2, 0)]);
        history.replaced(KEPT_TRANSITIONS as u64 + 50);
        assert!(history.watch(behind(9)).is_err());
        assert!(history.watch(behind(KEPT_TRANSITIONS as u64 + 50)).is_ok());
    }
}
