//! Handlers that change who holds a lease.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::admission::{MayEnter, Permit};
use super::answer;
use super::app::App;
use super::body::{Body, Complete};
use super::input::{Hop, Name, Params};
use super::refusal::HttpProblem;
use crate::api::{self, Problem};
use crate::node::Request;
use crate::service;

/// Claim a lease.
///
/// The same holder acquiring again keeps its token and gets its time extended, so sending a claim again is safe.
/// With `wait_ms` the answer comes when the lease is granted or the wait ends; closing the connection gives up the
/// place in the queue.
#[utoipa::path(post, path = "/v1/leases/{name}/acquire", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::Acquire,
    responses(
        (status = 200, description = "Held, with this token", body = api::Lease),
        (status = 409, description = "`held`, `lock_delay`, `wait_timeout`, `wait_abandoned`, `lost`, `limit_differs`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue_full`, `lease_full`, `too_many_leases`, `too_busy`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn acquire(
    State(app): State<App>,
    _: MayEnter,
    hop: Hop,
    Name(name): Name,
    body: Complete<api::Acquire>,
) -> Result<Response, HttpProblem> {
    // Only now that the body is complete: a slow sender must not hold a turn.
    let turn = app.admission.turn().await?;
    // It may wait for a day, among a bounded number of its kind: its body is not counted for so long.
    let Body(body, _) = body.parse()?;
    let claim = service::claim(&app.node()?.ttl(), name, body)?;
    // One that waits may be in hand for a day: it has a place among its own kind instead.
    let (_turn, _place) = if claim.wait_ms.is_some() {
        drop(turn);
        (None, Some(app.admission.waits.take()?))
    } else {
        (Some(turn), None)
    };
    let response = hop.ask(&app, Request::Acquire(claim)).await?;
    answer::reply(response, service::granted)
}

/// Keep a lease for another ttl.
#[utoipa::path(post, path = "/v1/leases/{name}/renew", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::Renew,
    responses(
        (status = 200, description = "Held on, with the same token", body = api::Lease),
        (status = 409, description = "`lost`, with `why` and the present `holder`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn renew(
    State(app): State<App>,
    hop: Hop,
    Name(name): Name,
    Body(body, _counted): Body<api::Renew>,
) -> Result<Response, HttpProblem> {
    let renew = service::renew(&app.node()?.ttl(), name, body)?;
    let response = hop.ask(&app, renew).await?;
    answer::reply(response, service::renewed_one)
}

/// Keep many leases of one holder for another ttl, in one request.
#[utoipa::path(post, path = "/v1/renew", tag = "claims", request_body = api::RenewBatch,
    responses((status = 200, description = "One result for each lease, in the order asked", body = api::Renewed)))]
pub(super) async fn renew_batch(
    State(app): State<App>,
    hop: Hop,
    Body(body, _counted): Body<api::RenewBatch>,
) -> Result<Response, HttpProblem> {
    let names = body.leases.iter().map(|item| item.name.clone()).collect();
    let renew = service::renew_batch(&app.node()?.ttl(), body)?;
    let response = hop.ask(&app, renew).await?;
    answer::reply(response, |answer, now| service::renewed(names, answer, now))
}

/// Give a lease back. Releasing what is not held with this token changes nothing and says so.
#[utoipa::path(post, path = "/v1/leases/{name}/release", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::Release,
    responses((status = 200, description = "Whether it was held", body = api::Released)))]
pub(super) async fn release(
    State(app): State<App>,
    hop: Hop,
    Name(name): Name,
    Body(body, _counted): Body<api::Release>,
) -> Result<Response, HttpProblem> {
    let response = hop.ask(&app, service::release(name, body)).await?;
    answer::reply(response, |answer, _| service::released(answer))
}

/// Give a lease to a waiter, without a moment in which nobody has it.
#[utoipa::path(post, path = "/v1/leases/{name}/handover", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::HandOver,
    responses(
        (status = 200, description = "The new holder's lease, with a new token", body = api::Lease),
        (status = 409, description = "`lost`, `no_such_waiter`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn hand_over(
    State(app): State<App>,
    hop: Hop,
    Name(name): Name,
    Body(body, _counted): Body<api::HandOver>,
) -> Result<Response, HttpProblem> {
    let response = hop.ask(&app, service::hand_over(name, body)).await?;
    answer::reply(response, service::handed_over)
}

/// Replace the metadata of a held lease.
///
/// `version` is the `metadata_version` that the change replaces. So a request that arrives late or twice never overwrites
/// newer metadata, and sending one again is safe.
#[utoipa::path(post, path = "/v1/leases/{name}/metadata", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::UpdateMetadata,
    responses(
        (status = 200, description = "The lease with its new metadata", body = api::Lease),
        (status = 409, description = "`lost`; `metadata_changed`, with the present `metadata_version`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn update_metadata(
    State(app): State<App>,
    _: MayEnter,
    hop: Hop,
    Name(name): Name,
    body: Complete<api::UpdateMetadata>,
) -> Result<Response, HttpProblem> {
    let _turn = app.admission.turn().await?;
    let Body(body, _counted) = body.parse()?;
    let response = hop.ask(&app, service::update_metadata(name, body)?).await?;
    answer::reply(response, service::granted)
}

/// The query of a revoke.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RevokeParams {
    /// Kept in the history, at most 500 bytes.
    #[serde(default)]
    #[param(required = false, max_length = 500)]
    reason: String,
}

/// Take a lease from all its holders: an operator's release. Waiters keep their places.
#[utoipa::path(delete, path = "/v1/leases/{name}", tag = "claims",
    params(("name" = String, Path, description = "The lease's name"), RevokeParams),
    responses((status = 200, description = "How many holders lost it", body = api::Revoked)))]
pub(super) async fn revoke(
    State(app): State<App>,
    _turn: Permit,
    hop: Hop,
    Name(name): Name,
    Params(params): Params<RevokeParams>,
) -> Result<Response, HttpProblem> {
    let response = hop.ask(&app, service::revoke(name, params.reason)?).await?;
    answer::reply(response, |answer, _| service::revoked(answer))
}
