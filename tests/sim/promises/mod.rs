//! What must hold in every run, one promise a file.

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
use super::verdict::Broken;

type OfEntry = fn(&Ledger, &Entry) -> Result<(), String>;
type OfRun = fn(&Evidence) -> Result<(), String>;

/// Checked at every entry, when the first replica has applied it.
const OF_ENTRY: [(&str, OfEntry); 7] = [
    ("one_holder", one_holder::check),
    ("tokens_rise", tokens_rise::check),
    ("queue_order", queue_order::check),
    ("waiter_gets_what_is_free", waiter_gets_what_is_free::check),
    ("one_token_a_claim", one_token_a_claim::check),
    ("only_the_current_token", only_the_current_token::check),
    ("deadlines_stay", deadlines_stay::check),
];

/// Checked when a run is over and all is known that clients were told.
const OF_RUN: [(&str, OfRun); 7] = [
    ("grants_survive", grants_survive::check),
    ("no_early_expiry", no_early_expiry::check),
    ("holder_stops_first", holder_stops_first::check),
    ("reads_are_current", reads_are_current::check),
    ("unknown_is_said", unknown_is_said::check),
    ("only_the_current_token", only_the_current_token::check_history),
    ("fenced_register", fenced_register::check),
];

pub fn check_entry(ledger: &Ledger, entry: &Entry) -> Vec<Broken> {
    let broken =
        |(promise, check): &(&'static str, OfEntry)| check(ledger, entry).err().map(|how| Broken::new(promise, how));
    OF_ENTRY.iter().filter_map(broken).collect()
}

/// Another replica has applied an entry.
pub fn check_replica(first: &Entry, other: &Entry) -> Vec<Broken> {
    let agree = replicas_agree::check(first, other).map_err(|how| Broken::new("replicas_agree", how));
    let stays = committed_stays::check(first, other).map_err(|how| Broken::new("committed_stays", how));
    [agree, stays].into_iter().filter_map(Result::err).collect()
}

/// A replica has taken over a state.
pub fn check_snapshot(first: &Entry, by: NodeId, machine: &Machine) -> Option<Broken> {
    replicas_agree::check_state(first, by, machine).err().map(|how| Broken::new("replicas_agree", how))
}

pub fn check(run: &Evidence) -> Vec<Broken> {
    let broken = |(promise, check): &(&'static str, OfRun)| check(run).err().map(|how| Broken::new(promise, how));
    OF_RUN.iter().filter_map(broken).collect()
}
