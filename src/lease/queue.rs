//! Who waits for one name: first come, first served.

use std::sync::Arc;

use imbl::OrdMap;

use super::kept;
use crate::types::{ClusterMs, HolderId, Metadata, Ttl};

/// Timer a grant is made from, now or when a waiter's turn comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub holder: HolderId,
    pub ttl: Ttl,
    pub lock_delay_ms: u64,
    pub metadata: Metadata,
}

impl Ask {
    /// Timer it counts against [`MAX_NAME_BYTES_KEPT`](super::MAX_NAME_BYTES_KEPT); as much as the grant made from it.
    pub fn bytes(&self) -> u64 {
        kept::bytes(&self.holder, &self.metadata)
    }
}

/// One waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub ask: Ask,
    pub since: ClusterMs,
    pub since_wall_ms: u64,
    /// The last millisecond of its wait.
    pub until: ClusterMs,
    /// The last millisecond in which it stays without a sign of interest.
    pub patience_until: ClusterMs,
    /// Term of the last entry that said that the waiter is there; 0 if that is not known.
    pub confirmed_term: u64,
}

impl Place {
    pub fn due(&self) -> ClusterMs {
        self.until.min(self.patience_until)
    }
}

/// The waiters of one name in the order of their tickets. Most names have none, and then it is one word.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue(Option<Box<Line>>);

#[derive(Clone, Debug, Default)]
struct Line {
    places: OrdMap<u64, Arc<Place>>,
    tickets: OrdMap<HolderId, u64>,
    bytes: u64,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |line| line.places.len())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Timer they count against [`MAX_NAME_BYTES_KEPT`](super::MAX_NAME_BYTES_KEPT).
    pub fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |line| line.bytes)
    }

    pub fn first(&self) -> Option<(u64, &Place)> {
        let (ticket, place) = self.0.as_ref()?.places.get_min()?;
        Some((*ticket, place))
    }

    pub fn get(&self, ticket: u64) -> Option<&Place> {
        self.0.as_ref()?.places.get(&ticket).map(Arc::as_ref)
    }

    pub fn ticket_of(&self, holder: &HolderId) -> Option<u64> {
        self.0.as_ref()?.tickets.get(holder).copied()
    }

    /// How many stand before this ticket. Linear in that number.
    pub fn ahead_of(&self, ticket: u64) -> u32 {
        self.0.as_ref().map_or(0, |line| line.places.range(..ticket).count() as u32)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Place)> {
        self.0.iter().flat_map(|line| line.places.iter()).map(|(ticket, place)| (*ticket, place.as_ref()))
    }

    /// Joins at the tail.
    pub fn push(&mut self, place: Place) -> u64 {
        // Tickets only order the queue: taking them from the last waiter leaves no counter to store.
        let last = self.0.as_ref().and_then(|line| line.places.get_max());
        let ticket = last.map_or(0, |(last, _)| last + 1);
        self.put(ticket, place);
        ticket
    }

    pub fn put(&mut self, ticket: u64, place: Place) {
        let line = self.0.get_or_insert_default();
        line.tickets.insert(place.ask.holder.clone(), ticket);
        line.bytes += place.ask.bytes();
        if let Some(before) = line.places.insert(ticket, Arc::new(place)) {
            line.bytes -= before.ask.bytes();
        }
    }

    /// Changes a place; only its holder must stay. Returns it as it is then.
    pub fn update(&mut self, ticket: u64, change: impl FnOnce(&mut Place)) -> Option<&Place> {
        let line = self.0.as_mut()?;
        let place = line.places.get_mut(&ticket).map(Arc::make_mut)?;
        line.bytes -= place.ask.bytes();
        change(place);
        line.bytes += place.ask.bytes();
        Some(place)
    }

    pub fn remove(&mut self, ticket: u64) -> Option<Place> {
        let line = self.0.as_mut()?;
        let place = Arc::unwrap_or_clone(line.places.remove(&ticket)?);
        line.bytes -= place.ask.bytes();
        line.tickets.remove(&place.ask.holder);
        if line.places.is_empty() {
            self.0 = None;
        }
        Some(place)
    }
}
