//! Under access control, a lease belongs to the principal that acquired it. To another principal, the holder id is in use.

use tenure::lease::{Acquire, Outcome, Refusal};

/// Applied entries: the answer to a claim. `is_foreign`: its holder id belongs to another principal.
pub fn check_claim(acquire: &Acquire, outcome: &Outcome, is_foreign: bool) -> Result<(), String> {
    if is_foreign == matches!(outcome, Outcome::Refused(Refusal::HolderInUse)) {
        return Ok(());
    }
    Err(format!("{acquire:?} = {outcome:?}, the holder id is of another principal: {is_foreign}"))
}
