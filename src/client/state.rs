//! The state of a lease at its holder, and the reasons of a loss.

use std::fmt;
use std::time::Duration;

use crate::api::{EventKind, LostReason};
use crate::token::FencingToken;

/// The state of one lease at its holder, by local knowledge.
///
/// `left` is the time that was left when the state began, less the drift margin. [`Lease::remaining`] returns the time
/// that is left now.
///
/// [`Lease::remaining`]: super::Lease::remaining
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldState {
    /// Not acquired yet.
    Idle,
    /// Held. `left` is the time until the deadline; `None`: infinite.
    Held {
        /// The fencing token.
        token: FencingToken,
        /// The time to the deadline.
        left: Option<Duration>,
    },
    /// Held, but renewals fail. `failures` counts them since the last successful renewal.
    AtRisk {
        /// The fencing token.
        token: FencingToken,
        /// The time to the deadline.
        left: Option<Duration>,
        /// Failed renewals since the last successful one.
        failures: u32,
    },
    /// Held, but no longer renewed. The work must end within `left`.
    Ending {
        /// The fencing token.
        token: FencingToken,
        /// The time to the deadline.
        left: Duration,
        /// The reason that a loss at the deadline will have.
        why: Loss,
    },
    /// Not held: the grant ended without a release by this handle.
    Lost {
        /// The fencing token of the lost grant.
        token: FencingToken,
        /// The reason.
        why: Loss,
    },
    /// Not held: this process released the lease or handed it over.
    Released {
        /// The fencing token of the released grant.
        token: FencingToken,
    },
}

impl HoldState {
    /// Whether the lease was held when this state began. The deadline may have passed since then:
    /// [`Lease::is_held`](super::Lease::is_held) checks the clock.
    pub fn is_held(&self) -> bool {
        matches!(self, HoldState::Held { .. } | HoldState::AtRisk { .. } | HoldState::Ending { .. })
    }
}

/// Why a holder lost its lease. Later versions may add reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The cluster answered that the lease had expired.
    Expired,
    /// An operator revoked the lease.
    Revoked,
    /// Another process used this holder's token to hand the lease over.
    HandedOver,
    /// Another process or handle used this holder's token to release the lease.
    Released,
    /// The cluster has no record of the grant.
    Forgotten,
    /// The cluster was restored from a backup.
    Restored,
    /// The deadline passed without a successful renewal.
    Unreachable,
    /// The deadline passed while this process or its machine did not run.
    Suspended,
    /// The deadline passed after the progress check of [`LeaseOptions::renew_while`](super::LeaseOptions::renew_while)
    /// had returned `false`.
    Stalled,
    /// The deadline passed after the lease had reached
    /// [`LeaseOptions::longest_hold`](super::LeaseOptions::longest_hold).
    HeldLongest,
    /// The cluster ended the lease for a reason that this version does not know.
    Other,
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
            Loss::Restored => "restored",
            Loss::Unreachable => "unreachable",
            Loss::Suspended => "suspended",
            Loss::Stalled => "stalled",
            Loss::HeldLongest => "held_longest",
            Loss::Other => "other",
        }
    }

    /// Whether the holder's clock alone ended the lease. The cluster may then still count it as held.
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
            LostReason::Restored => Loss::Restored,
            LostReason::Other => Loss::Other,
        }
    }
}

impl From<EventKind> for Loss {
    /// The reason of a loss that ended the grant with this event.
    fn from(end: EventKind) -> Loss {
        match end {
            EventKind::Revoked => Loss::Revoked,
            EventKind::HandedOver => Loss::HandedOver,
            EventKind::Released => Loss::Released,
            EventKind::Restored => Loss::Restored,
            EventKind::Expired | EventKind::Granted => Loss::Expired,
            EventKind::Other => Loss::Other,
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
            Loss::Released => "another client released it",
            Loss::Forgotten => "the cluster does not remember it",
            Loss::Restored => "the cluster was restored from a backup",
            Loss::Unreachable => "it could not be renewed in time",
            Loss::Suspended => "this process did not run at its deadline",
            Loss::Stalled => "the work made no progress",
            Loss::HeldLongest => "it reached its longest hold time",
            Loss::Other => "the cluster ended it for a reason that this version does not know",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_held_until_it_is_lost_or_released() {
        let (token, left, why) = (FencingToken { term: 1, index: 7 }, Duration::from_secs(1), Loss::Unreachable);
        let states = [
            (HoldState::Idle, false),
            (HoldState::Held { token, left: Some(left) }, true),
            (HoldState::AtRisk { token, left: Some(left), failures: 1 }, true),
            (HoldState::Ending { token, left, why }, true),
            (HoldState::Lost { token, why }, false),
            (HoldState::Released { token }, false),
        ];
        for (state, is_held) in states {
            assert_eq!(state.is_held(), is_held, "{state:?}");
        }
    }

    #[test]
    fn loss_has_the_word_of_the_api() {
        let same = [
            LostReason::Expired,
            LostReason::Revoked,
            LostReason::HandedOver,
            LostReason::Released,
            LostReason::Restored,
            LostReason::Other,
        ];
        for reason in same {
            assert_eq!(Loss::from(reason).as_str(), reason.as_str());
        }
        assert_eq!(Loss::from(LostReason::Unknown), Loss::Forgotten);
    }
}
