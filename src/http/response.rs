//! Responses: JSON bodies, problems, and the headers that name the serving node and its state.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api::{Code, INDEX_HEADER, NODE_HEADER, Problem, STALE_HEADER, TERM_HEADER};
use crate::node::{self, Answer, RequestError, Served};
use crate::service::{self, RETRY_MS};
use crate::types::ClusterMs;

/// 200 with a JSON body that reflects `served`.
fn ok(served: &Served, value: &impl Serialize) -> Response {
    let mut response = json(StatusCode::OK, "application/json", value);
    stamp(response.headers_mut(), served);
    response
}

/// Converts the node's answer with `read`, and adds the headers of the state that it reflects.
pub(super) fn reply<T: Serialize>(
    response: node::Response,
    read: impl FnOnce(Answer, ClusterMs) -> Result<T, Box<Problem>>,
) -> Result<Response, ProblemResponse> {
    let served = response.served;
    match read(response.answer, served.now) {
        Ok(value) => Ok(ok(&served, &value)),
        Err(problem) => Err(ProblemResponse::from(problem).served(served)),
    }
}

/// A response with a JSON body.
pub(super) fn json(status: StatusCode, content_type: &'static str, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("API types have string keys and finite numbers");
    with_type(status, content_type, body)
}

/// A response with a body of the given content type.
pub(super) fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Sets the headers for the serving node (the leader, if the request was forwarded) and the state it answered from.
pub(super) fn stamp(headers: &mut HeaderMap, served: &Served) {
    headers.insert(HeaderName::from_static(NODE_HEADER), HeaderValue::from(served.node));
    headers.insert(HeaderName::from_static(TERM_HEADER), HeaderValue::from(served.term));
    headers.insert(HeaderName::from_static(INDEX_HEADER), HeaderValue::from(served.applied));
    if let Some(stale_ms) = served.stale_ms {
        headers.insert(HeaderName::from_static(STALE_HEADER), HeaderValue::from(stale_ms));
    }
}

/// The error of a request: an API problem and its response headers.
#[derive(Debug)]
pub(crate) struct ProblemResponse(Box<ProblemParts>);

#[derive(Debug)]
struct ProblemParts {
    problem: Problem,
    served: Option<Served>,
    /// The leader's `host:port`, and the full URL after [`ProblemResponse::redirect_to`].
    leader: Option<String>,
}

impl ProblemResponse {
    pub fn new(code: Code, detail: impl Into<String>) -> ProblemResponse {
        ProblemResponse::from(service::problem(code, detail))
    }

    pub fn invalid(detail: impl Into<String>) -> ProblemResponse {
        ProblemResponse::new(Code::Invalid, detail)
    }

    #[cfg(all(test, feature = "testing"))]
    pub fn code(&self) -> Code {
        self.0.problem.code
    }

    #[cfg(feature = "compat-leases")]
    pub fn detail(&self) -> &str {
        &self.0.problem.detail
    }

    /// Adds the state that the problem reflects.
    pub fn served(mut self, served: Served) -> ProblemResponse {
        self.0.served = Some(served);
        self
    }
}

impl From<Problem> for ProblemResponse {
    fn from(problem: Problem) -> ProblemResponse {
        ProblemResponse(Box::new(ProblemParts { problem, served: None, leader: None }))
    }
}

impl From<Box<Problem>> for ProblemResponse {
    fn from(problem: Box<Problem>) -> ProblemResponse {
        ProblemResponse::from(*problem)
    }
}

impl From<RequestError> for ProblemResponse {
    fn from(error: RequestError) -> ProblemResponse {
        let leader = match &error {
            RequestError::NotLeader { http, .. } => Some(http.clone()),
            _ => None,
        };
        ProblemResponse(Box::new(ProblemParts { problem: service::request_error(error), served: None, leader }))
    }
}

impl ProblemResponse {
    /// Completes the `Location` of a `not_leader` problem: the same path and query at the leader, with the scheme of the
    /// request.
    pub fn redirect_to(mut self, path_and_query: &str) -> ProblemResponse {
        self.0.leader = self.0.leader.map(|http| format!("//{http}{path_and_query}"));
        self
    }
}

impl IntoResponse for ProblemResponse {
    fn into_response(self) -> Response {
        let ProblemParts { problem, served, leader } = *self.0;
        let status = StatusCode::from_u16(problem.status).expect("each problem code has a valid HTTP status");
        let mut response = json(status, "application/problem+json", &problem);
        let headers = response.headers_mut();
        if let Some(served) = served {
            stamp(headers, &served);
        }
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            // `Retry-After` has a unit of one second, so 1 is its minimum.
            let seconds = problem.retry_after_ms.unwrap_or(RETRY_MS).div_ceil(1000);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
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
        let response = ProblemResponse::from(error).redirect_to("/v1/leases/a?consistency=leader").into_response();
        assert_eq!(response.status(), StatusCode::TEMPORARY_REDIRECT);
        assert_eq!(response.headers()[LOCATION], "//127.0.0.1:7102/v1/leases/a?consistency=leader");
    }

    /// RFC 9110, 15.5.2: each response with the status 401 has the header.
    #[test]
    fn unauthenticated_problem_names_the_scheme() {
        for (code, scheme) in [(Code::Unauthenticated, Some("Bearer")), (Code::Forbidden, None)] {
            let response = ProblemResponse::new(code, "why").into_response();
            let header = response.headers().get(WWW_AUTHENTICATE).map(HeaderValue::as_bytes);
            assert_eq!(header, scheme.map(str::as_bytes), "{code:?}");
        }
    }

    #[test]
    fn no_leader_problem_has_retry_after() {
        let response = ProblemResponse::from(RequestError::NoLeader).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
}
