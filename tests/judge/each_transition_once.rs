//! Each transition has one cause and one position in the log, and a watch delivers it once and in order.

use tenure::lease::{self, Change, Command, GrantCause, Outcome};
use tenure::token::FencingToken;

/// Applied entries: the positions of the transitions of an entry have no gap, so that a watch can resume after each.
pub fn check_numbers(transitions: &[lease::Transition], position: FencingToken) -> Result<(), String> {
    let is_numbered = |(part, transition): (usize, &lease::Transition)| {
        transition.index == position.index() && transition.part as usize == part
    };
    if transitions.iter().enumerate().all(is_numbered) {
        return Ok(());
    }
    Err(format!("the transitions of {position:?} are {transitions:?}"))
}

/// Applied entries: the command with this outcome causes this transition.
pub fn check_cause(command: &Command, outcome: &Outcome, transition: &lease::Transition) -> Result<(), String> {
    let lease::Transition { name, holder, token, change, .. } = transition;
    let is_cause = match (command, change) {
        (Command::Acquire(acquire), Change::Granted(_)) => (&acquire.name, &acquire.holder) == (name, holder),
        (Command::Release { name: of, holder: by, token: with }, Change::Released) => {
            (of, by, with.as_u64()) == (name, holder, token.as_u64())
        }
        (Command::HandOver { name: of, holder: by, token: with, .. }, Change::HandedOver { to }) => {
            (of, by, with.as_u64()) == (name, holder, token.as_u64())
                && matches!(outcome, Outcome::HandedOver(lease) if lease.holder == *to)
        }
        (Command::HandOver { name: of, .. }, Change::Granted(GrantCause::HandOver)) => {
            of == name && matches!(outcome, Outcome::HandedOver(lease) if lease.holder == *holder)
        }
        (Command::Revoke { name: of, .. }, Change::Revoked { .. }) => of == name,
        _ => false,
    };
    if is_cause { Ok(()) } else { Err(format!("{transition:?} is not caused by {command:?} = {outcome:?}")) }
}

/// Client histories: a watch delivers the transition at `next` after the position `after`. The log has transitions at
/// these positions.
pub fn check_watch(log: impl Iterator<Item = (u64, u32)>, after: (u64, u32), next: (u64, u32)) -> Result<(), String> {
    let missed: Vec<_> = log.filter(|position| *position > after && *position < next).collect();
    if next <= after || !missed.is_empty() {
        return Err(format!("{next:?} came after {after:?}: missed {missed:?}"));
    }
    Ok(())
}
