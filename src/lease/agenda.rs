//! What is due when: the one index that time is driven by. Derived from the records, never stored.

use imbl::OrdSet;

use crate::types::{ClusterMs, LeaseName};

/// Something that happens at a cluster time. Its order is the order in which things due together happen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub at: ClusterMs,
    pub name: LeaseName,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// The grant with this token lapses.
    Lapse(u64),
    /// The waiter with this ticket is out of time or patience.
    WaitEnds(u64),
    /// The lock delay is over.
    DelayEnds,
    /// A place is free, but this entry has granted the name already: the first waiter's turn is the next entry.
    Turn,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Agenda(OrdSet<Due>);

impl Agenda {
    pub fn first(&self) -> Option<ClusterMs> {
        self.0.get_min().map(|due| due.at)
    }

    pub fn add(&mut self, at: ClusterMs, name: &LeaseName, what: What) {
        self.0.insert(Due { at, name: name.clone(), what });
    }

    pub fn remove(&mut self, at: ClusterMs, name: &LeaseName, what: What) {
        self.0.remove(&Due { at, name: name.clone(), what });
    }

    /// Takes the first thing that is due at `now`.
    pub fn pop(&mut self, now: ClusterMs) -> Option<Due> {
        let first = self.0.get_min().filter(|due| due.at <= now)?.clone();
        self.0.remove(&first);
        Some(first)
    }
}
