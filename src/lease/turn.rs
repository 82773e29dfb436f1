//! The waiter that gets a free slot of a lease.
//!
//! A queue outlives the leader; the open requests of its waiters do not. After a leader change a waiter can be dead,
//! and a dead waiter would hold a granted lease for a whole ttl. So a slot goes only to a waiter that is confirmed in
//! the current term. Its acquire confirms a waiter, and so does the leader that has its request. For an unconfirmed
//! first waiter the slot stays free until [`CONFIRM_WINDOW_MS`] after the first entry of the term. Then the machine
//! drops this waiter.

use super::entry::Entry;
use super::machine::Machine;
use super::queue::QueueEntry;
use super::record::Record;
use super::{DropCause, GrantCause};
use crate::types::{ClusterMs, LeaseName};

/// Time for a waiter to reach a new leader, in milliseconds of cluster time after the first entry of the leader's term.
///
/// Frozen: apply reads it, so replicas of builds with different values diverge.
pub const CONFIRM_WINDOW_MS: u64 = 1_000;

/// When a free slot goes to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// In the next entry: this entry has granted the name already.
    Next,
    /// When a request confirms the first waiter, or after the window.
    Unconfirmed,
}

impl Machine {
    /// The last millisecond in which a free slot stays reserved for an unconfirmed waiter.
    pub(super) fn window_end(&self) -> ClusterMs {
        self.term_began.saturating_add(CONFIRM_WINDOW_MS)
    }

    pub(super) fn window_is_over(&self) -> bool {
        self.window_end() < self.now
    }

    pub(super) fn is_confirmed(&self, waiter: &QueueEntry) -> bool {
        self.applied.is_some_and(|applied| applied.term == waiter.confirmed_term)
    }

    /// When a free slot of this name goes to its first waiter; `None` without a free slot or a waiter.
    pub(super) fn turn(&self, record: &Record) -> Option<Turn> {
        let (_, first) = record.queue.first().filter(|_| record.has_turn())?;
        let is_settled = self.is_confirmed(first) || self.window_is_over();
        Some(if is_settled { Turn::Next } else { Turn::Unconfirmed })
    }

    /// Cluster time at which the machine drops unconfirmed waiters, if a free slot is reserved for one.
    pub(super) fn window_due(&self) -> Option<ClusterMs> {
        self.timers.has_unconfirmed().then(|| self.window_end().saturating_add(1))
    }
}

impl Entry<'_> {
    /// Grants a free slot to the first waiter if it is confirmed. After the window, drops the unconfirmed waiters
    /// before the first confirmed one.
    pub(super) fn grant_free_slots(&mut self, name: &LeaseName) {
        while let Some(record) = self.record(name)
            && record.has_turn()
            && !self.is_granted_here(record)
        {
            let (limit, (ticket, first)) = (record.limit, record.queue.first().expect("has_turn implies a waiter"));
            if self.machine.is_confirmed(first) {
                let request = self.take_waiter(name, ticket).request;
                self.grant(name, limit, request, GrantCause::Queue);
            } else if self.machine.window_is_over() {
                self.drop_waiter(name, ticket, DropCause::Abandoned);
            } else {
                return;
            }
        }
    }
}
