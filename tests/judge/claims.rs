//! The history of one lease. The claims in it have the mode of the lease: its limit, ttl and lock delay.

use std::time::Duration;

use tenure::api::EventKind;

use super::bounds::Bounds;
use super::history::{Ended, Operation, RequestKind};
use super::transition::Transition;

/// The waiters of a lease at a log index, first waiter first.
#[derive(Clone, Debug)]
pub struct ObservedQueue {
    pub index: u64,
    pub waiters: Vec<String>,
}

/// All observations of one lease.
#[derive(Clone, Copy)]
pub struct LeaseHistory<'a> {
    pub operations: &'a [Operation],
    pub queues: &'a [ObservedQueue],
    /// In log order.
    pub transitions: &'a [Transition],
    pub bounds: &'a Bounds,
}

impl<'a> LeaseHistory<'a> {
    pub fn grants(&self) -> impl Iterator<Item = &'a Transition> + use<'a> {
        self.transitions.iter().filter(|transition| transition.is_grant())
    }

    pub fn expiries(&self) -> impl Iterator<Item = &'a Transition> + use<'a> {
        self.transitions.iter().filter(|transition| transition.event == EventKind::Expired)
    }

    /// The operations of one holder.
    pub fn by(&self, holder: &'a str) -> impl DoubleEndedIterator<Item = &'a Operation> + use<'a> {
        self.operations.iter().filter(move |operation| operation.by.as_str() == holder)
    }

    /// The largest number of holders, by the claims.
    pub fn limit(&self) -> usize {
        let limit = |operation: &Operation| match operation.what {
            RequestKind::Acquire { limit, .. } => Some(limit as usize),
            _ => None,
        };
        self.operations.iter().filter_map(limit).max().unwrap_or(1)
    }

    /// Whether every claim of this holder has an infinite ttl. A renewal never makes that ttl finite.
    pub fn is_infinite(&self, holder: &'a str) -> bool {
        let mut ttls = self.claims(holder).map(|(_, ttl_ms, _)| ttl_ms).peekable();
        ttls.peek().is_some() && ttls.all(|ttl_ms| ttl_ms.is_none())
    }

    /// The shortest and the longest lock delay that begins with this transition, if one begins.
    pub fn lock_delays_behind(&self, ended: &'a Transition) -> Option<(Duration, Duration)> {
        let delays = || self.claims(&ended.holder).map(|(_, _, delay)| delay);
        let delays = (delays().min().unwrap_or_default(), delays().max().unwrap_or_default());
        let begins = matches!(ended.event, EventKind::Expired | EventKind::Revoked);
        (begins && !delays.1.is_zero()).then_some(delays)
    }

    /// The claims of a holder, each with its ttl in milliseconds and its lock delay.
    pub fn claims(&self, holder: &'a str) -> impl Iterator<Item = (&'a Operation, Option<u64>, Duration)> + use<'a> {
        self.by(holder).filter_map(|operation| match operation.what {
            RequestKind::Acquire { ttl_ms, lock_delay_ms, .. } => {
                Some((operation, ttl_ms, Duration::from_millis(lock_delay_ms)))
            }
            _ => None,
        })
    }

    /// When the first claim of this holder was sent. The holder has no grant before that.
    pub fn first_claim(&self, holder: &'a str) -> Option<Duration> {
        self.claims(holder).map(|(claim, ..)| claim.invoked).min()
    }

    /// The largest number of holders at once.
    pub fn most_holders(&self) -> usize {
        let mut held = 0_usize;
        let counts = self.transitions.iter().map(|transition| {
            held = if transition.is_grant() { held + 1 } else { held.saturating_sub(1) };
            held
        });
        counts.max().unwrap_or(0)
    }
}

/// Whether the answer to this call names the grant of the transition.
pub fn is_told(operation: &Operation, transition: &Transition) -> bool {
    let own = operation.by.as_str() == transition.holder;
    own && matches!(operation.ended, Ended::Held(token, _) if token == transition.token)
}
