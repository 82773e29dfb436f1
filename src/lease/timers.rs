//! Timer is due when: the one index that time is driven by. Derived from the records, never stored.

use imbl::OrdSet;

use super::turn::Turn;
use crate::types::{ClusterMs, LeaseName};

/// Something that happens at a cluster time. Its order is the order in which things due together happen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScheduledTimer {
    /// The first stamp at which it happens: see [`Timer::first_stamp`].
    at: ClusterMs,
    pub name: LeaseName,
    pub timer: Timer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The grant with this token expires.
    Expiry(u64),
    /// The waiter with this ticket is out of time or patience.
    WaitEnds(u64),
    /// The lock delay is over.
    DelayEnds,
    /// A place is free, but this entry has granted the name already: the first waiter's turn is the next entry.
    Turn,
}

impl Timer {
    /// The first stamp at which a timer set for `at` fires.
    ///
    /// A stamp is rounded down: an entry stamped `at` can be up to 1 ms younger than `at` plus the moment at which the
    /// timer was set. Firing one stamp later keeps every duration at least as long as was acknowledged.
    fn first_stamp(self, at: ClusterMs) -> ClusterMs {
        match self {
            Timer::Expiry(_) | Timer::WaitEnds(_) | Timer::DelayEnds => at.saturating_add(1),
            Timer::Turn => at,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TimerQueue {
    timers: OrdSet<ScheduledTimer>,
    /// Names with a free place whose first waiter is not confirmed. All have the same deadline: the machine knows it.
    unconfirmed: OrdSet<LeaseName>,
}

impl TimerQueue {
    pub fn first(&self) -> Option<ClusterMs> {
        self.timers.get_min().map(|timer| timer.at)
    }

    pub fn add(&mut self, at: ClusterMs, name: &LeaseName, timer: Timer) {
        self.timers.insert(ScheduledTimer { at: timer.first_stamp(at), name: name.clone(), timer });
    }

    pub fn remove(&mut self, at: ClusterMs, name: &LeaseName, timer: Timer) {
        self.timers.remove(&ScheduledTimer { at: timer.first_stamp(at), name: name.clone(), timer });
    }

    /// Takes the first thing that is due at `now`.
    pub fn pop(&mut self, now: ClusterMs) -> Option<ScheduledTimer> {
        let first = self.timers.get_min().filter(|timer| timer.at <= now)?.clone();
        self.timers.remove(&first);
        Some(first)
    }

    /// Notes when the free place of a name goes to a waiter.
    pub fn set_turn(&mut self, now: ClusterMs, name: &LeaseName, turn: Option<Turn>) {
        match turn {
            Some(Turn::Next) => self.add(now, name, Timer::Turn),
            _ => self.remove(now, name, Timer::Turn),
        }
        match turn {
            Some(Turn::Unconfirmed) => self.unconfirmed.insert(name.clone()),
            _ => self.unconfirmed.remove(name),
        };
    }

    pub fn has_unconfirmed(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    pub fn is_unconfirmed(&self, name: &LeaseName) -> bool {
        self.unconfirmed.contains(name)
    }

    pub fn take_unconfirmed(&mut self) -> impl Iterator<Item = LeaseName> + use<> {
        std::mem::take(&mut self.unconfirmed).into_iter()
    }
}
