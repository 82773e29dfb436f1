//! The one place where refusals of the machine and failures of the node become problems on the wire.

use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tracing::error;

use super::{answer, wire};
use crate::api::{Code, Problem, Timestamp};
use crate::lease::{Lost, LostCause, Refusal};
use crate::node::{RequestError, Served};

/// When to try again where the server takes nothing for now, in milliseconds.
const RETRY_MS: u64 = 250;

/// A request that ends in a problem.
#[derive(Debug)]
pub(super) struct Refused(Box<Parts>);

#[derive(Debug)]
struct Parts {
    problem: Problem,
    served: Option<Served>,
    /// `host:port` of the leader, for a redirect there.
    leader: Option<String>,
}

impl Refused {
    pub fn new(code: Code, detail: impl Into<String>) -> Refused {
        let mut problem = Problem::new(code, detail);
        if matches!(code, Code::NoLeader | Code::NotReady | Code::TooBusy) {
            problem.retry_after_ms = Some(RETRY_MS);
        }
        Refused::from(problem)
    }

    pub fn invalid(detail: impl Into<String>) -> Refused {
        Refused::new(Code::Invalid, detail)
    }

    /// The node gave an answer that does not belong to the question.
    pub fn unexpected(answer: &impl std::fmt::Debug) -> Refused {
        error!(?answer, "the node's answer does not belong to the request");
        Refused::new(Code::Internal, "the node's answer does not belong to the request; see its log")
    }

    /// Says what state the refusal reflects.
    pub fn served(mut self, served: Served) -> Refused {
        self.0.served = Some(served);
        self
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Refused {
        Refused(Box::new(Parts { problem, served: None, leader: None }))
    }
}

impl From<RequestError> for Refused {
    fn from(error: RequestError) -> Refused {
        let detail = error.to_string();
        match error {
            RequestError::NoLeader => Refused::new(Code::NoLeader, detail),
            RequestError::Busy => Refused::new(Code::TooBusy, detail),
            RequestError::ShuttingDown => Refused::new(Code::ShuttingDown, detail),
            RequestError::TooLarge => Refused::new(Code::TooLarge, detail),
            RequestError::Unreadable(_) => Refused::new(Code::Unsupported, detail),
            RequestError::Unknown(_) => Refused::new(Code::OutcomeUnknown, detail),
            RequestError::NotLeader { leader, http } => {
                let mut refused =
                    Refused::from(Problem { leader: Some(leader), ..Problem::new(Code::NotLeader, detail) });
                refused.0.leader = Some(http);
                refused
            }
        }
    }
}

impl Refused {
    /// Sends a caller who asked not to be forwarded to the same path at the leader.
    pub fn redirect_to(mut self, path_and_query: &str) -> Refused {
        self.0.leader = self.0.leader.map(|http| format!("http://{http}{path_and_query}"));
        self
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Parts { problem, served, leader } = *self.0;
        let status = StatusCode::from_u16(problem.status).expect("the statuses of codes are HTTP's");
        let mut response = answer::json(status, "application/problem+json", &problem);
        let headers = response.headers_mut();
        if let Some(served) = served {
            answer::stamp(headers, &served);
        }
        if status == StatusCode::SERVICE_UNAVAILABLE || problem.code == Code::TooBusy {
            // The header counts in seconds: 1 is the soonest it can say.
            let seconds = problem.retry_after_ms.unwrap_or(RETRY_MS).div_ceil(1000);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(location) = leader.and_then(|location| HeaderValue::try_from(location).ok()) {
            headers.insert(LOCATION, location);
        }
        response
    }
}

/// What the machine refused, as a problem.
pub(super) fn problem(refusal: Refusal) -> Result<Problem, Refused> {
    Ok(match refusal {
        Refusal::Held { holder, token, granted_wall_ms, retry_after_ms, waiters } => {
            let since = Timestamp::from_millis(granted_wall_ms);
            let until = match retry_after_ms {
                Some(ms) => format!("it can lapse in {ms} ms"),
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
            ..Problem::new(Code::LockDelay, format!("free, and not granted to anybody for {retry_after_ms} ms yet"))
        },
        Refusal::QueueFull { max_waiters } => Problem {
            limit: Some(max_waiters.into()),
            ..Problem::new(Code::QueueFull, format!("{max_waiters} wait already, which is as many as may"))
        },
        Refusal::TooManyLeases { max_leases } => Problem {
            limit: Some(max_leases),
            ..Problem::new(Code::TooManyLeases, format!("{max_leases} leases exist, which is as many as may"))
        },
        Refusal::LimitDiffers { limit } => Problem {
            limit: Some(limit.into()),
            ..Problem::new(Code::LimitDiffers, format!("the lease is held or waited for with limit {limit}"))
        },
        Refusal::Lost(lost) => self::lost(lost),
        Refusal::NoSuchWaiter => Problem::new(Code::NoSuchWaiter, "nobody waits for the lease, or not the one named"),
        refusal @ Refusal::GrantedInThisEntry => return Err(Refused::unexpected(&refusal)),
    })
}

/// Why a token is not the current one.
pub(super) fn lost(lost: Lost) -> Problem {
    let how = match lost.cause {
        LostCause::Expired => "it lapsed before it was renewed",
        LostCause::Released => "it was released",
        LostCause::Revoked => "an operator revoked it",
        LostCause::HandedOver => "it was handed over",
        LostCause::Unknown => "no grant of this token to this holder is remembered",
    };
    let now = match &lost.holder {
        Some(holder) => format!("; {holder} holds the lease now"),
        None => "; nobody holds the lease now".to_owned(),
    };
    Problem {
        why: Some(wire::lost_reason(lost.cause)),
        holder: lost.holder.map(String::from),
        ..Problem::new(Code::Lost, format!("{how}{now}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::HolderId;

    #[test]
    fn a_request_is_refused_or_unknown_and_never_one_for_the_other() {
        for (error, status, code) in [
            (RequestError::NoLeader, 503, Code::NoLeader),
            (RequestError::Busy, 429, Code::TooBusy),
            (RequestError::TooLarge, 413, Code::TooLarge),
            (RequestError::Unreadable("no such request".to_owned()), 501, Code::Unsupported),
            (RequestError::ShuttingDown, 503, Code::ShuttingDown),
            (RequestError::Unknown("the connection broke".to_owned()), 504, Code::OutcomeUnknown),
        ] {
            let problem = Refused::from(error).0.problem;
            assert_eq!((problem.status, problem.code), (status, code));
        }
    }

    #[test]
    fn a_redirect_names_the_same_path_at_the_leader() {
        let error = RequestError::NotLeader { leader: 2, http: "127.0.0.1:7102".to_owned() };
        let response = Refused::from(error).redirect_to("/v1/leases/a?consistency=leader").into_response();
        assert_eq!(response.status(), StatusCode::TEMPORARY_REDIRECT);
        assert_eq!(response.headers()[LOCATION], "http://127.0.0.1:7102/v1/leases/a?consistency=leader");
    }

    #[test]
    fn what_takes_nothing_for_now_says_when_to_come_back() {
        let response = Refused::from(RequestError::NoLeader).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }

    #[test]
    fn a_loss_says_how_and_who_has_it_now() {
        let holder = HolderId::new("worker-2").expect("valid");
        let problem = lost(Lost { cause: LostCause::Expired, holder: Some(holder) });
        assert_eq!(problem.detail, "it lapsed before it was renewed; worker-2 holds the lease now");
        assert_eq!(problem.holder.as_deref(), Some("worker-2"));
    }
}
