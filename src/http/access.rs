//! Handlers for access control.

use std::time::Duration;

use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::admission::RequestPermit;
use super::app::App;
use super::input::{Body, JsonBody, NoParams, Params, Routing};
use super::response::{self, ProblemResponse};
use crate::access::{AccessChange, AccessName, TokenId};
use crate::api::{self, Problem};
use crate::node::Request;
use crate::service;

impl JsonBody for api::SetRole {}
impl JsonBody for api::SetPrincipal {}

/// The `{access}` of a path: the name of a role or principal, or the id of a token.
pub(super) struct Named<T>(T);

#[derive(Deserialize)]
struct AccessParam {
    access: String,
}

impl<T: TryFrom<String, Error: std::fmt::Display>> FromRequestParts<App> for Named<T> {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Named<T>, ProblemResponse> {
        let path = Path::<AccessParam>::from_request_parts(parts, app).await;
        let Path(AccessParam { access }) = path.map_err(|error| ProblemResponse::invalid(format!("path: {error}")))?;
        T::try_from(access).map(Named).map_err(|error| ProblemResponse::invalid(error.to_string()))
    }
}

/// Returns the roles, the principals and the ids of their access tokens.
#[utoipa::path(get, path = "/v1/access", tag = "access",
    responses((status = 200, description = "The state of access control", body = api::AccessControl)))]
pub(super) async fn access_control(
    State(app): State<App>,
    _permit: RequestPermit,
    routing: Routing,
    _no_params: NoParams,
) -> Result<Response, ProblemResponse> {
    let response = routing.send(&app, Request::Access).await?;
    response::reply(response, |answer, _| service::access::view(answer))
}

/// Turns access control on. The request needs the credential of a principal with the right `admin`.
#[utoipa::path(post, path = "/v1/access/enable", tag = "access",
    responses(
        (status = 200, description = "The state of access control", body = api::AccessControl),
        (status = 409, description = "`access_refused`: the caller could not undo it", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn enable(
    State(app): State<App>,
    routing: Routing,
    _no_params: NoParams,
) -> Result<Response, ProblemResponse> {
    change(&app, &routing, AccessChange::Enable(true)).await
}

/// Turns access control off: each caller may do everything. Roles, principals and tokens stay.
#[utoipa::path(post, path = "/v1/access/disable", tag = "access",
    responses(
        (status = 200, description = "The state of access control", body = api::AccessControl),
        (status = 409, description = "`access_refused`; the detail has the reason", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn disable(
    State(app): State<App>,
    routing: Routing,
    _no_params: NoParams,
) -> Result<Response, ProblemResponse> {
    change(&app, &routing, AccessChange::Enable(false)).await
}

/// Creates a role, or replaces its permissions.
#[utoipa::path(put, path = "/v1/access/roles/{access}", tag = "access",
    params(("access" = String, Path, description = "The role's name")), request_body = api::SetRole,
    responses(
        (status = 200, description = "The state of access control", body = api::AccessControl),
        (status = 409, description = "`access_refused`; the detail has the reason", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn set_role(
    State(app): State<App>,
    routing: Routing,
    Named(role): Named<AccessName>,
    Body(body, _budget): Body<api::SetRole>,
) -> Result<Response, ProblemResponse> {
    let permissions = body.permissions.into_iter().map(service::access::permission).collect::<Result<_, _>>()?;
    change(&app, &routing, AccessChange::SetRole { role, permissions }).await
}

/// Removes a role that no principal has.
#[utoipa::path(delete, path = "/v1/access/roles/{access}", tag = "access",
    params(("access" = String, Path, description = "The role's name")),
    responses(
        (status = 200, description = "The state of access control", body = api::AccessControl),
        (status = 404, description = "`not_found`: no such role", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`access_refused`; the detail has the reason", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn remove_role(
    State(app): State<App>,
    routing: Routing,
    Named(role): Named<AccessName>,
    _no_params: NoParams,
) -> Result<Response, ProblemResponse> {
    change(&app, &routing, AccessChange::RemoveRole(role)).await
}

/// Creates a principal, or replaces its roles.
#[utoipa::path(put, path = "/v1/access/principals/{access}", tag = "access",
    params(("access" = String, Path, description = "The principal's name")), request_body = api::SetPrincipal,
    responses(
        (status = 200, description = "The state of access control", body = api::AccessControl),
        (status = 404, description = "`not_found`: no such role", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`access_refused`; the detail has the reason", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn set_principal(
    State(app): State<App>,
    routing: Routing,
    Named(principal): Named<AccessName>,
    Body(body, _budget): Body<api::SetPrincipal>,
) -> Result<Response, ProblemResponse> {
    let roles = body.roles.into_iter().collect();
    change(&app, &routing, AccessChange::SetPrincipal { principal, roles }).await
}

/// Removes a principal and its tokens. Its leases stay until they end.
#[utoipa::path(delete, path = "/v1/access/principals/{access}", tag = "access",
    params(("access" = String, Path, description = "The principal's name")),
    responses(
        (status = 200, description = "The state of access control", body = api::AccessControl),
        (status = 404, description = "`not_found`: no such principal", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`access_refused`; the detail has the reason", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn remove_principal(
    State(app): State<App>,
    routing: Routing,
    Named(principal): Named<AccessName>,
    _no_params: NoParams,
) -> Result<Response, ProblemResponse> {
    change(&app, &routing, AccessChange::RemovePrincipal(principal)).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TokenParams {
    /// The leader revokes the token after this time, in milliseconds by its wall clock. Without it, the token does not
    /// expire.
    #[serde(default)]
    #[param(required = false, minimum = 1, maximum = 3_155_760_000_000_u64)]
    ttl_ms: Option<u64>,
}

/// Creates an access token of a principal. Only this response has the secret.
#[utoipa::path(post, path = "/v1/access/principals/{access}/tokens", tag = "access",
    params(("access" = String, Path, description = "The principal's name"), TokenParams),
    responses(
        (status = 200, description = "The token, with its secret", body = api::CreatedToken),
        (status = 404, description = "`not_found`: no such principal", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`access_refused`; the detail has the reason", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn create_token(
    State(app): State<App>,
    routing: Routing,
    Named(principal): Named<AccessName>,
    Params(params): Params<TokenParams>,
) -> Result<Response, ProblemResponse> {
    let (added, created) = service::access::new_token(principal, params.ttl_ms.map(Duration::from_millis))?;
    let response = routing.send(&app, Request::ChangeAccess(added)).await?;
    response::reply(response, |answer, _| {
        let state = service::access::view(answer)?;
        Ok(api::CreatedToken { expires_at: service::access::expires_at(&state, &created.id), ..created })
    })
}

/// Revokes an access token: no node accepts it any more.
#[utoipa::path(delete, path = "/v1/access/tokens/{access}", tag = "access",
    params(("access" = String, Path, description = "The token's id")),
    responses(
        (status = 200, description = "The state of access control", body = api::AccessControl),
        (status = 404, description = "`not_found`: no such token", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`access_refused`; the detail has the reason", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn revoke_token(
    State(app): State<App>,
    routing: Routing,
    Named(id): Named<TokenId>,
    _no_params: NoParams,
) -> Result<Response, ProblemResponse> {
    change(&app, &routing, AccessChange::RemoveToken(id)).await
}

async fn change(app: &App, routing: &Routing, change: AccessChange) -> Result<Response, ProblemResponse> {
    let response = routing.send(app, Request::ChangeAccess(change)).await?;
    response::reply(response, |answer, _| service::access::view(answer))
}
