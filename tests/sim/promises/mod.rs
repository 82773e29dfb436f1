//! The invariants of each run, one per file.

pub mod committed_stays;
pub mod deadlines_stay;
pub mod expiry_happens;
pub mod fenced_register;
pub mod grants_survive;
pub mod holder_stops_first;
pub mod linear;
pub mod log_matching;
pub mod no_early_expiry;
pub mod nobody_panics;
pub mod one_holder;
pub mod one_leader;
pub mod one_token_a_claim;
pub mod only_the_current_token;
pub mod queue_order;
pub mod reads_are_current;
pub mod replicas_agree;
pub mod tokens_rise;
pub mod unknown_is_said;
pub mod waiter_gets_what_is_free;
pub mod watch_completeness;

use tenure::lease::Machine;
use tenure::types::NodeId;

use super::ledger::{Entry, Ledger};
use super::run::Evidence;
use super::verdict::Violation;

type EntryCheck = fn(&Ledger, &Entry) -> Result<(), String>;
type RunCheck = fn(&Evidence) -> Result<(), String>;

/// Checked at each log entry, when the first replica has applied it.
const ENTRY_CHECKS: [(&str, EntryCheck); 7] = [
    ("one_holder", one_holder::check),
    ("tokens_rise", tokens_rise::check),
    ("queue_order", queue_order::check),
    ("waiter_gets_what_is_free", waiter_gets_what_is_free::check),
    ("one_token_a_claim", one_token_a_claim::check),
    ("only_the_current_token", only_the_current_token::check),
    ("deadlines_stay", deadlines_stay::check),
];

/// Checked after the run, when all answers to clients are recorded.
const RUN_CHECKS: [(&str, RunCheck); 7] = [
    ("grants_survive", grants_survive::check),
    ("no_early_expiry", no_early_expiry::check),
    ("holder_stops_first", holder_stops_first::check),
    ("reads_are_current", reads_are_current::check),
    ("unknown_is_said", unknown_is_said::check),
    ("only_the_current_token", only_the_current_token::check_history),
    ("fenced_register", fenced_register::check),
];

/// Checks all invariants of one entry.
pub fn check_entry(ledger: &Ledger, entry: &Entry) -> Vec<Violation> {
    let violation = |(promise, check): &(&'static str, EntryCheck)| {
        check(ledger, entry).err().map(|how| Violation::new(promise, how))
    };
    ENTRY_CHECKS.iter().filter_map(violation).collect()
}

/// Compares the same entry on two replicas.
pub fn check_replica(first: &Entry, other: &Entry) -> Vec<Violation> {
    let agree = replicas_agree::check(first, other).map_err(|how| Violation::new("replicas_agree", how));
    let stays = committed_stays::check(first, other).map_err(|how| Violation::new("committed_stays", how));
    [agree, stays].into_iter().filter_map(Result::err).collect()
}

/// Compares the state of a snapshot with the entry at its index.
pub fn check_snapshot(first: &Entry, by: NodeId, machine: &Machine) -> Option<Violation> {
    replicas_agree::check_state(first, by, machine).err().map(|how| Violation::new("replicas_agree", how))
}

/// Checks all invariants of a whole run.
pub fn check(run: &Evidence) -> Vec<Violation> {
    let violation =
        |(promise, check): &(&'static str, RunCheck)| check(run).err().map(|how| Violation::new(promise, how));
    RUN_CHECKS.iter().filter_map(violation).collect()
}
