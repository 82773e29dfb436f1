//! What can come of a request that was not done.

use crate::api::Problem;

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
}

fn last_words(last: &Option<Box<Problem>>) -> String {
    last.as_ref().map(|problem| format!("; a later attempt was refused: {}", problem.detail)).unwrap_or_default()
}
