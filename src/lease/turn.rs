//! Whose turn it is when a place is free.
//!
//! A queue outlives the leader, and the open requests of its waiters do not. After a change of leader a waiter can be
//! dead, and a dead waiter that is granted the lease keeps it for a whole ttl. So a place goes only to a waiter that was
//! confirmed in the present term: by its acquire, or by the leader that holds its request. If the first waiter was not,
//! the place stays free for it until [`CONFIRM_WINDOW_MS`] after the first entry of the term. Then the waiter loses its
//! place in the queue to the next one.

use super::entry::Entry;
use super::machine::Machine;
use super::queue::QueueEntry;
use super::record::Record;
use super::{DropCause, GrantCause};
use crate::types::{ClusterMs, LeaseName};

/// How long a waiter has to reach a new leader, in milliseconds of cluster time from the first entry of the leader's term.
///
/// Apply decides by it, so it is frozen: replicas of builds with different values diverge.
pub const CONFIRM_WINDOW_MS: u64 = 1_000;

/// When a free place goes to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// In the next entry: this one has granted the name already.
    Next,
    /// When the first waiter is confirmed, or the window is over.
    Unconfirmed,
}

impl Machine {
    /// The last millisecond in which an unconfirmed waiter keeps a free place.
    pub(super) fn window_end(&self) -> ClusterMs {
        self.term_began.saturating_add(CONFIRM_WINDOW_MS)
    }

    pub(super) fn window_is_over(&self) -> bool {
        self.window_end() < self.now
    }

    pub(super) fn is_confirmed(&self, waiter: &QueueEntry) -> bool {
        self.applied.is_some_and(|applied| applied.term == waiter.confirmed_term)
    }

    /// When a free place of this name goes to its first waiter; `None` if no place is free or no waiter is there.
    pub(super) fn turn(&self, record: &Record) -> Option<Turn> {
        let (_, first) = record.queue.first().filter(|_| record.has_turn())?;
        let is_settled = self.is_confirmed(first) || self.window_is_over();
        Some(if is_settled { Turn::Next } else { Turn::Unconfirmed })
    }

    /// Cluster time at which the waiters that are not confirmed lose their places, if a free place waits for one.
    pub(super) fn window_due(&self) -> Option<ClusterMs> {
        self.timers.has_unconfirmed().then(|| self.window_end().saturating_add(1))
    }
}

impl Entry<'_> {
    /// Gives a free place to the first waiter that is confirmed. Once the window is over, those before it are dropped.
    pub(super) fn grant_free_slots(&mut self, name: &LeaseName) {
        while let Some(record) = self.record(name)
            && record.has_turn()
            && !self.is_granted_here(record)
        {
            let (limit, (ticket, first)) = (record.limit, record.queue.first().expect("a turn is a waiter's"));
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
