//! The state of the machine: a stored part and derived indexes. [`Machine::apply`] alone changes it.

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
/// Replicas that applied the same entries hold the same state, because [`apply`](Machine::apply) reads only its
/// arguments. A clone is O(1) and shares the records. Later applies do not change it, so a clone serves as a snapshot.
///
/// An operation costs O(log n) in the number of leases, holders and waiters.
#[derive(Clone, Debug)]
pub struct Machine {
    // Stored in snapshots.
    pub(super) now: ClusterMs,
    pub(super) applied: Option<FencingToken>,
    pub(super) limits: Limits,
    /// Cluster time of the first entry of the current term.
    pub(super) term_began: ClusterMs,
    pub(super) records: OrdMap<LeaseName, Arc<Record>>,
    // Derived from the fields above: `Rebuild` computes them again.
    pub(super) timers: TimerQueue,
    pub(super) tombstones: OrdMap<EndedAt, Tombstone>,
    pub(super) counts: Counts,
    /// Retained bytes of all ended grants, bounded by [`MAX_RETAINED_ENDED_BYTES`](super::MAX_RETAINED_ENDED_BYTES).
    pub(super) ended_bytes: u64,
    /// Names with a holder, a waiter or a lock delay.
    pub(super) live: u64,
}

/// The transition that ended a lease: index and part. The machine forgets ended leases in this order.
pub(super) type EndedAt = (u64, u32);

/// An ended lease that lists still show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tombstone {
    pub at: ClusterMs,
    pub name: LeaseName,
    pub token: u64,
}

/// Sizes of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Held grants. A counted lease counts once for each holder.
    pub held: u64,
    /// Waiters in all queues.
    pub waiting: u64,
    /// Names under a lock delay.
    pub delayed: u64,
    /// Ended leases that lists still show.
    pub ended: u64,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}

impl Machine {
    /// The state before the first entry. It has no parameters, so it is the same on every node.
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

    /// Applies one log entry and returns one outcome per command, in order.
    ///
    /// `position` is the entry's term and index, and the token of every grant that the entry makes. Timers that are due
    /// at the entry's time fire before its first command.
    ///
    /// # Panics
    ///
    /// If `position` is not above the position of the previous entry. A replica that continued would grant a token
    /// twice.
    pub fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects) {
        assert!(
            self.applied.is_none_or(|last| last.index < position.index && last.as_u64() < position.as_u64()),
            "entry {position:?} applied after {:?}: expected a higher position",
            self.applied
        );
        let mut entry = Entry::begin(self, position, batch.stamp);
        entry.expire_due();
        let outcomes: Vec<Outcome> = batch.commands.iter().map(|command| entry.apply_command(command)).collect();
        let effects = entry.finish();
        debug_assert_eq!(outcomes.len(), batch.commands.len(), "one outcome per command");
        (outcomes, effects)
    }

    /// Cluster time of the last entry. Never decreases.
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

    /// The earliest cluster time at which a tick changes the state:
    ///
    /// - an expiry,
    /// - the end of a waiter's wait or patience,
    /// - the end of a lock delay,
    /// - the end of the confirm window,
    /// - a grant that waits for the next entry: due now.
    ///
    /// A timer fires one millisecond after its deadline, because stamps are rounded down.
    ///
    /// An ended lease that is too old is not due: the next entry forgets it, and no promise needs it earlier.
    pub fn next_due(&self) -> Option<ClusterMs> {
        self.timers.first().into_iter().chain(self.window_due()).min()
    }

    /// Whether a timer is set. Then the leader must commit cluster time regularly, because the next leader starts from
    /// it.
    pub fn has_deadlines(&self) -> bool {
        self.next_due().is_some()
    }
}
