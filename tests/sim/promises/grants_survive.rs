//! The applied log contains each acknowledged change.

use tenure::lease::Change;

use crate::history::{Ended, What};
use crate::run::Evidence;

pub fn check(run: &Evidence) -> Result<(), String> {
    let is_in_log = |name: &_, token, matches: fn(&Change) -> bool| {
        let mut transitions = run.ledger.transitions();
        transitions.any(|(_, seen)| seen.name == *name && seen.token == token && matches(&seen.change))
    };
    for operation in &run.history.operations {
        let survives = match (&operation.what, &operation.ended) {
            (What::Acquire { .. } | What::Renew { .. }, Ended::Held(token, _)) => {
                let granted = run.ledger.entry(token.index()).is_some_and(|entry| {
                    entry.transitions.iter().any(|seen| seen.token == *token && seen.holder == operation.by)
                });
                granted && is_in_log(&operation.name, *token, |change| matches!(change, Change::Granted(_)))
            }
            (What::Release { token }, Ended::Changed(true)) => {
                is_in_log(&operation.name, *token, |change| *change == Change::Released)
            }
            (What::HandOver { token }, Ended::Held(..)) => {
                is_in_log(&operation.name, *token, |change| matches!(change, Change::HandedOver { .. }))
            }
            _ => true,
        };
        if !survives {
            return Err(format!("{operation:?} was acknowledged, but is not in the log"));
        }
    }
    Ok(())
}
