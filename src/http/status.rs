//! Handlers for health, metrics, the version and the state of the cluster.

use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;

use super::app::App;
use super::auth::{Audited, Credentials};
use super::input::NoParams;
use super::response;
use super::response::ProblemResponse;
use crate::access::Need;
use crate::api::{self, Code, INDEX_HEADER, Problem, TERM_HEADER};
use crate::service;

/// Get the cluster's state as this node sees it. The node never forwards this request.
#[utoipa::path(get, path = "/v1/cluster", tag = "status",
    responses((status = 200, description = "The cluster as this node sees it", body = api::Cluster)))]
pub(super) async fn cluster(
    State(app): State<App>,
    credentials: Credentials,
    _no_params: NoParams,
) -> Result<Response, ProblemResponse> {
    let node = app.node()?;
    credentials.authorize(&app, &node, &Need::Principal, &Audited::read("read", "cluster"))?;
    let cluster = service::cluster(node.status().await);
    let mut response = response::json(StatusCode::OK, "application/json", &cluster);
    response.headers_mut().insert(HeaderName::from_static(TERM_HEADER), HeaderValue::from(cluster.term));
    response.headers_mut().insert(HeaderName::from_static(INDEX_HEADER), HeaderValue::from(cluster.applied));
    Ok(response)
}

/// Liveness probe. It fails only when a restart would help.
#[utoipa::path(get, path = "/livez", tag = "status",
    responses(
        (status = 200, description = "The process is alive; it may not be ready", body = Object),
        (status = 503, description = "`failed`: the node has failed permanently; restart it", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn livez(State(app): State<App>) -> Result<Response, ProblemResponse> {
    match app.node.get().and_then(|node| node.health().failed) {
        Some(why) => Err(ProblemResponse::new(Code::Failed, why)),
        None => Ok(response::with_type(StatusCode::OK, "application/json", r#"{"alive":true}"#)),
    }
}

/// Readiness probe. It succeeds when the node knows a leader, has caught up and is not shutting down.
#[utoipa::path(get, path = "/readyz", tag = "status",
    responses(
        (status = 200, description = "Ready", body = Object),
        (status = 503, description = "`not_ready`, `failed`, `shutting_down`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn readyz(State(app): State<App>) -> Result<Response, ProblemResponse> {
    let health = app.node()?.health();
    match (health.failed, health.not_ready) {
        (Some(why), _) => Err(ProblemResponse::new(Code::Failed, why)),
        (None, Some(why)) => Err(ProblemResponse::new(Code::NotReady, why)),
        (None, None) => Ok(response::with_type(StatusCode::OK, "application/json", r#"{"ready":true}"#)),
    }
}

/// Get the metrics of the process in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "status",
    responses((status = 200, description = "Metrics", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(app): State<App>, request: Request) -> Result<Response, ProblemResponse> {
    // Before the node has started, there is nothing to protect.
    if let Some(node) = app.node.get().filter(|_| !app.settings.limits.public_metrics) {
        let (mut parts, _) = request.into_parts();
        let credentials = Credentials::from_request_parts(&mut parts, &app).await?;
        credentials.authorize(&app, &node, &Need::Principal, &Audited::read("read", "metrics"))?;
    }
    let render = app.settings.metrics.as_ref().expect("the route exists only with a renderer");
    Ok(response::with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", render()))
}

/// Get the version of the node's build.
#[utoipa::path(get, path = "/version", tag = "status",
    responses((status = 200, description = "The version", body = api::Version)))]
pub(super) async fn version() -> Response {
    response::json(StatusCode::OK, "application/json", &service::version())
}

/// Get this OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", tag = "status",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn openapi(State(app): State<App>) -> Response {
    response::with_type(StatusCode::OK, "application/json", app.openapi.clone())
}
