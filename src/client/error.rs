//! Errors of requests to a cluster.

use crate::api::{Code, Problem};
use crate::types::InvalidValue;

/// The error of a request. Each variant says whether the cluster may have applied the request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Not applied: the cluster refused the request and gave the reason.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    /// Applied or not, or still to be applied. Sending the request again is safe.
    #[error("the outcome is unknown: {why}{}", later_refusal(.last))]
    Unknown {
        /// Why there is no answer.
        why: String,
        /// The refusal of a later attempt. It does not prove that the earlier attempt was not applied.
        last: Option<Box<Problem>>,
    },
    /// Not applied: the client reached no node, or no node could serve the request in time.
    #[error("no node could serve the request: {0}")]
    Unavailable(String),
    /// Not applied: the lease manager, or the node in this process, is shut down. A retry fails, too.
    #[error("the lease manager or its node is shut down")]
    ShutDown,
}

impl From<InvalidValue> for CallError {
    fn from(error: InvalidValue) -> CallError {
        CallError::Refused(Box::new(Problem::new(Code::Invalid, error.to_string())))
    }
}

pub(super) fn refused(code: Code, detail: &str) -> CallError {
    CallError::Refused(Box::new(Problem::new(code, detail)))
}

/// The error of a claim that could not be withdrawn.
pub(super) fn not_withdrawn() -> CallError {
    let why = "the cluster did not confirm that the claim was withdrawn".to_owned();
    CallError::Unknown { why, last: None }
}

/// The error of a claim or a hand-over whose Tokio runtime was shut down before the answer.
pub(super) fn runtime_ended() -> CallError {
    CallError::Unknown { why: "the runtime of the request was shut down".to_owned(), last: None }
}

/// The error for an answer without a standing, or with one that only newer versions know. It does not say whether the
/// grant is in force.
pub(super) fn unknown_standing() -> CallError {
    let why = "the answer of the cluster has no standing of the holder that this client knows".to_owned();
    CallError::Unknown { why, last: None }
}

fn later_refusal(last: &Option<Box<Problem>>) -> String {
    last.as_ref().map(|problem| format!("; a later attempt was refused: {}", problem.detail)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Loss, WithError};
    use crate::types::LeaseName;

    #[test]
    fn invalid_value_becomes_refused_and_loss_becomes_lost() {
        let name = LeaseName::new("no name").expect_err("the name has a space");
        let refused = CallError::from(name.clone());
        assert!(matches!(&refused, CallError::Refused(problem) if problem.code == Code::Invalid));
        assert_eq!(refused.to_string(), name.to_string());
        assert_eq!(WithError::from(Loss::Revoked), WithError::Lost(Loss::Revoked));
    }

    #[test]
    fn unknown_outcome_names_a_later_refusal() {
        let unknown = |last| CallError::Unknown { why: "no answer".to_owned(), last };
        let alone = unknown(None).to_string();
        let refused = unknown(Some(Box::new(Problem::new(Code::Lost, "no longer held")))).to_string();
        assert!(alone.ends_with("no answer"), "{alone}");
        assert_eq!(refused, format!("{alone}; a later attempt was refused: no longer held"));
    }
}
