//! A lease is renewed, released and handed over only with its current token, and what is over stays over.

use std::time::Duration;

use tenure::lease::{Change, Command, Transition};
use tenure::token::FencingToken;

use crate::client::leases;
use crate::history::{Ended, Operation, What};
use crate::ledger::{Entry, Ledger};
use crate::run::Evidence;

pub fn check(ledger: &Ledger, entry: &Entry) -> Result<(), String> {
    for seen in &entry.transitions {
        if !is_asked_for(ledger, entry, seen) {
            return Err(format!("{seen:?} by {:?}", entry.asked));
        }
    }
    for name in leases() {
        for lease in entry.held(&name) {
            let over = |(at, seen): &(&Entry, &Transition)| {
                at.index <= entry.index && seen.name == name && seen.token == lease.token && ends(&seen.change)
            };
            if let Some((_, end)) = ledger.transitions().find(over) {
                return Err(format!("{lease:?} is held at {}, and was over: {end:?}", entry.index));
            }
        }
    }
    Ok(())
}

fn ends(change: &Change) -> bool {
    !matches!(change, Change::Granted(_))
}

/// Whether a command of the entry, or time, ends just this grant.
fn is_asked_for(ledger: &Ledger, entry: &Entry, seen: &Transition) -> bool {
    let Some(asked) = &entry.asked else { return false };
    let by_command = asked.batch.commands.iter().any(|command| match (command, &seen.change) {
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
            let due = before.iter().find(|lease| lease.token == seen.token).and_then(|lease| lease.deadline);
            due.is_some_and(|due| due <= entry.machine.now())
        }
        _ => by_command,
    }
}

/// The same from outside: a renewal is answered with the token that it names, and that was held meanwhile.
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

/// Whether the holder held the lease at some moment of the request.
fn was_held(ledger: &Ledger, done: &Operation, token: FencingToken) -> bool {
    let returned = done.returned.unwrap_or(Duration::MAX);
    let first = ledger.entries.partition_point(|entry| entry.at < done.invoked).saturating_sub(1);
    let meanwhile = ledger.entries[first..].iter().take_while(|entry| entry.at <= returned);
    meanwhile.into_iter().any(|entry| entry.holds(&done.name, &done.by, token))
}
