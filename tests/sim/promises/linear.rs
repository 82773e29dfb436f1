//! The client history of each lease is linearizable.
//!
//! The search uses requests and answers. It takes only two facts from the log, because no client learns them: expiries,
//! and grants whose answers were lost.

use std::time::Duration;

use tenure::lease::Change;
use tenure::types::LeaseName;

use super::one_holder::limit;
use crate::client::LEASES;
use crate::history::{Ended, Operation, What};
use crate::linear::{Call, Doubt, Effect, is_linearizable, is_told};
use crate::run::Evidence;

/// Returns the leases whose histories the search could not decide.
///
/// # Errors
///
/// A history has no linearization.
pub fn check(run: &Evidence) -> Result<Vec<&'static str>, String> {
    let mut undecided = Vec::new();
    for (lease, _) in LEASES.iter().chain([&("probe", 1)]) {
        let name = LeaseName::new(*lease).expect("valid");
        match is_linearizable(&calls(run, &name), limit(&name)) {
            Err(Doubt::Impossible(how)) => return Err(format!("{name}: {how}")),
            Err(Doubt::TooHard) => undecided.push(*lease),
            Ok(()) => {}
        }
    }
    Ok(undecided)
}

fn calls(run: &Evidence, name: &LeaseName) -> Vec<Call> {
    let about = run.history.operations.iter().filter(|operation| operation.name == *name);
    let happened = |operation: &&Operation| operation.ended != Ended::Unknown || is_in_log(run, operation);
    // A leader also refuses from memory. Outside the drift such a refusal proves nothing.
    let counts = |call: &Call| run.plan.inside_drift || call.what != Effect::IsFull;
    let mut calls: Vec<Call> = about.filter(happened).filter_map(Call::of).filter(counts).collect();
    for (entry, seen) in run.ledger.transitions().filter(|(_, seen)| seen.name == *name) {
        let holder = seen.holder.to_string();
        let what = match seen.change {
            Change::Expired => Effect::End(holder, seen.token),
            Change::Granted(_) if !is_told(&calls, seen.token, entry.at) => Effect::Grant(holder, seen.token),
            _ => continue,
        };
        calls.push(Call { what, invoked: Duration::ZERO, returned: Some(entry.at) });
    }
    calls
}

/// Whether a request with an unknown outcome may have caused a transition in the log. Otherwise it was not applied.
fn is_in_log(run: &Evidence, operation: &Operation) -> bool {
    let holder = operation.by.to_string();
    run.ledger.transitions().any(|(entry, seen)| {
        let may_be_cause = match (&operation.what, &seen.change) {
            (What::Revoke, Change::Revoked { .. }) => true,
            (What::Release { token }, Change::Released) => *token == seen.token,
            (What::HandOver { token }, Change::HandedOver { .. }) => *token == seen.token,
            (What::Acquire { .. }, Change::Granted(_)) => holder == seen.holder.as_str(),
            _ => false,
        };
        may_be_cause && seen.name == operation.name && entry.at >= operation.invoked
    })
}
