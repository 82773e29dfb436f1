//! Problems as HTTP responses.

use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::answer;
use crate::api::{Code, Problem};
use crate::node::{RequestError, Served};
use crate::service::{self, RETRY_MS};

/// The error of a request: an API problem and its response headers.
#[derive(Debug)]
pub(crate) struct HttpProblem(Box<Inner>);

#[derive(Debug)]
struct Inner {
    problem: Problem,
    served: Option<Served>,
    /// The leader's `host:port`, and the full URL after [`HttpProblem::redirect_to`].
    leader: Option<String>,
}

impl HttpProblem {
    pub fn new(code: Code, detail: impl Into<String>) -> HttpProblem {
        HttpProblem::from(service::problem(code, detail))
    }

    pub fn invalid(detail: impl Into<String>) -> HttpProblem {
        HttpProblem::new(Code::Invalid, detail)
    }

    #[cfg(all(test, feature = "testing"))]
    pub fn code(&self) -> Code {
        self.0.problem.code
    }

    /// Adds the state that the problem reflects.
    pub fn served(mut self, served: Served) -> HttpProblem {
        self.0.served = Some(served);
        self
    }
}

impl From<Problem> for HttpProblem {
    fn from(problem: Problem) -> HttpProblem {
        HttpProblem(Box::new(Inner { problem, served: None, leader: None }))
    }
}

impl From<Box<Problem>> for HttpProblem {
    fn from(problem: Box<Problem>) -> HttpProblem {
        HttpProblem::from(*problem)
    }
}

impl From<RequestError> for HttpProblem {
    fn from(error: RequestError) -> HttpProblem {
        let leader = match &error {
            RequestError::NotLeader { http, .. } => Some(http.clone()),
            _ => None,
        };
        HttpProblem(Box::new(Inner { problem: service::request_error(error), served: None, leader }))
    }
}

impl HttpProblem {
    /// Completes the `Location` of a `not_leader` problem: the same path and query at the leader.
    pub fn redirect_to(mut self, path_and_query: &str) -> HttpProblem {
        self.0.leader = self.0.leader.map(|http| format!("http://{http}{path_and_query}"));
        self
    }
}

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response {
        let Inner { problem, served, leader } = *self.0;
        let status = StatusCode::from_u16(problem.status).expect("each problem code has a valid HTTP status");
        let mut response = answer::json(status, "application/problem+json", &problem);
        let headers = response.headers_mut();
        if let Some(served) = served {
            answer::stamp(headers, &served);
        }
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            // `Retry-After` has a unit of one second, so 1 is its minimum.
            let seconds = problem.retry_after_ms.unwrap_or(RETRY_MS).div_ceil(1000);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(location) = leader.and_then(|location| HeaderValue::try_from(location).ok()) {
            headers.insert(LOCATION, location);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_names_the_same_path_at_the_leader() {
        let error = RequestError::NotLeader { leader: 2, http: "127.0.0.1:7102".to_owned() };
        let response = HttpProblem::from(error).redirect_to("/v1/leases/a?consistency=leader").into_response();
        assert_eq!(response.status(), StatusCode::TEMPORARY_REDIRECT);
        assert_eq!(response.headers()[LOCATION], "http://127.0.0.1:7102/v1/leases/a?consistency=leader");
    }

    #[test]
    fn no_leader_problem_has_retry_after() {
        let response = HttpProblem::from(RequestError::NoLeader).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
}
