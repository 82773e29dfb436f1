//! Transitions of leases, as histories list them and the watch delivers them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Timestamp, decimal};
use crate::token::FencingToken;

/// One change of who holds a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub event: EventKind,
    /// Log index of the entry that caused it.
    pub index: u64,
    /// Which of that entry's transitions this is, from 0.
    pub part: u32,
    pub name: String,
    /// Who got the lease, or had it until now.
    pub holder: String,
    #[serde(with = "decimal")]
    #[schema(value_type = String, example = "281474976710661")]
    pub token: FencingToken,
    /// How a grant came about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<GrantCause>,
    /// The operator's reason of a revoke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who got a lease that was handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    Granted,
    Expired,
    Released,
    Revoked,
    HandedOver,
}

impl EventKind {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::Granted => "granted",
            EventKind::Expired => "expired",
            EventKind::Released => "released",
            EventKind::Revoked => "revoked",
            EventKind::HandedOver => "handed_over",
        }
    }
}

/// How a grant came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrantCause {
    /// Asked for and free.
    Asked,
    /// It was this waiter's turn.
    Queue,
    /// The holder before gave it.
    HandOver,
}

/// A place in the watch's stream: everything up to and with it has been seen.
///
/// On the wire `index` means the whole of that log entry, `index.part` its transitions up to that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    pub index: u64,
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

/// A place in the stream that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a place in the watch is the `id` of an event: an integer, or two with a dot between them")]
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
