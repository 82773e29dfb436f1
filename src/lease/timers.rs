//! The timers of all records, in the order in which they fire. Derived from the records; snapshots do not store it.

use imbl::OrdSet;

use super::rules::Promotion;
use crate::types::{ClusterMs, LeaseName};

/// A timer set for a cluster time. Timers fire in the derived order: apply depends on it, so it is frozen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScheduledTimer {
    /// The first stamp at which it fires: see [`Timer::first_stamp`].
    at: ClusterMs,
    pub name: LeaseName,
    pub timer: Timer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The grant with this token expires.
    Expiry(u64),
    /// The longest wait or the confirmation of the waiter with this ticket ends.
    WaitEnds(u64),
    /// The lock delay ends.
    DelayEnds,
    /// A slot is free, but this entry has granted the name already. The next entry grants the slot to the first waiter.
    Promote,
}

impl Timer {
    /// The first stamp at which a timer set for `at` fires.
    ///
    /// Stamps are rounded down, so the time between two stamps can exceed the real time by almost 1 ms. A timer that
    /// fires one stamp later never shortens an acknowledged duration.
    fn first_stamp(self, at: ClusterMs) -> ClusterMs {
        match self {
            Timer::Expiry(_) | Timer::WaitEnds(_) | Timer::DelayEnds => at.saturating_add(1),
            Timer::Promote => at,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TimerQueue {
    timers: OrdSet<ScheduledTimer>,
    /// Number of the timers that are a [`Timer::Promote`].
    promotions: usize,
    /// Names with a free slot and an unconfirmed first waiter. All share the deadline
    /// [`Machine::window_end`](super::Machine).
    unconfirmed: OrdSet<LeaseName>,
}

impl TimerQueue {
    pub fn first(&self) -> Option<ClusterMs> {
        self.timers.get_min().map(|timer| timer.at)
    }

    pub fn add(&mut self, at: ClusterMs, name: &LeaseName, timer: Timer) {
        let before = self.timers.insert(ScheduledTimer { at: timer.first_stamp(at), name: name.clone(), timer });
        self.promotions += usize::from(timer == Timer::Promote && before.is_none());
    }

    pub fn remove(&mut self, at: ClusterMs, name: &LeaseName, timer: Timer) {
        self.remove_scheduled(&ScheduledTimer { at: timer.first_stamp(at), name: name.clone(), timer });
    }

    fn remove_scheduled(&mut self, scheduled: &ScheduledTimer) {
        let removed = self.timers.remove(scheduled);
        self.promotions -= usize::from(removed.is_some_and(|removed| removed.timer == Timer::Promote));
    }

    /// Removes and returns the first timer that is due at `now`.
    pub fn pop(&mut self, now: ClusterMs) -> Option<ScheduledTimer> {
        let first = self.timers.get_min().filter(|timer| timer.at <= now)?.clone();
        self.remove_scheduled(&first);
        Some(first)
    }

    /// Sets or clears the timers for the free slot of a name.
    pub fn set_promotion(&mut self, now: ClusterMs, name: &LeaseName, promotion: Option<Promotion>) {
        match promotion {
            Some(Promotion::Next) => self.add(now, name, Timer::Promote),
            _ if self.promotions > 0 => self.remove(now, name, Timer::Promote),
            _ => {}
        }
        match promotion {
            Some(Promotion::Unconfirmed) => self.unconfirmed.insert(name.clone()),
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
