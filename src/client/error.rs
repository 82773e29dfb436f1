//! What can come of a request that was not done.

use crate::api::{Code, Problem};
use crate::types::InvalidValue;

/// A request without the answer that was asked for. Every variant says whether it may have been done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// Certainly not done: the cluster said no, and why.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    /// It may have been done, or may be done yet. Sending it again is safe.
    #[error("the outcome is unknown: {why}{}", last_words(.last))]
    Unknown {
        /// How the answer was lost.
        why: String,
        /// What a later attempt of the same request was told. It does not settle what became of the earlier one.
        last: Option<Box<Problem>>,
    },
    /// Certainly not done: no node could be reached, or none could serve within the time.
    #[error("no node could serve the request: {0}")]
    Unavailable(String),
    /// Certainly not done: the lease manager, or the node in this process, was shut down. Trying again is of no use.
    #[error("the lease manager or its node is shut down")]
    ShutDown,
}

impl From<InvalidValue> for CallError {
    fn from(error: InvalidValue) -> CallError {
        CallError::Refused(Box::new(Problem::new(Code::Invalid, error.to_string())))
    }
}

fn last_words(last: &Option<Box<Problem>>) -> String {
    last.as_ref().map(|problem| format!("; a later attempt was refused: {}", problem.detail)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Loss, WithError};
    use crate::types::LeaseName;

    #[test]
    fn errors_of_parts_become_errors_of_the_whole() {
        let name = LeaseName::new("no name").expect_err("it has a space");
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
