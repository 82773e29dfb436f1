//! Time passes only by the stamps of entries, and never goes back.

use tenure::lease;
use tenure::types::ClusterMs;

/// Applied entries: the transitions of an entry happen at cluster time `now`.
pub fn check_transitions(transitions: &[lease::Transition], now: ClusterMs) -> Result<(), String> {
    match transitions.iter().find(|transition| transition.at != now) {
        Some(transition) => Err(format!("{transition:?} at {now}")),
        None => Ok(()),
    }
}

/// Applied entries: a replica has this cluster time.
pub fn check_clock(replica: ClusterMs, now: ClusterMs) -> Result<(), String> {
    if replica == now { Ok(()) } else { Err(format!("cluster time is {replica}; expected {now}")) }
}
