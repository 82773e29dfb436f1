//! What a holder can see of its own lease.

use std::fmt;
use std::time::Duration;

use crate::api::LostReason;
use crate::token::FencingToken;

/// How a holder stands with one lease, by what it knows itself.
///
/// Times are what was left when the state was entered, less the drift margin; [`Lease::remaining`] has what is left now.
///
/// [`Lease::remaining`]: super::Lease::remaining
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// Not acquired yet.
    Idle,
    /// Held, for so long without another renewal; `None`: infinite.
    Held { token: FencingToken, left: Option<Duration> },
    /// Held, but renewals fail: so many since the last one that worked.
    AtRisk { token: FencingToken, left: Option<Duration>, failures: u32 },
    /// Held, and not renewed any more: the work must have ended when the time is over.
    Ending { token: FencingToken, left: Duration, why: Loss },
    /// Not held any more, against the holder's will.
    Lost { token: FencingToken, why: Loss },
    /// Not held any more: given back, or handed over.
    Released { token: FencingToken },
}

impl HoldState {
    /// Whether this state is one of holding. The clock may be ahead of it: [`Lease::is_held`](super::Lease::is_held)
    /// looks at the clock.
    pub fn is_held(&self) -> bool {
        matches!(self, HoldState::Held { .. } | HoldState::AtRisk { .. } | HoldState::Ending { .. })
    }
}

/// Why a holder does not hold its lease any more. More reasons may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The cluster said that it had expired.
    Expired,
    /// An operator took it.
    Revoked,
    /// It was handed over with this holder's token, and not by this handle.
    HandedOver,
    /// It was released with this holder's token, and not by this handle.
    Released,
    /// The cluster does not remember the grant.
    Forgotten,
    /// The deadline passed without a renewal that worked.
    Unreachable,
    /// The deadline passed while this process, or its machine, did not run.
    Suspended,
    /// The deadline passed, and the progress check of [`LeaseOptions::renew_while`](super::LeaseOptions::renew_while)
    /// had forbidden to renew.
    Stalled,
    /// The deadline passed, and [`LeaseOptions::longest_hold`](super::LeaseOptions::longest_hold) had forbidden to renew.
    HeldLongest,
}

impl Loss {
    /// One word for logs, metrics and scripts.
    pub fn as_str(self) -> &'static str {
        match self {
            Loss::Expired => "expired",
            Loss::Revoked => "revoked",
            Loss::HandedOver => "handed_over",
            Loss::Released => "released",
            Loss::Forgotten => "forgotten",
            Loss::Unreachable => "unreachable",
            Loss::Suspended => "suspended",
            Loss::Stalled => "stalled",
            Loss::HeldLongest => "held_longest",
        }
    }

    /// Whether only this holder's own clock says so: the cluster may still count the lease as held.
    pub(super) fn is_by_own_clock(self) -> bool {
        matches!(self, Loss::Unreachable | Loss::Suspended | Loss::Stalled | Loss::HeldLongest)
    }
}

impl From<LostReason> for Loss {
    fn from(reason: LostReason) -> Loss {
        match reason {
            LostReason::Expired => Loss::Expired,
            LostReason::Revoked => Loss::Revoked,
            LostReason::HandedOver => Loss::HandedOver,
            LostReason::Released => Loss::Released,
            LostReason::Unknown => Loss::Forgotten,
        }
    }
}

impl std::error::Error for Loss {}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Expired => "it expired",
            Loss::Revoked => "an operator revoked it",
            Loss::HandedOver => "it was handed over",
            Loss::Released => "it was released elsewhere",
            Loss::Forgotten => "the cluster does not remember it",
            Loss::Unreachable => "it could not be renewed in time",
            Loss::Suspended => "this process did not run when its time ended",
            Loss::Stalled => "the work made no progress",
            Loss::HeldLongest => "it was held for as long as it may be",
        })
    }
}
