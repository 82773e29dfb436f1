//! Handlers that change who holds a lease.

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::admission::RequestPermit;
use super::app::App;
use super::input::{Admitted, Body, Name, Params, Routing};
use super::response;
use super::response::ProblemResponse;
use crate::api::{self, Code, Problem};
use crate::node::Request;
use crate::service;

/// Claim a lease.
///
/// A holder that acquires again keeps its token and extends its lease, so it is safe to send a claim again.
/// With `wait_ms`, the response comes when the lease is granted or the wait ends. A client that closes the connection
/// leaves the queue.
#[utoipa::path(post, path = "/v1/leases/{name}/acquire", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::Acquire,
    responses(
        (status = 200, description = "The lease is granted, with this token", body = api::LeaseInfo),
        (status = 409, description = "`held`, `lock_delay`, `wait_timeout`, `wait_abandoned`, `lost`, `limit_differs`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue_full`, `lease_full`, `too_many_leases`, `too_busy`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn acquire(
    State(app): State<App>,
    routing: Routing,
    Name(name): Name,
    Admitted { body, permit, budget }: Admitted<api::Acquire>,
) -> Result<Response, ProblemResponse> {
    // The permits bound the parsed claims, and a claim may wait for a day.
    drop(budget);
    let claim = service::claim(&app.node()?.ttl(), name, body)?;
    // A claim that waits can take a day: it exchanges its request permit for one of `max_waits`.
    let waits = claim.wait_ms.is_some();
    let (_request_permit, _wait_permit) = if waits {
        drop(permit);
        (None, Some(app.admission.waits.try_acquire()?))
    } else {
        (Some(permit), None)
    };
    let response = tokio::select! {
        biased;
        // While unread bytes follow the request, hyper does not notice it.
        () = routing.client_left(), if waits => return Ok(client_left()),
        response = routing.send(&app, Request::Acquire(claim)) => response?,
    };
    response::reply(response, service::granted)
}

/// The answer for a client that may still read. The node serves no request that follows on the connection.
fn client_left() -> Response {
    let detail = "the client closed its sending half before the response";
    let mut response = ProblemResponse::new(Code::OutcomeUnknown, detail).into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Renew a lease for another ttl.
#[utoipa::path(post, path = "/v1/leases/{name}/renew", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::Renew,
    responses(
        (status = 200, description = "The lease is renewed, with the same token", body = api::LeaseInfo),
        (status = 409, description = "`lost`, with `why` and the current `holder`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn renew(
    State(app): State<App>,
    routing: Routing,
    Name(name): Name,
    Body(body, _budget): Body<api::Renew>,
) -> Result<Response, ProblemResponse> {
    let renew = service::renew(&app.node()?.ttl(), name, body)?;
    let response = routing.send(&app, renew).await?;
    response::reply(response, service::renewed_one)
}

/// Renew many leases of one holder for another ttl in one request.
#[utoipa::path(post, path = "/v1/renew", tag = "claims", request_body = api::RenewBatch,
    responses((status = 200, description = "One result for each lease, in the order of the request", body = api::Renewed)))]
pub(super) async fn renew_batch(
    State(app): State<App>,
    routing: Routing,
    Body(body, _budget): Body<api::RenewBatch>,
) -> Result<Response, ProblemResponse> {
    let names = body.leases.iter().map(|item| item.name.clone()).collect();
    let renew = service::renew_batch(&app.node()?.ttl(), body)?;
    let response = routing.send(&app, renew).await?;
    response::reply(response, |answer, now| service::renewed(names, answer, now))
}

/// Release a lease. If the token does not hold the lease, the release changes nothing and the response says so.
#[utoipa::path(post, path = "/v1/leases/{name}/release", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::Release,
    responses((status = 200, description = "Whether the token held the lease", body = api::Released)))]
pub(super) async fn release(
    State(app): State<App>,
    routing: Routing,
    Name(name): Name,
    Body(body, _budget): Body<api::Release>,
) -> Result<Response, ProblemResponse> {
    let response = routing.send(&app, service::release(name, body)).await?;
    response::reply(response, |answer, _| service::released(answer))
}

/// Hand a lease over to a waiter. The lease has a holder at every moment.
#[utoipa::path(post, path = "/v1/leases/{name}/handover", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::HandOver,
    responses(
        (status = 200, description = "The new holder's lease, with a new token", body = api::LeaseInfo),
        (status = 409, description = "`lost`, `no_such_waiter`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn hand_over(
    State(app): State<App>,
    routing: Routing,
    Name(name): Name,
    Body(body, _budget): Body<api::HandOver>,
) -> Result<Response, ProblemResponse> {
    let response = routing.send(&app, service::hand_over(name, body)).await?;
    response::reply(response, service::handed_over)
}

/// Replace the metadata of a held lease.
///
/// `version` is the `metadata_version` that this change replaces. A late or repeated request therefore never
/// overwrites newer metadata, and it is safe to send a request again.
#[utoipa::path(post, path = "/v1/leases/{name}/metadata", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::UpdateMetadata,
    responses(
        (status = 200, description = "The lease with its new metadata", body = api::LeaseInfo),
        (status = 409, description = "`lost`; `metadata_changed`, with the current `metadata_version`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn update_metadata(
    State(app): State<App>,
    routing: Routing,
    Name(name): Name,
    Admitted { body, permit: _permit, budget: _budget }: Admitted<api::UpdateMetadata>,
) -> Result<Response, ProblemResponse> {
    let response = routing.send(&app, service::update_metadata(name, body)?).await?;
    response::reply(response, service::granted)
}

/// The query of a revoke.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RevokeParams {
    /// The reason, for the history. At most 500 bytes.
    #[serde(default)]
    #[param(required = false, max_length = 500)]
    reason: String,
}

/// Revoke a lease from all its holders: an operator's release. Waiters stay in the queue.
#[utoipa::path(delete, path = "/v1/leases/{name}", tag = "claims",
    params(("name" = String, Path, description = "The lease's name"), RevokeParams),
    responses((status = 200, description = "The number of holders that lost the lease", body = api::Revoked)))]
pub(super) async fn revoke(
    State(app): State<App>,
    _permit: RequestPermit,
    routing: Routing,
    Name(name): Name,
    Params(params): Params<RevokeParams>,
) -> Result<Response, ProblemResponse> {
    let response = routing.send(&app, service::revoke(name, params.reason)?).await?;
    response::reply(response, |answer, _| service::revoked(answer))
}
