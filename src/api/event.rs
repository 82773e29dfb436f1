//! Transitions of leases, in histories and in the watch.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Timestamp;
use crate::token::FencingToken;
use crate::types::GrantCause;
use crate::types::open_enum::open_enum;

/// The grant or the end of a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Event {
    /// The kind of the transition.
    pub event: EventKind,
    /// Index of the log entry that caused it.
    pub index: u64,
    /// Position among the transitions of that entry, from 0.
    pub part: u32,
    /// The name of the lease.
    pub name: String,
    /// The holder that got the lease, or that had it.
    pub holder: String,
    /// The fencing token of the grant.
    #[cfg_attr(feature = "server", schema(value_type = String, example = "281474976710661"))]
    pub token: FencingToken,
    /// The cause of a grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<GrantCause>,
    /// The operator's reason for a revoke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The new holder after a hand-over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The wall-clock time of the log entry. For display only.
    #[cfg_attr(feature = "server", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
}

open_enum! {
    /// The kind of a transition.
    EventKind {
        /// The holder got the lease.
        Granted = "granted",
        /// The ttl ended without a renewal.
        Expired = "expired",
        /// The holder released the lease.
        Released = "released",
        /// An operator revoked the lease.
        Revoked = "revoked",
        /// The holder handed the lease over to a waiter.
        HandedOver = "handed_over",
        /// The cluster was restored from a backup.
        Restored = "restored",
    }
}

/// A position in the watch: the client has seen all events up to and including it.
///
/// As text, `index` covers all transitions of that log entry, and `index.part` those up to that part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    /// The log index of the entry.
    pub index: u64,
    /// The transition of the entry; `None`: all of them.
    pub part: Option<u32>,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Some(part) => write!(f, "{}.{part}", self.index),
            None => write!(f, "{}", self.index),
        }
    }
}

impl FromStr for EventId {
    type Err = InvalidEventId;

    fn from_str(text: &str) -> Result<EventId, InvalidEventId> {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (index, part) = match text.split_once('.') {
            Some((index, part)) => (index, Some(part)),
            None => (text, None),
        };
        if !digits(index) || !part.is_none_or(digits) {
            return Err(InvalidEventId);
        }
        let index = index.parse().map_err(|_| InvalidEventId)?;
        let part = part.map(str::parse).transpose().map_err(|_| InvalidEventId)?;
        Ok(EventId { index, part })
    }
}

/// The text is not an [`EventId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid event id: expected the `id` of a watch event, an integer or two integers separated by a dot")]
pub struct InvalidEventId;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_id_round_trips() {
        for (text, id) in [("17", EventId { index: 17, part: None }), ("17.0", EventId { index: 17, part: Some(0) })] {
            assert_eq!(text.parse(), Ok(id));
            assert_eq!(id.to_string(), text);
        }
        for bad in ["", ".", "1.", ".1", "-1", "+1", "1.2.3", "18446744073709551616", "1.4294967296", "a"] {
            assert_eq!(bad.parse::<EventId>(), Err(InvalidEventId), "{bad}");
        }
    }
}
