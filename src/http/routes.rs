//! The route table. The attribute of a handler has its method, path and documentation.

use axum::Router;
use axum::http::{Method, Uri};
use utoipa::openapi::Paths;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::App;
use super::observe::MetricsLayer;
use super::openapi;
use super::response::ProblemResponse;
use super::{claims, reads, status, watch};
use crate::api::Code;

/// All routes, with their documentation.
pub(super) fn all() -> OpenApiRouter<App> {
    without_metrics().routes(routes!(status::metrics))
}

fn without_metrics() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::without_paths())
        .routes(routes!(claims::acquire))
        .routes(routes!(claims::renew))
        .routes(routes!(claims::release))
        .routes(routes!(claims::hand_over))
        .routes(routes!(claims::update_metadata))
        .routes(routes!(claims::renew_batch))
        .routes(routes!(reads::get, claims::revoke))
        .routes(routes!(reads::history))
        .routes(routes!(reads::queue))
        .routes(routes!(reads::explain))
        .routes(routes!(reads::list))
        .routes(routes!(watch::watch))
        .routes(routes!(status::cluster))
        .routes(routes!(status::livez))
        .routes(routes!(status::readyz))
        .routes(routes!(status::version))
        .routes(routes!(status::openapi))
}

/// The routes of the node, and a problem for every other path.
pub(super) fn standalone_router(app: App) -> Router {
    observed(&app, |router| router.fallback(no_such_path)).with_state(app)
}

/// The routes of the node without a fallback: the program that mounts them handles all other paths.
pub(super) fn mountable_router(app: App) -> Router {
    observed(&app, |router| router).with_state(app)
}

fn observed(app: &App, complete: impl FnOnce(Router<App>) -> Router<App>) -> Router<App> {
    // `/metrics` exists only if the settings have a renderer.
    let routes = if app.settings.metrics.is_some() { all() } else { without_metrics() };
    let (router, document) = routes.split_for_parts();
    let layer = MetricsLayer::new(app.settings.node, operations(&document.paths));
    // One layer does all the work: each layer costs every request an allocation and an indirect call.
    complete(router).method_not_allowed_fallback(no_such_method).layer(layer)
}

/// The path and method of each operation.
fn operations(paths: &Paths) -> impl Iterator<Item = (&str, Method)> {
    paths.paths.iter().flat_map(|(path, item)| {
        let methods = [
            (Method::GET, &item.get),
            (Method::POST, &item.post),
            (Method::PUT, &item.put),
            (Method::PATCH, &item.patch),
            (Method::DELETE, &item.delete),
        ];
        methods.into_iter().filter_map(move |(method, operation)| operation.as_ref().map(|_| (path.as_str(), method)))
    })
}

async fn no_such_path(uri: Uri) -> ProblemResponse {
    ProblemResponse::new(Code::NotFound, format!("there is no path {:?}; see /openapi.json", uri.path()))
}

async fn no_such_method(method: Method, uri: Uri) -> ProblemResponse {
    ProblemResponse::new(Code::MethodNotAllowed, format!("{} has no method {method}; see /openapi.json", uri.path()))
}
