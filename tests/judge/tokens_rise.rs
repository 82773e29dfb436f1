//! Each grant has a higher token than all earlier grants of its name. The token is the log position of the grant.

use tenure::lease;
use tenure::token::FencingToken;

use super::claims::LeaseHistory;
use super::history::Operation;

/// Applied entries: a grant at this position, after a grant with the token `highest`.
pub fn check_grant(
    grant: &lease::Transition,
    position: FencingToken,
    highest: Option<FencingToken>,
) -> Result<(), String> {
    let rises = highest.is_none_or(|highest| highest.as_u64() < grant.token.as_u64());
    if !rises || grant.token != position {
        return Err(format!("{grant:?} at {position:?}, after {highest:?}"));
    }
    Ok(())
}

/// Applied entries: the answer to a claim that was granted at this position.
pub fn check_answer(lease: &lease::HolderLease, position: FencingToken) -> Result<(), String> {
    if lease.token != position { Err(format!("{lease:?} at {position:?}")) } else { Ok(()) }
}

/// Client histories.
pub fn check(history: &LeaseHistory) -> Result<(), String> {
    let mut highest: Option<FencingToken> = None;
    for grant in history.grants() {
        let token = grant.token;
        if token.index() != grant.index || highest.is_some_and(|highest| highest.as_u64() >= token.as_u64()) {
            return Err(format!("{grant:?} after token {highest:?}"));
        }
        highest = Some(token);
    }
    Ok(())
}

/// The answers to the acquires of a lease with one holder: an acquire that began after the answer to another one has no
/// lower token.
pub fn check_answers(operations: &[Operation]) -> Result<(), String> {
    for later in operations {
        let is_earlier = |earlier: &&Operation| earlier.returned.is_some_and(|returned| returned < later.invoked);
        let before = operations.iter().filter(is_earlier).filter_map(Operation::granted).max();
        if later.granted().is_some_and(|token| Some(token) < before) {
            return Err(format!("{later:?} after an answer with the token {before:?}"));
        }
    }
    Ok(())
}
