//! The waiters of one name: first come, first served.

use std::sync::Arc;

use imbl::OrdMap;

use super::retained;
use crate::types::{ClusterMs, HolderId, Metadata, Ttl};

/// The request of a holder: the machine makes the grant from it, now or after a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitRequest {
    pub holder: HolderId,
    pub ttl: Ttl,
    pub lock_delay_ms: u64,
    pub metadata: Metadata,
}

impl WaitRequest {
    /// Retained bytes: as many as of the grant made from it.
    pub fn bytes(&self) -> u64 {
        retained::retained_bytes(&self.holder, &self.metadata)
    }
}

/// One waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueEntry {
    pub request: WaitRequest,
    pub since: ClusterMs,
    pub since_wall_ms: u64,
    /// The last millisecond of its wait.
    pub until: ClusterMs,
    /// The last millisecond before the machine drops it as abandoned.
    pub confirmed_until: ClusterMs,
    /// Term of the last entry that confirmed the waiter; 0 if unknown.
    pub confirmed_term: u64,
}

impl QueueEntry {
    /// The last millisecond before the machine drops it.
    pub fn deadline(&self) -> ClusterMs {
        self.until.min(self.confirmed_until)
    }
}

/// The waiters of one name in the order of their tickets. Most names have none, so this takes one word of the record.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitQueue(Option<Box<WaiterSet>>);

#[derive(Clone, Debug, Default)]
struct WaiterSet {
    by_ticket: OrdMap<u64, Arc<QueueEntry>>,
    ticket_by_holder: OrdMap<HolderId, u64>,
    bytes: u64,
}

impl WaitQueue {
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |set| set.by_ticket.len())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Retained bytes, bounded by [`MAX_RETAINED_NAME_BYTES`](super::MAX_RETAINED_NAME_BYTES).
    pub fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |set| set.bytes)
    }

    pub fn first(&self) -> Option<(u64, &QueueEntry)> {
        let (ticket, entry) = self.0.as_ref()?.by_ticket.get_min()?;
        Some((*ticket, entry))
    }

    pub fn get(&self, ticket: u64) -> Option<&QueueEntry> {
        self.0.as_ref()?.by_ticket.get(&ticket).map(Arc::as_ref)
    }

    pub fn ticket_of(&self, holder: &HolderId) -> Option<u64> {
        self.0.as_ref()?.ticket_by_holder.get(holder).copied()
    }

    /// Number of waiters before this ticket. The cost is linear in the result.
    pub fn ahead_of(&self, ticket: u64) -> u32 {
        self.0.as_ref().map_or(0, |set| set.by_ticket.range(..ticket).count() as u32)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &QueueEntry)> {
        self.0.iter().flat_map(|set| set.by_ticket.iter()).map(|(ticket, entry)| (*ticket, entry.as_ref()))
    }

    /// Adds a waiter at the tail and returns its ticket.
    pub fn push(&mut self, entry: QueueEntry) -> u64 {
        // Tickets only order the queue, so the last waiter's ticket serves as the counter and snapshots store none.
        let last = self.0.as_ref().and_then(|set| set.by_ticket.get_max());
        let ticket = last.map_or(0, |(last, _)| last + 1);
        self.insert(ticket, entry);
        ticket
    }

    pub fn insert(&mut self, ticket: u64, entry: QueueEntry) {
        let set = self.0.get_or_insert_default();
        set.ticket_by_holder.insert(entry.request.holder.clone(), ticket);
        set.bytes += entry.request.bytes();
        if let Some(before) = set.by_ticket.insert(ticket, Arc::new(entry)) {
            set.bytes -= before.request.bytes();
        }
    }

    /// Changes a waiter and returns it. `change` must not change the holder: it is an index key.
    pub fn update(&mut self, ticket: u64, change: impl FnOnce(&mut QueueEntry)) -> Option<&QueueEntry> {
        let set = self.0.as_mut()?;
        let entry = set.by_ticket.get_mut(&ticket).map(Arc::make_mut)?;
        set.bytes -= entry.request.bytes();
        change(entry);
        set.bytes += entry.request.bytes();
        Some(entry)
    }

    pub fn remove(&mut self, ticket: u64) -> Option<QueueEntry> {
        let set = self.0.as_mut()?;
        let entry = Arc::unwrap_or_clone(set.by_ticket.remove(&ticket)?);
        set.bytes -= entry.request.bytes();
        set.ticket_by_holder.remove(&entry.request.holder);
        if set.by_ticket.is_empty() {
            self.0 = None;
        }
        Some(entry)
    }
}
