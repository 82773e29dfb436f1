//! Conversion of refusals by the lease machine and errors of the node to problems.

use tracing::error;

use crate::api::{Code, Problem, Timestamp};
use crate::lease::{Lost, LostReason, Refusal};
use crate::node::{Compacted, RequestError};

/// Milliseconds until a retry, for problems that end soon.
pub(crate) const RETRY_MS: u64 = 250;

/// Returns a problem. Problems that end soon have `retry_after_ms`.
pub(crate) fn problem(code: Code, detail: impl Into<String>) -> Problem {
    let is_temporary = matches!(code, Code::NoLeader | Code::NotReady | Code::TooBusy);
    Problem { retry_after_ms: is_temporary.then_some(RETRY_MS), ..Problem::new(code, detail) }
}

/// Returns the problem for an answer that does not match its request. This is a bug of the node.
pub(crate) fn unexpected(answer: &impl std::fmt::Debug) -> Box<Problem> {
    error!(?answer, "the answer of the node does not match the request");
    Box::new(problem(Code::Internal, "the answer of the node does not match the request; see the log of the node"))
}

pub(crate) fn request_error(error: RequestError) -> Problem {
    let detail = error.to_string();
    match error {
        RequestError::NoLeader => problem(Code::NoLeader, detail),
        RequestError::Busy => problem(Code::TooBusy, detail),
        RequestError::ShuttingDown => problem(Code::ShuttingDown, detail),
        RequestError::TooLarge => problem(Code::TooLarge, detail),
        RequestError::Unreadable(_) => problem(Code::Unsupported, detail),
        RequestError::Unknown(_) => problem(Code::OutcomeUnknown, detail),
        RequestError::AnswerTooLarge(_) => problem(Code::Internal, detail),
        RequestError::NotLeader { leader, .. } => Problem { leader: Some(leader), ..problem(Code::NotLeader, detail) },
    }
}

/// Returns the problem for a watch from a position that is no longer kept.
pub(crate) fn compacted(Compacted { oldest }: Compacted) -> Problem {
    let detail = format!("only events after log index {oldest} are kept; list the leases and watch from now");
    Problem { oldest: Some(oldest), ..problem(Code::Compacted, detail) }
}

/// Returns the problem for a refusal by the lease machine.
pub(super) fn refusal(refusal: Refusal) -> Box<Problem> {
    Box::new(match refusal {
        Refusal::Held { holder, token, granted_wall_ms, retry_after_ms, waiters } => {
            let since = Timestamp::from_millis(granted_wall_ms);
            let until = match retry_after_ms {
                Some(ms) => format!("it can expire in {ms} ms"),
                None => "its ttl is infinite".to_owned(),
            };
            Problem {
                holder: Some(holder.to_string()),
                token: Some(token),
                since: Some(since),
                retry_after_ms,
                waiters: Some(waiters),
                ..Problem::new(Code::Held, format!("held by {holder} since {since}; {until}"))
            }
        }
        Refusal::LockDelay { retry_after_ms } => Problem {
            retry_after_ms: Some(retry_after_ms),
            ..Problem::new(Code::LockDelay, format!("free, but under a lock delay for another {retry_after_ms} ms"))
        },
        Refusal::QueueFull { max_waiters } => Problem {
            limit: Some(max_waiters.into()),
            ..Problem::new(Code::QueueFull, format!("the queue has {max_waiters} waiters, which is the limit"))
        },
        Refusal::TooManyLeases { max_leases } => Problem {
            limit: Some(max_leases),
            ..Problem::new(Code::TooManyLeases, format!("the cluster has {max_leases} leases, which is the limit"))
        },
        Refusal::LeaseFull { max_bytes } => Problem {
            limit: Some(max_bytes),
            ..Problem::new(
                Code::LeaseFull,
                format!("the holders and waiters of a lease may have at most {max_bytes} bytes of names and metadata"),
            )
        },
        Refusal::LimitDiffers { limit } => Problem {
            limit: Some(limit.into()),
            ..Problem::new(Code::LimitDiffers, format!("the lease is held or waited for with limit {limit}"))
        },
        Refusal::Lost(lost) => self::lost(lost),
        Refusal::MetadataChanged { version } => Problem {
            metadata_version: Some(version),
            ..Problem::new(Code::MetadataChanged, format!("the metadata has changed: its version is {version}"))
        },
        Refusal::NoSuchWaiter => Problem::new(Code::NoSuchWaiter, "the lease has no waiters, or not the named one"),
        refusal @ Refusal::GrantedInThisEntry => return unexpected(&refusal),
    })
}

/// Returns the problem for a token that is not current.
pub(super) fn lost(lost: Lost) -> Problem {
    let how = match lost.cause {
        LostReason::Expired => "it expired before it was renewed",
        LostReason::Released => "it was released",
        LostReason::Revoked => "an operator revoked it",
        LostReason::HandedOver => "it was handed over",
        LostReason::Unknown | LostReason::Other => "no grant of this token to this holder is known",
    };
    let now = match &lost.holder {
        Some(holder) => format!("; {holder} holds the lease now"),
        None => "; the lease has no holder now".to_owned(),
    };
    Problem {
        why: Some(lost.cause),
        holder: lost.holder.map(String::from),
        ..Problem::new(Code::Lost, format!("{how}{now}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::HolderId;

    #[test]
    fn request_errors_have_exact_problem_codes() {
        for (error, status, code) in [
            (RequestError::NoLeader, 503, Code::NoLeader),
            (RequestError::Busy, 429, Code::TooBusy),
            (RequestError::TooLarge, 413, Code::TooLarge),
            (RequestError::Unreadable("no such request".to_owned()), 501, Code::Unsupported),
            (RequestError::ShuttingDown, 503, Code::ShuttingDown),
            (RequestError::Unknown("the connection broke".to_owned()), 504, Code::OutcomeUnknown),
            (RequestError::AnswerTooLarge("17 MiB".to_owned()), 500, Code::Internal),
        ] {
            let problem = request_error(error);
            assert_eq!((problem.status, problem.code), (status, code));
        }
    }

    #[test]
    fn loss_has_its_cause_and_the_current_holder() {
        let holder = HolderId::new("worker-2").expect("valid");
        let problem = lost(Lost { cause: LostReason::Expired, holder: Some(holder) });
        assert_eq!(problem.detail, "it expired before it was renewed; worker-2 holds the lease now");
        assert_eq!(problem.holder.as_deref(), Some("worker-2"));
    }

    #[test]
    fn reached_machine_bounds_are_refused_with_429() {
        for (refused, code, limit) in [
            (Refusal::TooManyLeases { max_leases: 7 }, Code::TooManyLeases, 7),
            (Refusal::QueueFull { max_waiters: 8 }, Code::QueueFull, 8),
            (Refusal::LeaseFull { max_bytes: 9 }, Code::LeaseFull, 9),
        ] {
            let problem = refusal(refused);
            assert_eq!((problem.status, problem.code, problem.limit), (429, code, Some(limit)));
        }
    }
}
