//! A holder that acquires its lease again keeps its token, so a retried acquire never gets a second one.

use tenure::lease::{Acquire, Outcome, Refusal};
use tenure::token::FencingToken;

/// Applied entries: the answer to a claim in the entry at `position`. `own` is the grant of the holder; a waiter may
/// have been granted the lease earlier in this entry.
pub fn check_answer(
    acquire: &Acquire,
    outcome: &Outcome,
    own: Option<FencingToken>,
    position: FencingToken,
) -> Result<(), String> {
    let is_right = match outcome {
        Outcome::Held { lease, fresh: false } => own == Some(lease.token),
        Outcome::Held { fresh: true, .. } => own.is_none_or(|own| own == position),
        Outcome::Refused(Refusal::Held { .. } | Refusal::LockDelay { .. }) | Outcome::Queued { .. } => own.is_none(),
        _ => true,
    };
    if is_right { Ok(()) } else { Err(format!("{acquire:?} = {outcome:?}, had {own:?}")) }
}
