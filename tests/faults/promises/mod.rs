//! What must hold for each lease, one promise a file, judged when nothing happens to it any more.
//!
//! A claim says how the lease is held: by how many, for which ttl, and with which lock delay. The checks read this from the
//! claims, so a history from a file is judged like a run.

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
pub use linear::Decided;
use tenure::api::{Event, EventKind};
use waiters_are_served::Turns;

use super::history::{Ended, Operation, What};
use super::log::Seen;
use super::progress::Progress;
use super::verdict::Broken;

/// The drift that the cluster is configured with.
const DRIFT: f64 = 0.01;

/// Who was seen to wait for a lease, next first, at a log index.
#[derive(Clone, Debug)]
pub struct Queued {
    pub index: u64,
    pub waiters: Vec<String>,
}

/// Everything that is known of one lease.
pub struct Evidence<'a> {
    pub operations: &'a [Operation],
    pub queues: &'a [Queued],
    /// Its transitions, in the order of the log.
    pub log: &'a [Seen],
}

impl Evidence<'_> {
    /// How many may hold the lease: what its claims ask for.
    pub fn limit(&self) -> usize {
        let limit = |operation: &Operation| match operation.what {
            What::Acquire { limit, .. } => Some(limit as usize),
            _ => None,
        };
        self.operations.iter().filter_map(limit).max().unwrap_or(1)
    }

    /// Whether every claim of this holder asks for an infinite ttl. A renewal never makes that ttl finite.
    pub fn is_infinite(&self, holder: &str) -> bool {
        let mut ttls = self.claims(holder).map(|(_, ttl_ms, _)| ttl_ms).peekable();
        ttls.peek().is_some() && ttls.all(|ttl_ms| ttl_ms.is_none())
    }

    /// The shortest and the longest lock delay of this holder's claims.
    fn lock_delays(&self, holder: &str) -> (Duration, Duration) {
        let delays = || self.claims(holder).map(|(_, _, delay)| delay);
        (delays().min().unwrap_or_default(), delays().max().unwrap_or_default())
    }

    /// Whether a lock delay begins with this transition, and its bounds.
    pub fn lock_delays_behind(&self, event: &Event) -> Option<(Duration, Duration)> {
        let delays = self.lock_delays(&event.holder);
        let begins = matches!(event.event, EventKind::Expired | EventKind::Revoked);
        (begins && !delays.1.is_zero()).then_some(delays)
    }

    /// A holder's claims: each with its ttl in milliseconds, and its lock delay.
    fn claims(&self, holder: &str) -> impl Iterator<Item = (&Operation, Option<u64>, Duration)> {
        let own = self.operations.iter().filter(move |operation| operation.by.as_str() == holder);
        own.filter_map(|operation| match operation.what {
            What::Acquire { ttl_ms, lock_delay_ms, .. } => {
                Some((operation, ttl_ms, Duration::from_millis(lock_delay_ms)))
            }
            _ => None,
        })
    }

    /// When the first claim of this holder was sent: it was granted nothing before that.
    fn first_claim(&self, holder: &str) -> Option<Duration> {
        self.claims(holder).map(|(claim, ..)| claim.invoked).min()
    }

    /// The most that ever held the lease at once.
    pub fn most_holders(&self) -> usize {
        let mut held = 0_usize;
        let counts = self.log.iter().map(|seen| {
            held = if seen.event.event == EventKind::Granted { held + 1 } else { held.saturating_sub(1) };
            held
        });
        counts.max().unwrap_or(0)
    }
}

/// Whether this request was told of the grant with this token.
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

/// What is broken, and whether there was an order of its operations to be found.
pub fn check(name: &str, evidence: &Evidence) -> (Vec<Broken>, Decided) {
    let broken = |(promise, check): &(&'static str, Check)| {
        check(evidence).err().map(|how| Broken::of_lease(promise, name, how))
    };
    let mut broken: Vec<Broken> = PROMISES.iter().filter_map(broken).collect();
    let decided = linear::check(evidence);
    if let Decided::Impossible(how) = &decided {
        broken.push(Broken::of_lease("linearizable", name, how));
    }
    (broken, decided)
}

/// What the bounds in time came to for one lease.
pub struct Timed {
    pub expiries: Expiries,
    pub turns: Turns,
    /// Lock delays that a grant followed.
    pub delays: u64,
}

/// Judges how long expiries and waiters took. Leases that are still held are judged as of `now`.
pub fn check_bounds(name: &str, evidence: &Evidence, progress: &Progress, now: Duration) -> (Vec<Broken>, Timed) {
    let expiries = expiry_happens::check(evidence, progress, now);
    let turns = waiters_are_served::check(evidence, progress);
    let late = [("expiry_happens", &expiries.late), ("waiters_are_served", &turns.late)];
    let broken = late.into_iter().filter_map(|(promise, how)| Some(Broken::of_lease(promise, name, how.as_deref()?)));
    (broken.collect(), Timed { delays: lock_delay::judged(evidence), expiries, turns })
}

/// What can be said of a lease whose operations are not known: holders' own.
pub fn check_log(name: &str, log: &[Seen]) -> Vec<Broken> {
    let evidence = Evidence { operations: &[], queues: &[], log };
    let checks = PROMISES.iter().filter(|(promise, _)| ["one_holder", "tokens_rise"].contains(promise));
    checks
        .filter_map(|(promise, check)| check(&evidence).err().map(|how| Broken::of_lease(promise, name, how)))
        .collect()
}

/// Whether a transition of a lease that was judged before is explained by a request whose outcome was unknown then.
pub fn explains_late(operations: &[Operation], seen: &Seen) -> bool {
    unknown_is_said::check(&Evidence { operations, queues: &[], log: std::slice::from_ref(seen) }).is_ok()
}
