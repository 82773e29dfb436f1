//! The grant or the end of a lease, as an observer saw it.

use std::time::Duration;

use tenure::api::{Event, EventKind, GrantCause};
use tenure::lease::{self, Change};
use tenure::token::FencingToken;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub event: EventKind,
    /// The cause of a grant.
    pub cause: Option<GrantCause>,
    /// The log index, and the number among the transitions of that entry.
    pub index: u64,
    pub part: u32,
    pub name: String,
    pub holder: String,
    pub token: FencingToken,
    /// When the observer saw it. It was committed by then.
    pub at: Duration,
}

impl Transition {
    /// An event of a watch.
    pub fn of_watch(event: &Event, at: Duration) -> Transition {
        Transition {
            event: event.event,
            cause: event.cause,
            index: event.index,
            part: event.part,
            name: event.name.clone(),
            holder: event.holder.clone(),
            token: event.token,
            at,
        }
    }

    /// A transition that a replica applied.
    pub fn of_replica(applied: &lease::Transition, at: Duration) -> Transition {
        let (event, cause) = match applied.change {
            Change::Granted(cause) => (EventKind::Granted, Some(cause)),
            Change::Expired => (EventKind::Expired, None),
            Change::Released => (EventKind::Released, None),
            Change::Revoked { .. } => (EventKind::Revoked, None),
            Change::HandedOver { .. } => (EventKind::HandedOver, None),
            Change::Restored => (EventKind::Restored, None),
        };
        let (name, holder) = (applied.name.to_string(), applied.holder.to_string());
        Transition { event, cause, index: applied.index, part: applied.part, name, holder, token: applied.token, at }
    }

    pub fn is_grant(&self) -> bool {
        self.event == EventKind::Granted
    }

    /// The position in the log.
    pub fn position(&self) -> (u64, u32) {
        (self.index, self.part)
    }
}

/// The grants that have not ended after these transitions, in the order of the grants.
pub fn held<'a>(transitions: impl IntoIterator<Item = &'a Transition>) -> Vec<&'a Transition> {
    let mut held: Vec<&Transition> = Vec::new();
    for transition in transitions {
        if transition.is_grant() {
            held.push(transition);
        } else {
            held.retain(|grant| (grant.token, &grant.holder) != (transition.token, &transition.holder));
        }
    }
    held
}
