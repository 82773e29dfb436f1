//! Handlers for changes of the members and for transfers of the leadership.

use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::app::App;
use super::input::{Body, JsonBody, NoParams, Params, Routing};
use super::response::{self, ProblemResponse};
use crate::api::{self, Problem};
use crate::config::MAX_ID;
use crate::node::Request;
use crate::service;
use crate::types::{MemberChange, NodeId};

impl JsonBody for api::AddMember {}
impl JsonBody for api::Addresses {}
impl JsonBody for api::ReplaceMember {}
impl JsonBody for api::Transfer {}

/// The `{id}` of a path.
pub(super) struct Id(NodeId);

/// Deserialized by field name: a path prefix of the mounting application may have parameters, too.
#[derive(Deserialize)]
struct IdParam {
    id: NodeId,
}

impl FromRequestParts<App> for Id {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Id, ProblemResponse> {
        let path = Path::<IdParam>::from_request_parts(parts, app).await;
        path.map(|Path(IdParam { id })| Id(id)).map_err(|error| ProblemResponse::invalid(format!("path: {error}")))
    }
}

/// Add a node. It receives the log, and becomes a voter when it has caught up.
#[utoipa::path(post, path = "/v1/cluster/members", tag = "members", request_body = api::AddMember,
    responses(
        (status = 200, description = "The members", body = api::Members),
        (status = 409, description = "`member_refused`, `member_lags`, `change_in_progress`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn add(
    State(app): State<App>,
    routing: Routing,
    Body(body, _budget): Body<api::AddMember>,
) -> Result<Response, ProblemResponse> {
    let api::AddMember { id, http, peer } = body;
    check_id(id)?;
    change(&app, &routing, MemberChange::Add { id, http, peer }).await
}

/// Make a member that has caught up a voter. Members ask for it themselves.
#[utoipa::path(post, path = "/v1/cluster/members/{id}/promote", tag = "members",
    params(("id" = u64, Path, description = "The member's id")),
    responses(
        (status = 200, description = "The members", body = api::Members),
        (status = 404, description = "`not_found`: no such member", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`member_refused`, `member_lags`, `change_in_progress`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn promote(
    State(app): State<App>,
    routing: Routing,
    Id(id): Id,
    _no_params: NoParams,
) -> Result<Response, ProblemResponse> {
    change(&app, &routing, MemberChange::Promote { id }).await
}

/// Remove a voter, and make another member a voter in its place, in one step.
#[utoipa::path(post, path = "/v1/cluster/members/{id}/replace", tag = "members",
    params(("id" = u64, Path, description = "The id of the voter to remove")), request_body = api::ReplaceMember,
    responses(
        (status = 200, description = "The members", body = api::Members),
        (status = 404, description = "`not_found`: no such member", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`member_refused`, `member_lags`, `change_in_progress`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn replace(
    State(app): State<App>,
    routing: Routing,
    Id(old): Id,
    Body(body, _budget): Body<api::ReplaceMember>,
) -> Result<Response, ProblemResponse> {
    check_id(body.with)?;
    change(&app, &routing, MemberChange::Replace { old, new: body.with }).await
}

/// Change the addresses of a member.
#[utoipa::path(post, path = "/v1/cluster/members/{id}/addresses", tag = "members",
    params(("id" = u64, Path, description = "The member's id")), request_body = api::Addresses,
    responses(
        (status = 200, description = "The members", body = api::Members),
        (status = 404, description = "`not_found`: no such member", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`member_refused`, `member_lags`, `change_in_progress`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn update(
    State(app): State<App>,
    routing: Routing,
    Id(id): Id,
    Body(body, _budget): Body<api::Addresses>,
) -> Result<Response, ProblemResponse> {
    let api::Addresses { http, peer } = body;
    change(&app, &routing, MemberChange::Update { id, http, peer }).await
}

/// The query of a removal.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RemoveParams {
    /// Remove it even if no majority of the other voters is healthy. The cluster then stops until a majority of them
    /// returns.
    #[serde(default)]
    #[param(required = false)]
    force: bool,
}

/// Remove a member for good. If it leads, it first transfers the leadership.
#[utoipa::path(delete, path = "/v1/cluster/members/{id}", tag = "members",
    params(("id" = u64, Path, description = "The member's id"), RemoveParams),
    responses(
        (status = 200, description = "The members", body = api::Members),
        (status = 404, description = "`not_found`: no such member", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`member_refused`, `member_lags`, `change_in_progress`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn remove(
    State(app): State<App>,
    routing: Routing,
    Id(id): Id,
    Params(params): Params<RemoveParams>,
) -> Result<Response, ProblemResponse> {
    change(&app, &routing, MemberChange::Remove { id, force: params.force }).await
}

/// Transfer the leadership to another voter.
#[utoipa::path(post, path = "/v1/cluster/transfer", tag = "members", request_body = api::Transfer,
    responses(
        (status = 200, description = "The old and the new leader", body = api::Transferred),
        (status = 404, description = "`not_found`: no such member", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`member_refused`, `member_lags`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn transfer(
    State(app): State<App>,
    routing: Routing,
    Body(body, _budget): Body<api::Transfer>,
) -> Result<Response, ProblemResponse> {
    body.to.map_or(Ok(()), check_id)?;
    let response = routing.send(&app, Request::Transfer(body.to)).await?;
    response::reply(response, |answer, _| service::transferred(answer))
}

fn check_id(id: NodeId) -> Result<(), ProblemResponse> {
    let is_valid = (1..=MAX_ID).contains(&id);
    if is_valid { Ok(()) } else { Err(ProblemResponse::invalid(format!("the id {id} is outside 1 to {MAX_ID}"))) }
}

async fn change(app: &App, routing: &Routing, change: MemberChange) -> Result<Response, ProblemResponse> {
    let response = routing.send(app, Request::ChangeMembers(change)).await?;
    response::reply(response, |answer, _| service::members(answer))
}
