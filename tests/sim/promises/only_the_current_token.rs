//! A lease is renewed, released and handed over only with its current token. An ended grant never comes back.

use std::time::Duration;

use tenure::lease::{Change, Command, Transition};
use tenure::token::FencingToken;

use crate::client::leases;
use crate::history::{Ended, Operation, What};
use crate::ledger::{Entry, Ledger};
use crate::run::Evidence;

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    for seen in &entry.transitions {
        if !has_cause(ledger, entry, seen) {
            return Err(format!("{seen:?} without a cause in {:?}", entry.input));
        }
    }
    for name in leases() {
        for lease in entry.held(&name) {
            let ended = |(at, seen): &(&Entry, &Transition)| {
                at.index <= entry.index && seen.name == name && seen.token == lease.token && ends(&seen.change)
            };
            if let Some((_, end)) = ledger.transitions().find(ended) {
                return Err(format!("{lease:?} is held at {}, but has ended: {end:?}", entry.index));
            }
        }
    }
    Ok(())
}

fn ends(change: &Change) -> bool {
    !matches!(change, Change::Granted(_))
}

/// Whether a command of the entry, or the deadline, ends exactly this grant.
fn has_cause(ledger: &Ledger, entry: &Entry, seen: &Transition) -> bool {
    let Some(input) = &entry.input else { return false };
    let by_command = input.batch.commands.iter().any(|command| match (command, &seen.change) {
        (Command::Release { name, holder, token }, Change::Released)
        | (Command::HandOver { name, holder, token, .. }, Change::HandedOver { .. }) => {
            (name, holder, *token) == (&seen.name, &seen.holder, seen.token)
        }
        (Command::Revoke { name, .. }, Change::Revoked { .. }) => *name == seen.name,
        _ => false,
    });
    match seen.change {
        Change::Granted(_) => true,
        Change::Expired => {
            let before = ledger.before(entry).map(|before| before.held(&seen.name)).unwrap_or_default();
            let deadline = before.iter().find(|lease| lease.token == seen.token).and_then(|lease| lease.deadline);
            deadline.is_some_and(|deadline| deadline <= entry.machine.now())
        }
        _ => by_command,
    }
}

/// Checks the same from the client history: a renewal returns its own token, which was held during the request.
pub fn check_history(run: &Evidence) -> Result<(), String> {
    let renewed = run.history.operations.iter().filter(|done| matches!(done.what, What::Renew { .. }));
    for done in renewed {
        let (What::Renew { token }, Ended::Held(answered, _)) = (&done.what, &done.ended) else { continue };
        if token != answered || !was_held(run.ledger, done, *token) {
            return Err(format!("{done:?}"));
        }
    }
    Ok(())
}

/// Whether the holder held the lease at any time during the request.
fn was_held(ledger: &Ledger, done: &Operation, token: FencingToken) -> bool {
    let returned = done.returned.unwrap_or(Duration::MAX);
    let first = ledger.entries.partition_point(|entry| entry.at < done.invoked).saturating_sub(1);
    let meanwhile = ledger.entries[first..].iter().take_while(|entry| entry.at <= returned);
    meanwhile.into_iter().any(|entry| entry.holds(&done.name, &done.by, token))
}
