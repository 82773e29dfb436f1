//! The machine: what is stored, what is derived from it, and the one way in.

use std::sync::Arc;

use imbl::OrdMap;

use super::entry::Entry;
use super::record::Record;
use super::timers::TimerQueue;
use super::{Batch, Effects, Limits, Outcome};
use crate::token::FencingToken;
use crate::types::{ClusterMs, LeaseName};

/// The replicated lease state.
///
/// Deterministic: replicas that applied the same entries hold the same state, because [`apply`](Machine::apply)
/// reads nothing but its arguments. Cloning is cheap whatever the size, and a clone is a consistent view that later
/// applies do not touch: that is how a snapshot is taken.
///
/// An operation costs O(log n) in the number of leases, holders and waiters.
#[derive(Clone, Debug)]
pub struct Machine {
    // Stored: the byte image of a snapshot is made from these.
    pub(super) now: ClusterMs,
    pub(super) applied: Option<FencingToken>,
    pub(super) limits: Limits,
    /// Cluster time of the first entry of the present term.
    pub(super) term_began: ClusterMs,
    pub(super) records: OrdMap<LeaseName, Arc<Record>>,
    // Derived from the above: a restored machine rebuilds them.
    pub(super) timers: TimerQueue,
    pub(super) tombstones: OrdMap<EndedAt, Tombstone>,
    pub(super) counts: Counts,
    /// Bytes of all ended grants, as they count against [`MAX_ENDED_BYTES_KEPT`](super::MAX_ENDED_BYTES_KEPT).
    pub(super) ended_bytes: u64,
    /// Names held, waited for or delayed.
    pub(super) live: u64,
}

/// The transition that ended a lease: index, part. Ended leases are forgotten in this order.
pub(super) type EndedAt = (u64, u32);

/// An ended lease that is still listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tombstone {
    pub at: ClusterMs,
    pub name: LeaseName,
    pub token: u64,
}

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Grants that are held; a counted lease counts once for each holder.
    pub held: u64,
    /// Waiters in all queues.
    pub waiting: u64,
    /// Names under a lock delay.
    pub delayed: u64,
    /// Ended leases that are still listed.
    pub ended: u64,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}

impl Machine {
    /// The state before the first entry. It takes no setting, so that it is the same on every node.
    pub fn new() -> Machine {
        Machine {
            now: 0,
            applied: None,
            limits: Limits::INITIAL,
            term_began: 0,
            records: OrdMap::new(),
            timers: TimerQueue::default(),
            tombstones: OrdMap::new(),
            counts: Counts::default(),
            ended_bytes: 0,
            live: 0,
        }
    }

    /// Applies one log entry and answers each of its commands, in order.
    ///
    /// `position` is the entry's term and index, and the token of every grant it makes. Timer is due at the entry's
    /// time happens before its first command. Panics if the position is not above that of the entry before, since a
    /// replica that goes on from there hands out a token twice.
    pub fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects) {
        assert!(
            self.applied.is_none_or(|last| last.index < position.index && last.as_u64() < position.as_u64()),
            "entry {position:?} applied after {:?}",
            self.applied
        );
        let mut entry = Entry::begin(self, position, batch.stamp);
        entry.expire_due();
        let outcomes: Vec<Outcome> = batch.commands.iter().map(|command| entry.apply_command(command)).collect();
        let effects = entry.finish();
        debug_assert_eq!(outcomes.len(), batch.commands.len(), "one outcome a command");
        (outcomes, effects)
    }

    /// Cluster time: that of the last entry, never decreasing.
    pub fn now(&self) -> ClusterMs {
        self.now
    }

    /// Position of the last entry.
    pub fn applied(&self) -> Option<FencingToken> {
        self.applied
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The earliest cluster time at which a tick changes something: an expiry, a waiter out of time or patience, the
    /// end of a lock delay, the end of the time for waiters to be confirmed, or a waiter whose turn was put off to the
    /// next entry (due now).
    ///
    /// A timer fires one millisecond after the last one that it covers, because stamps are rounded down.
    ///
    /// Forgetting ended leases is left out: it happens with whatever entry comes next, and no promise needs it.
    pub fn next_due(&self) -> Option<ClusterMs> {
        self.timers.first().into_iter().chain(self.window_due()).min()
    }

    /// Something has a deadline, so cluster time must be kept recent for the next leader to start from.
    pub fn has_deadlines(&self) -> bool {
        self.next_due().is_some()
    }
}
