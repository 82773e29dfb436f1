//! The last transitions of one name.

use std::collections::VecDeque;

use super::holders::{Grant, Holders};
use super::{Change, GrantCause, LeaseState, Transition};
use crate::token::FencingToken;
use crate::types::{ClusterMs, HolderId, LeaseName};

/// Oldest first. The only event of most leases is their grant; `OneGrant` derives this event from the grant.
#[derive(Clone, Debug)]
pub(super) enum NameHistory {
    /// The only event is the grant with this token, which is still held.
    OneGrant {
        token: u64,
        part: u32,
        cause: GrantCause,
    },
    #[expect(
        clippy::box_collection,
        reason = "every record has a history, and most have one event, so the enum is kept small"
    )]
    Events(Box<VecDeque<Event>>),
    Empty,
}

/// A [`Transition`] without the name: the name is the key of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub index: u64,
    pub part: u32,
    pub holder: HolderId,
    pub token: FencingToken,
    pub change: Change,
    pub at: ClusterMs,
    pub wall_ms: u64,
}

impl NameHistory {
    /// Builds a history from its events. `holders` are those of the same record.
    pub fn of(events: Vec<Event>, holders: &Holders) -> NameHistory {
        if let [Event { part, token, change: Change::Granted(cause), .. }] = events[..] {
            let token = token.as_u64();
            if holders.with_token(token).is_some() {
                return NameHistory::OneGrant { token, part, cause };
            }
        }
        if events.is_empty() { NameHistory::Empty } else { NameHistory::Events(Box::new(events.into())) }
    }

    /// Adds an event of `grant` and forgets the oldest events above `keep`. `holders` are those of the same record:
    /// they include a new grant and exclude an ended one.
    pub fn push(&mut self, event: Event, grant: &Grant, holders: &Holders, keep: usize) {
        if let (NameHistory::Empty, Change::Granted(cause)) = (&self, &event.change)
            && keep > 0
        {
            *self = NameHistory::OneGrant { token: event.token.as_u64(), part: event.part, cause: *cause };
            return;
        }
        let mut events = match std::mem::replace(self, NameHistory::Empty) {
            NameHistory::Events(events) => events,
            NameHistory::OneGrant { token, part, cause } => {
                let first = if grant.token.as_u64() == token { Some(grant) } else { holders.with_token(token) };
                let first = first.expect("OneGrant refers to a grant that has not ended");
                Box::new(VecDeque::from([Event::of_grant(first, part, cause)]))
            }
            NameHistory::Empty => Box::default(),
        };
        while !events.is_empty() && events.len() >= keep {
            events.pop_front();
        }
        if keep > 0 {
            events.push_back(event);
            *self = NameHistory::Events(events);
        }
    }

    pub fn len(&self) -> usize {
        match self {
            NameHistory::Empty => 0,
            NameHistory::Events(events) => events.len(),
            NameHistory::OneGrant { .. } => 1,
        }
    }

    /// All events, oldest first.
    pub fn events(&self, holders: &Holders) -> Vec<Event> {
        match self {
            NameHistory::Empty => Vec::new(),
            NameHistory::Events(events) => events.iter().cloned().collect(),
            NameHistory::OneGrant { token, part, cause } => {
                let grant = holders.with_token(*token).expect("OneGrant refers to a grant that has not ended");
                vec![Event::of_grant(grant, *part, *cause)]
            }
        }
    }

    /// How the grant with this token ended, if the history has its end.
    pub fn end_of(&self, holder: &HolderId, token: u64) -> Option<LeaseState> {
        let NameHistory::Events(events) = self else { return None };
        let of_this_grant = |event: &&Event| event.token.as_u64() == token && event.holder == *holder;
        events.iter().rev().filter(of_this_grant).find_map(|event| event.change.ended_as())
    }
}

impl Event {
    fn of_grant(grant: &Grant, part: u32, cause: GrantCause) -> Event {
        Event {
            index: grant.token.index,
            part,
            holder: grant.holder.clone(),
            token: grant.token,
            change: Change::Granted(cause),
            at: grant.granted_at,
            wall_ms: grant.granted_wall_ms,
        }
    }

    pub fn transition(&self, name: &LeaseName) -> Transition {
        Transition {
            index: self.index,
            part: self.part,
            name: name.clone(),
            holder: self.holder.clone(),
            token: self.token,
            change: self.change.clone(),
            at: self.at,
            wall_ms: self.wall_ms,
        }
    }

    pub fn granted_by(&self) -> Option<GrantCause> {
        match self.change {
            Change::Granted(cause) => Some(cause),
            _ => None,
        }
    }
}

impl Change {
    /// The final state of a lease that this change ends; `None` for a grant.
    pub fn ended_as(&self) -> Option<LeaseState> {
        match self {
            Change::Granted(_) => None,
            Change::Expired => Some(LeaseState::Expired),
            Change::Released => Some(LeaseState::Released),
            Change::Revoked { .. } => Some(LeaseState::Revoked),
            Change::HandedOver { .. } => Some(LeaseState::HandedOver),
            Change::Restored => Some(LeaseState::Restored),
        }
    }
}
