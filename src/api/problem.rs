//! Errors as RFC 9457 problem details, with a code for programs.

use serde::{Deserialize, Serialize};

use super::{LostReason, Timestamp};
use crate::token::FencingToken;

/// The body of an error response, `application/problem+json`. The members after `code` depend on the code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Problem {
    /// `urn:tenure:problem:` followed by the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// A summary. All problems with this code have the same title.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The details of this problem, with values.
    pub detail: String,
    /// The error, for programs.
    pub code: Code,
    /// `held`, `lost`: the current holder, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// `held`: the current holder's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(value_type = Option<String>))]
    pub token: Option<FencingToken>,
    /// `held`: the time of the current holder's grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(value_type = Option<String>, format = DateTime))]
    pub since: Option<Timestamp>,
    /// Delay before a retry can succeed. Absent for a lease with an infinite ttl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// `held`: number of waiters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiters: Option<u32>,
    /// `lost`: how the grant ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<LostReason>,
    /// `limit_differs`: the current limit of the lease. `queue_full`, `too_many_leases`: the highest number of waiters
    /// or leases. `lease_full`: the highest number of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// `metadata_changed`: the current version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_version: Option<u64>,
    /// `compacted`: the oldest log index after which a watch can resume.
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
        /// The error, for programs. Existing codes never change; later versions can add codes.
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $doc])* #[serde(rename = $text)] $variant,)*
            /// A code that this build does not know, from a newer server.
            #[default]
            #[serde(other, rename = "other")]
            Other,
        }

        impl Code {
            /// All codes in JSON, without `other`.
            #[cfg(feature = "server")]
            pub(super) const NAMES: &[&str] = &[$($text,)*];

            /// The code in JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Code::$variant => $text,)*
                    Code::Other => "other",
                }
            }

            /// The HTTP status.
            pub fn status(self) -> u16 {
                match self {
                    $(Code::$variant => $status,)*
                    Code::Other => 500,
                }
            }

            /// The title.
            pub fn title(self) -> &'static str {
                match self {
                    $(Code::$variant => $title,)*
                    Code::Other => "Unknown problem code",
                }
            }
        }
    };
}

codes! {
    /// The request is malformed, or a value is outside its bounds. Certainly not done.
    Invalid = "invalid", 400, "The request is not valid";
    /// The request has no valid credential, and access control is on. Certainly not done.
    Unauthenticated = "unauthenticated", 401, "The request has no valid credential";
    /// The principal may not do this. Certainly not done.
    Forbidden = "forbidden", 403, "The principal may not do this";
    /// The path, the lease or the member does not exist.
    NotFound = "not_found", 404, "The path, the lease or the member does not exist";
    /// The path exists, and does not support this method.
    MethodNotAllowed = "method_not_allowed", 405, "The path does not support this method";
    /// The request body did not arrive in time. Certainly not done.
    BodyTimeout = "body_timeout", 408, "The body did not arrive in time";
    /// Another holder has the lease.
    Held = "held", 409, "The lease is held";
    /// The lease has no holder, but its lock delay is not over.
    LockDelay = "lock_delay", 409, "The lease is in its lock delay";
    /// The wait ended without a grant.
    WaitTimeout = "wait_timeout", 409, "The wait ended without a grant";
    /// The waiter lost its position in the queue, because no node had a request for it.
    WaitAbandoned = "wait_abandoned", 409, "The position in the queue was lost";
    /// The holders or waiters of the lease have another limit.
    LimitDiffers = "limit_differs", 409, "The lease has another limit";
    /// Only from the client library: another member should hold the lease. The client sent no request.
    ShouldNotHold = "should_not_hold", 409, "Another member should hold the lease";
    /// Only from the client library: the work under a lease did not end in time, so the client did not release the
    /// lease.
    NotDrained = "not_drained", 409, "The work has not ended";
    /// The holder does not have the lease with this token.
    Lost = "lost", 409, "The lease is not held with this token";
    /// The metadata does not have the version in the request. Certainly not done.
    MetadataChanged = "metadata_changed", 409, "The metadata has another version";
    /// The named holder does not wait, or the queue has no waiter that can take the lease.
    NoSuchWaiter = "no_such_waiter", 409, "There is no such waiter";
    /// The cluster makes another change of its members. Certainly not done.
    ChangeInProgress = "change_in_progress", 409, "The cluster makes another change of its members";
    /// The leader does not make this change of the members; the detail has the reason. Certainly not done.
    MemberRefused = "member_refused", 409, "The change of the members is refused";
    /// The member has not caught up, so it cannot become a voter or the leader yet. Certainly not done.
    MemberLags = "member_lags", 409, "The member has not caught up";
    /// The state of access control does not allow this change; the detail has the reason. Certainly not done.
    AccessRefused = "access_refused", 409, "The change of access control is refused";
    /// The watch cannot resume there: the cluster no longer stores the next events.
    Compacted = "compacted", 410, "The events after this position are no longer stored";
    /// The request is larger than allowed.
    TooLarge = "too_large", 413, "The request is too large";
    /// The body has another type than `application/json`.
    UnsupportedMediaType = "unsupported_media_type", 415, "The body must be application/json";
    /// The queue has its highest number of waiters.
    QueueFull = "queue_full", 429, "The queue is full";
    /// The holders and waiters of the lease would exceed its bound in bytes. Certainly not done.
    LeaseFull = "lease_full", 429, "The lease has too many holders and waiters";
    /// The cluster has its highest number of leases.
    TooManyLeases = "too_many_leases", 429, "There are too many leases";
    /// The node has reached a bound on requests in progress. Certainly not done.
    TooBusy = "too_busy", 429, "The node is too busy";
    /// The node is not the leader, and the request forbids forwarding. Certainly not done.
    NotLeader = "not_leader", 307, "Another node is the leader";
    /// The watch fell behind and dropped events after the last delivered one. Resume from that one.
    Lagged = "lagged", 409, "The watch fell behind";
    /// The node failed to answer. The outcome is unknown.
    Internal = "internal", 500, "The node failed to answer";
    /// The leader's older build does not know this request, during an upgrade. Certainly not done.
    Unsupported = "unsupported", 501, "The leader does not know this request";
    /// The node knows no leader. Certainly not done.
    NoLeader = "no_leader", 503, "The cluster has no leader";
    /// The node is starting, or does not accept requests at present. Certainly not done.
    NotReady = "not_ready", 503, "The node is not ready";
    /// The node stopped after a failure and needs a restart. Certainly not done.
    Failed = "failed", 503, "The node has failed";
    /// The node is shutting down. Certainly not done.
    ShuttingDown = "shutting_down", 503, "The node is shutting down";
    /// The cluster may have executed the request, or may still execute it. A retry is safe.
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
        assert_eq!(serde_json::from_value::<Problem>(json).expect("a valid problem"), problem);
    }

    #[test]
    fn unknown_code_is_read_as_other() {
        assert_eq!(serde_json::from_str::<Code>("\"quota\"").expect("a valid code"), Code::Other);
        assert_eq!(serde_json::to_string(&Code::OutcomeUnknown).expect("plain"), "\"outcome_unknown\"");
    }
}
