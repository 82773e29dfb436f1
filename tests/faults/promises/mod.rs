//! The promises for each lease, one per file, checked after the last operation on the lease.
//!
//! The claims contain the mode of the lease: its limit, ttl and lock delay. The checks read it from the claims, so they
//! treat a history from a file like a run.

#[cfg(test)]
pub mod evidence;
pub mod expiry_happens;
mod grants_survive;
mod linear;
mod lock_delay;
mod no_early_expiry;
mod one_holder;
mod queue_order;
mod reads_are_current;
mod tokens_rise;
mod unknown_is_said;
mod waiters_are_served;

use std::time::Duration;

use expiry_happens::Expiries;
pub use linear::SearchResult;
use tenure::api::{Event, EventKind};
use waiters_are_served::QueueGrants;

use super::history::{Ended, Operation, What};
use super::log::Seen;
use super::progress::Progress;
use super::verdict::Broken;

/// The clock drift in the configuration of the cluster.
const DRIFT: f64 = 0.01;

/// The waiters of a lease at a log index, first waiter first.
#[derive(Clone, Debug)]
pub struct ObservedQueue {
    pub index: u64,
    pub waiters: Vec<String>,
}

/// All observations of one lease.
pub struct Evidence<'a> {
    pub operations: &'a [Operation],
    pub queues: &'a [ObservedQueue],
    /// The transitions of the lease in log order.
    pub log: &'a [Seen],
}

impl Evidence<'_> {
    /// The largest number of holders, by the claims.
    pub fn limit(&self) -> usize {
        let limit = |operation: &Operation| match operation.what {
            What::Acquire { limit, .. } => Some(limit as usize),
            _ => None,
        };
        self.operations.iter().filter_map(limit).max().unwrap_or(1)
    }

    /// Whether every claim of this holder has an infinite ttl. A renewal never makes that ttl finite.
    pub fn is_infinite(&self, holder: &str) -> bool {
        let mut ttls = self.claims(holder).map(|(_, ttl_ms, _)| ttl_ms).peekable();
        ttls.peek().is_some() && ttls.all(|ttl_ms| ttl_ms.is_none())
    }

    /// The shortest and the longest lock delay in the claims of this holder.
    fn lock_delays(&self, holder: &str) -> (Duration, Duration) {
        let delays = || self.claims(holder).map(|(_, _, delay)| delay);
        (delays().min().unwrap_or_default(), delays().max().unwrap_or_default())
    }

    /// The bounds of the lock delay that begins with this transition, if one begins.
    pub fn lock_delays_behind(&self, event: &Event) -> Option<(Duration, Duration)> {
        let delays = self.lock_delays(&event.holder);
        let begins = matches!(event.event, EventKind::Expired | EventKind::Revoked);
        (begins && !delays.1.is_zero()).then_some(delays)
    }

    /// The claims of a holder, each with its ttl in milliseconds and its lock delay.
    fn claims(&self, holder: &str) -> impl Iterator<Item = (&Operation, Option<u64>, Duration)> {
        let own = self.operations.iter().filter(move |operation| operation.by.as_str() == holder);
        own.filter_map(|operation| match operation.what {
            What::Acquire { ttl_ms, lock_delay_ms, .. } => {
                Some((operation, ttl_ms, Duration::from_millis(lock_delay_ms)))
            }
            _ => None,
        })
    }

    /// When the first claim of this holder was sent. The holder has no grant before that.
    fn first_claim(&self, holder: &str) -> Option<Duration> {
        self.claims(holder).map(|(claim, ..)| claim.invoked).min()
    }

    /// The largest number of holders at once.
    pub fn most_holders(&self) -> usize {
        let mut held = 0_usize;
        let counts = self.log.iter().map(|seen| {
            held = if seen.event.event == EventKind::Granted { held + 1 } else { held.saturating_sub(1) };
            held
        });
        counts.max().unwrap_or(0)
    }
}

/// Whether the answer to this request names the grant.
fn is_told(operation: &Operation, grant: &Event) -> bool {
    let own = operation.by.as_str() == grant.holder;
    own && matches!(operation.ended, Ended::Held(token, _) if token == grant.token)
}

type Check = fn(&Evidence) -> Result<(), String>;

const PROMISES: [(&str, Check); 8] = [
    ("one_holder", one_holder::check),
    ("tokens_rise", tokens_rise::check),
    ("grants_survive", grants_survive::check),
    ("no_early_expiry", no_early_expiry::check),
    ("lock_delay", lock_delay::check),
    ("reads_are_current", reads_are_current::check),
    ("unknown_is_said", unknown_is_said::check),
    ("queue_order", queue_order::check),
];

/// Returns the broken promises, and whether the search found an order of the operations.
pub fn check(name: &str, evidence: &Evidence) -> (Vec<Broken>, SearchResult) {
    let broken = |(promise, check): &(&'static str, Check)| {
        check(evidence).err().map(|how| Broken::of_lease(promise, name, how))
    };
    let mut broken: Vec<Broken> = PROMISES.iter().filter_map(broken).collect();
    let decided = linear::check(evidence);
    if let SearchResult::Impossible(how) = &decided {
        broken.push(Broken::of_lease("linearizable", name, how));
    }
    (broken, decided)
}

/// The time bounds of one lease.
pub struct TimeBounds {
    pub expiries: Expiries,
    pub queue_grants: QueueGrants,
    /// Lock delays that a grant followed.
    pub delays: u64,
}

/// Checks the time bounds of expiries and waiters. Leases that are still held are checked as of `now`.
pub fn check_bounds(name: &str, evidence: &Evidence, progress: &Progress, now: Duration) -> (Vec<Broken>, TimeBounds) {
    let expiries = expiry_happens::check(evidence, progress, now);
    let queue_grants = waiters_are_served::check(evidence, progress);
    let late = [("expiry_happens", &expiries.late), ("waiters_are_served", &queue_grants.late)];
    let broken = late.into_iter().filter_map(|(promise, how)| Some(Broken::of_lease(promise, name, how.as_deref()?)));
    (broken.collect(), TimeBounds { delays: lock_delay::judged(evidence), expiries, queue_grants })
}

/// Checks a lease of the holder processes, whose operations are not recorded.
pub fn check_log(name: &str, log: &[Seen]) -> Vec<Broken> {
    let evidence = Evidence { operations: &[], queues: &[], log };
    let checks = PROMISES.iter().filter(|(promise, _)| ["one_holder", "tokens_rise"].contains(promise));
    checks
        .filter_map(|(promise, check)| check(&evidence).err().map(|how| Broken::of_lease(promise, name, how)))
        .collect()
}

/// Whether a request of unknown outcome explains a late transition.
pub fn explains_late(operations: &[Operation], seen: &Seen) -> bool {
    unknown_is_said::check(&Evidence { operations, queues: &[], log: std::slice::from_ref(seen) }).is_ok()
}
