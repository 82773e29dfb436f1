//! JSON responses, and the headers that name the serving node and its state.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

use super::refusal::HttpProblem;
use crate::api::{INDEX_HEADER, NODE_HEADER, Problem, STALE_HEADER, TERM_HEADER};
use crate::node::{self, Answer, Served};
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
) -> Result<Response, HttpProblem> {
    let served = response.served;
    match read(response.answer, served.now) {
        Ok(value) => Ok(ok(&served, &value)),
        Err(problem) => Err(HttpProblem::from(problem).served(served)),
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
