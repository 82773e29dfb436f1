//! A fenced resource accepts no write from a former holder after a write of a newer one, at any delay and clock rate.

use tenure::token::FencingToken;

use super::transition::Transition;

/// The accepted writes of one resource in the order of arrival. It does not use the high-water mark of the fence, so it
/// also detects errors of the fence.
#[derive(Default)]
pub struct AcceptedWrites {
    highest: Option<(FencingToken, String)>,
}

impl AcceptedWrites {
    /// Records that the resource accepted a write.
    pub fn accept(&mut self, token: FencingToken, holder: &str) -> Result<(), String> {
        match &self.highest {
            Some((highest, _)) if highest.as_u64() > token.as_u64() => {
                Err(format!("the resource accepted {token:?} of {holder} after {highest:?}"))
            }
            Some((highest, first)) if *highest == token && first != holder => {
                Err(format!("the resource accepted {token:?} of {holder} and of {first}"))
            }
            _ => {
                self.highest = Some((token, holder.to_owned()));
                Ok(())
            }
        }
    }
}

/// The log granted the lease to the holder of an accepted write.
pub fn check_granted(transitions: &[Transition], token: FencingToken, holder: &str) -> Result<(), String> {
    if transitions.iter().any(|seen| seen.is_grant() && seen.token == token && seen.holder == holder) {
        return Ok(());
    }
    Err(format!("{holder} wrote with {token:?}, but the log has no such grant"))
}
