//! A lease is renewed, released and handed over only by its holder with its current token.

use tenure::lease::{Command, Outcome, Refusal};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};

use super::bounds::Observed;
use super::claims::LeaseHistory;
use super::history::{Ended, Operation, RequestKind};

/// Applied entries: the answer to a release or a handover.
pub fn check_end(command: &Command, outcome: &Outcome, is_own: bool) -> Result<(), String> {
    let is_right = match outcome {
        Outcome::Released(is_released) => *is_released == is_own,
        Outcome::Refused(Refusal::Lost(_)) => !is_own,
        _ => is_own,
    };
    if is_right { Ok(()) } else { Err(format!("{command:?} = {outcome:?}, own: {is_own}")) }
}

/// Applied entries: the answer to a renewal.
pub fn check_renewal(
    holder: &HolderId,
    name: &LeaseName,
    token: FencingToken,
    is_own: bool,
    is_renewed: bool,
) -> Result<(), String> {
    if is_own == is_renewed {
        return Ok(());
    }
    Err(format!("{holder} renews {name} with {token:?}: {is_renewed}, own: {is_own}"))
}

/// Client histories: a renewal answers with its own token, and the grant was held during the call. An answer that a
/// token is lost is true.
pub fn check(history: &LeaseHistory) -> Result<(), String> {
    for refused in history.operations {
        if let Some(token) = lost_token(refused)
            && is_certainly_held(history, refused, token)
        {
            return Err(format!("{refused:?}, but the grant was held"));
        }
    }
    for renewal in history.operations {
        let (RequestKind::Renew { token }, Ended::Held(answered, _)) = (&renewal.what, &renewal.ended) else {
            continue;
        };
        if token != answered || !may_be_held(history, renewal, *token) {
            return Err(format!("{renewal:?}"));
        }
    }
    Ok(())
}

/// The token of a request whose answer says that this token does not hold the lease.
fn lost_token(operation: &Operation) -> Option<FencingToken> {
    let is_lost = matches!(&operation.ended, Ended::Refused(code) if code == "lost");
    match operation.what {
        RequestKind::Renew { token }
        | RequestKind::HandOver { token, .. }
        | RequestKind::UpdateMetadata { token, .. } => Some(token).filter(|_| is_lost),
        RequestKind::Release { token } => Some(token).filter(|_| operation.ended == Ended::Changed(false)),
        _ => None,
    }
}

/// Whether the grant was seen before the request, and ended only after the state of the answer.
fn is_certainly_held(history: &LeaseHistory, refused: &Operation, token: FencingToken) -> bool {
    let own = |seen: &&super::Transition| seen.token == token && seen.holder == refused.by.as_str();
    let is_later = |end: &super::Transition| match history.bounds.observed {
        Observed::AtApply => refused.returned.is_some_and(|returned| end.at > returned),
        // The end was committed at any time before the observer saw it, so only log indices count.
        Observed::Later => refused.index.is_some_and(|index| end.index > index),
    };
    let is_complete = match history.bounds.observed {
        Observed::AtApply => refused.returned.is_some(),
        Observed::Later => refused.index.is_some(),
    };
    let mut own = history.transitions.iter().filter(own);
    is_complete
        && own.clone().any(|seen| seen.is_grant() && seen.at < refused.invoked)
        && own.all(|seen| seen.is_grant() || is_later(seen))
}

fn may_be_held(history: &LeaseHistory, renewal: &Operation, token: FencingToken) -> bool {
    let own = |seen: &&super::Transition| seen.token == token && seen.holder == renewal.by.as_str();
    let is_early_enough = |at| match history.bounds.observed {
        Observed::AtApply => renewal.returned.is_none_or(|returned| at <= returned),
        Observed::Later => true,
    };
    let mut own = history.transitions.iter().filter(own);
    own.clone().any(|seen| seen.is_grant() && is_early_enough(seen.at))
        && own.all(|seen| seen.is_grant() || seen.at >= renewal.invoked)
}
