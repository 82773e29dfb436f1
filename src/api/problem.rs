//! What a refusal looks like: RFC 9457 problem details with a code that programs can match.

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use super::{LostReason, Timestamp, decimal};
use crate::token::FencingToken;

/// `application/problem+json`. Which of the members below `code` are there depends on the code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:tenure:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words; the same for every problem of this code.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened here, with the values.
    pub detail: String,
    pub code: Code,
    /// `held`, `lost`: who holds the lease now, if anybody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// `held`: the present holder's token.
    #[serde(default, with = "decimal::optional", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub token: Option<FencingToken>,
    /// `held`: since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
    /// When it may be worth another try. Absent for a lease that is held without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// `held`: how many wait already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiters: Option<u32>,
    /// `lost`: how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<LostReason>,
    /// `limit_differs`: the limit it is held with. `queue_full`, `too_many_leases`, `lease_full`: how many there
    /// may be, or how many bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// `metadata_changed`: the version of the present metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_version: Option<u64>,
    /// `compacted`: the oldest log index that can still be resumed after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<u64>,
    /// `not_leader`: the leader's node id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<u64>,
}

impl Problem {
    /// A problem with the status and title of its code.
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("urn:tenure:problem:{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code,
            ..Problem::default()
        }
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $variant:ident = $text:literal, $status:literal, $title:literal;)*) => {
        /// What went wrong, for programs. Codes are never renamed; new ones may come.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $doc])* #[serde(rename = $text)] $variant,)*
            /// A code of a newer server.
            #[default]
            #[serde(other, rename = "other")]
            Other,
        }

        /// Derived, it would have the names of the variants.
        impl PartialSchema for Code {
            fn schema() -> RefOr<Schema> {
                let codes = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
                let words = "What went wrong, for programs. Codes are never renamed; new ones may come.";
                codes.enum_values(Some([$($text,)*])).description(Some(words)).into()
            }
        }

        impl ToSchema for Code {}

        impl Code {
            /// The code on the wire.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Code::$variant => $text,)*
                    Code::Other => "other",
                }
            }

            /// The HTTP status that goes with it.
            pub fn status(self) -> u16 {
                match self {
                    $(Code::$variant => $status,)*
                    Code::Other => 500,
                }
            }

            /// The code in words.
            pub fn title(self) -> &'static str {
                match self {
                    $(Code::$variant => $title,)*
                    Code::Other => "Something else",
                }
            }
        }
    };
}

codes! {
    /// The request cannot be understood, or a value is outside its bounds. Certainly not done.
    Invalid = "invalid", 400, "The request is not valid";
    /// No such path, or no such lease.
    NotFound = "not_found", 404, "There is nothing here";
    MethodNotAllowed = "method_not_allowed", 405, "The path has other methods";
    /// The request's body did not arrive in time. Certainly not done.
    BodyTimeout = "body_timeout", 408, "The body did not arrive in time";
    /// Somebody else holds the lease.
    Held = "held", 409, "The lease is held";
    /// Free, but not to be granted yet.
    LockDelay = "lock_delay", 409, "The lease is in its lock delay";
    /// The wait ended without a grant.
    WaitTimeout = "wait_timeout", 409, "The wait ended without a grant";
    /// The place in the queue was lost, because nobody was seen to wait with it.
    WaitAbandoned = "wait_abandoned", 409, "The place in the queue was lost";
    /// The lease is held with another limit.
    LimitDiffers = "limit_differs", 409, "The lease has another limit";
    /// Said by a client to itself: another member should hold the lease. The cluster was not asked.
    ShouldNotHold = "should_not_hold", 409, "Another member should hold the lease";
    /// Said by a client to itself: the work under a lease did not end in time, so it was not released.
    NotDrained = "not_drained", 409, "The work has not ended";
    /// The token is not the current one of this holder.
    Lost = "lost", 409, "The lease is not held with this token";
    /// The metadata has another version than the request replaces. Certainly not done.
    MetadataChanged = "metadata_changed", 409, "The metadata has another version";
    /// Nobody waits, or the one named does not.
    NoSuchWaiter = "no_such_waiter", 409, "There is no such waiter";
    /// The watch cannot be resumed from there: events after it are no longer kept.
    Compacted = "compacted", 410, "Events after this place are no longer kept";
    TooLarge = "too_large", 413, "The request is too large";
    UnsupportedMediaType = "unsupported_media_type", 415, "The body must be application/json";
    /// The queue has as many waiters as it may.
    QueueFull = "queue_full", 429, "The queue is full";
    /// The holders and waiters of the lease keep as many bytes as they may. Certainly not done.
    LeaseFull = "lease_full", 429, "The lease has too many holders and waiters";
    /// There are as many leases as there may be.
    TooManyLeases = "too_many_leases", 429, "There are too many leases";
    /// The node has as much in hand as it takes. Certainly not done.
    TooBusy = "too_busy", 429, "The node is too busy";
    /// This node does not lead, and the request asked not to be forwarded. Certainly not done.
    NotLeader = "not_leader", 307, "Another node leads";
    /// The watch fell behind, and events are missing after the last one it delivered. Resume from that one.
    Lagged = "lagged", 409, "The watch fell behind";
    Internal = "internal", 500, "The node failed to answer";
    /// The leader's build does not know this request: the cluster is being upgraded. Certainly not done.
    Unsupported = "unsupported", 501, "The leader does not know this request";
    /// Certainly not done.
    NoLeader = "no_leader", 503, "There is no leader at present";
    /// The node has not started yet, or should get no requests for now. Certainly not done.
    NotReady = "not_ready", 503, "The node is not ready";
    /// The node stopped for good; a restart would help. Certainly not done.
    Failed = "failed", 503, "The node has failed";
    /// Certainly not done.
    ShuttingDown = "shutting_down", 503, "The node is shutting down";
    /// It may have been done, or may be done yet. Sending it again is safe.
    OutcomeUnknown = "outcome_unknown", 504, "The outcome is unknown";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_has_the_rfc_members_and_those_of_its_code() {
        let problem = Problem { retry_after_ms: Some(250), ..Problem::new(Code::LockDelay, "free in 250 ms") };
        let json = serde_json::to_value(&problem).expect("plain");
        let expected = serde_json::json!({
            "type": "urn:tenure:problem:lock_delay", "title": "The lease is in its lock delay", "status": 409,
            "detail": "free in 250 ms", "code": "lock_delay", "retry_after_ms": 250
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Problem>(json).expect("it reads back"), problem);
    }

    #[test]
    fn unknown_code_is_read_as_other() {
        assert_eq!(serde_json::from_str::<Code>("\"quota\"").expect("it is read"), Code::Other);
        assert_eq!(serde_json::to_string(&Code::OutcomeUnknown).expect("plain"), "\"outcome_unknown\"");
    }
}
