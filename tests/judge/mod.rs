//! The promises of docs/guarantees.md, judged in one place: one file per promise. `tests/lease`, `tests/sim` and
//! `tests/faults` use them.
//!
//! There are two kinds of evidence:
//!
//! - **Applied entries** ([`Entry`](entry::Entry)): the commands of a log entry, with the outcomes and the effects at a replica. Times
//!   are cluster times and exact. [`Replay`](replay::Replay) follows the entries and derives the state that they allow. The lease
//!   machine and the replicas of the simulation supply entries.
//! - **Client histories** ([`LeaseHistory`]): the calls on one lease, and the transitions that an observer saw. Times
//!   are of one real clock. The clients of the simulation, the clients of real processes, and files supply histories.
//!   [`Bounds`] has the clock rates and delays of the supplier.
//!
//! | promise | applied entries | client histories |
//! |---|---|---|
//! | `one_holder` | yes | yes |
//! | `tokens_rise` | yes | yes |
//! | `grants_survive` | | yes |
//! | `no_early_expiry` | yes | yes |
//! | `expiry_happens` | yes | yes |
//! | `holder_stops_first` | | yes, with beliefs |
//! | `reads_are_current` | | yes |
//! | `replicas_agree` | yes, of two replicas | |
//! | `unknown_is_said` | | yes |
//! | `linearizable` | | yes |
//! | `lock_delay` | yes | yes |
//! | `queue_order` | yes | yes, with observed queues |
//! | `waiters_are_served` | | yes |
//! | `each_transition_once` | yes | yes, of a watch |
//! | `current_token_only` | yes | yes, of renewals, and of answers that a token is lost |
//! | `metadata_is_kept` | | yes, with tags |
//! | `waits_last` | | simulation |
//! | `owner_only` | yes | simulation: [principals](../sim/principals.rs) |
//! | `reentrance_keeps_the_token`, `each_is_answered`, `time_is_the_logs` | yes | |
//! | `fenced_register` | | writes at a resource |
//!
//! `tests/faults/log.rs` also compares the watchers of real processes with each other.
//!
//! The tests in `tests/` give each promise a history that breaks it, and one that almost breaks it.

mod bounds;
mod broken;
mod claims;
pub mod current_token_only;
mod each_is_answered;
pub mod each_transition_once;
pub mod entry;
pub mod expiry_happens;
pub mod fenced_register;
pub mod file;
pub mod grants_survive;
pub mod history;
pub mod holder_stops_first;
pub mod linearizable;
pub mod lock_delay;
pub mod metadata_is_kept;
pub mod no_early_expiry;
pub mod one_holder;
mod owner_only;
mod progress;
pub mod queue_order;
pub mod reads_are_current;
mod reentrance_keeps_the_token;
pub mod replay;
pub mod replicas_agree;
#[cfg(test)]
pub mod samples;
pub mod search;
mod time_is_the_logs;
pub mod tokens_rise;
mod transition;
pub mod unknown_is_said;
pub mod waiters_are_served;
pub mod waits_last;

use std::time::Duration;

pub use bounds::{Bounds, Observed};
pub use broken::Broken;
pub use claims::{LeaseHistory, ObservedQueue};
use expiry_happens::Expiries;
pub use linearizable::SearchResult;
pub use progress::Progress;
pub use transition::{Transition, held};
use waiters_are_served::QueueGrants;

type Check = fn(&LeaseHistory) -> Result<(), String>;

const PROMISES: [(&str, Check); 11] = [
    ("one_holder", one_holder::check),
    ("tokens_rise", tokens_rise::check),
    ("grants_survive", grants_survive::check),
    ("no_early_expiry", no_early_expiry::check),
    ("lock_delay", lock_delay::check),
    ("reads_are_current", reads_are_current::check),
    ("unknown_is_said", unknown_is_said::check),
    ("queue_order", queue_order::check),
    ("current_token_only", current_token_only::check),
    ("metadata_is_kept", metadata_is_kept::check),
    ("waits_last", waits_last::check),
];

/// Checks the history of one lease. Returns the broken promises, and whether the search found an order of the calls.
pub fn check(name: &str, history: &LeaseHistory) -> (Vec<Broken>, SearchResult) {
    let broken =
        |(promise, check): &(&'static str, Check)| check(history).err().map(|how| Broken::of_lease(promise, name, how));
    let mut broken: Vec<Broken> = PROMISES.iter().filter_map(broken).collect();
    let decided = linearizable::check(history);
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
pub fn check_bounds(
    name: &str,
    history: &LeaseHistory,
    progress: &Progress,
    now: Duration,
) -> (Vec<Broken>, TimeBounds) {
    let expiries = expiry_happens::check(history, progress, now);
    let queue_grants = waiters_are_served::check(history, progress);
    let late = [("expiry_happens", &expiries.late), ("waiters_are_served", &queue_grants.late)];
    let broken = late.into_iter().filter_map(|(promise, how)| Some(Broken::of_lease(promise, name, how.as_deref()?)));
    (broken.collect(), TimeBounds { delays: lock_delay::judged(history), expiries, queue_grants })
}

/// Checks a lease whose calls are not recorded.
pub fn check_transitions(name: &str, transitions: &[Transition], bounds: &Bounds) -> Vec<Broken> {
    let history = LeaseHistory { operations: &[], queues: &[], transitions, bounds };
    let checks: [(&'static str, Check); 2] = [("one_holder", one_holder::check), ("tokens_rise", tokens_rise::check)];
    let broken =
        checks.iter().filter_map(|(promise, check)| Some(Broken::of_lease(promise, name, check(&history).err()?)));
    broken.collect()
}

/// Whether a call of unknown outcome explains a transition after the last recorded call.
pub fn explains_late(operations: &[history::Operation], transition: &Transition, bounds: &Bounds) -> bool {
    let transitions = std::slice::from_ref(transition);
    unknown_is_said::check(&LeaseHistory { operations, queues: &[], transitions, bounds }).is_ok()
}
