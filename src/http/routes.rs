//! The route table. The attribute of a handler has its method, path and documentation.

use axum::Router;
use axum::http::{Method, Uri};
use axum::routing::get;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::Paths;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::{App, NodeRef, Settings};
use super::observe::{MetricsLayer, RouteOperation};
use super::openapi;
use super::response::ProblemResponse;
use super::{access, backup, claims, members, reads, status, ui, watch};
use crate::api::Code;
use crate::node::Node;

impl Node {
    /// Returns the API of this node as a router for the program's own axum application.
    ///
    /// Merge the router, or nest it under a prefix. All nodes must use the same prefix. The routes are `/v1/…`, `/ui` and
    /// its files, `/livez`, `/readyz`, `/version` and `/openapi.json`; [`router_with`](Node::router_with) can add `/metrics`.
    ///
    /// The program's server limits the connections and the time for a request head, and closes connections at
    /// shutdown. The router limits the size and time of bodies, and the number of requests and watches.
    ///
    /// The router does not keep the node alive. When the node has shut down, its watches end and requests fail with
    /// `shutting_down`.
    ///
    /// Without access control, every client that reaches the router can take and revoke every lease, and remove members.
    /// With it, clients need access tokens: the router sees no certificates, and does not limit failed attempts by address.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(node: &tenure::node::Node) -> axum::Router {
    /// axum::Router::new().nest("/tenure", node.router())
    /// # }
    /// ```
    pub fn router(&self) -> Router {
        self.router_with(Settings::new(self.id()))
    }

    /// Like [`router`](Node::router), with explicit settings. The settings for connections have no effect.
    pub fn router_with(&self, settings: Settings) -> Router {
        // This token is never cancelled: only the node's shutdown ends a watch here.
        mountable_router(App::new(NodeRef::from(self), settings, CancellationToken::new()))
    }
}

/// All routes, with their documentation.
pub(super) fn all_routes() -> OpenApiRouter<App> {
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
        .routes(routes!(members::add))
        .routes(routes!(members::promote))
        .routes(routes!(members::replace))
        .routes(routes!(members::update))
        .routes(routes!(members::remove))
        .routes(routes!(members::transfer))
        .routes(routes!(backup::snapshot))
        .routes(routes!(access::access_control))
        .routes(routes!(access::enable))
        .routes(routes!(access::disable))
        .routes(routes!(access::set_role, access::remove_role))
        .routes(routes!(access::set_principal, access::remove_principal))
        .routes(routes!(access::create_token))
        .routes(routes!(access::revoke_token))
        .routes(routes!(status::livez))
        .routes(routes!(status::readyz))
        .routes(routes!(status::version))
        .routes(routes!(status::openapi))
        .routes(routes!(ui::page))
        .routes(routes!(ui::file))
        // The document has no redirect of another path.
        .route("/ui/", get(ui::without_slash))
}

/// The routes of the node, and a problem for every other path.
pub(super) fn standalone_router(app: App) -> Router {
    observed(&app, |router| router.fallback(no_such_path)).with_state(app)
}

/// The routes of the node without a fallback: the program that mounts them handles all other paths.
fn mountable_router(app: App) -> Router {
    observed(&app, |router| router).with_state(app)
}

fn observed(app: &App, complete: impl FnOnce(Router<App>) -> Router<App>) -> Router<App> {
    // `/metrics` exists only if the settings have a renderer.
    let routes = if app.settings.metrics.is_some() { all_routes() } else { without_metrics() };
    #[cfg(feature = "compat-leases")]
    let routes = if app.settings.limits.compat_leases { routes.merge(super::compat::routes()) } else { routes };
    let (router, document) = routes.split_for_parts();
    let layer = MetricsLayer::new(app.settings.node, app.settings.body_timeout, operations(&document.paths));
    // One layer does all the work: each layer costs every request an allocation and an indirect call.
    complete(router).method_not_allowed_fallback(no_such_method).layer(layer)
}

/// Each operation of the document. A handler reads a body only if its attribute has one.
fn operations(paths: &Paths) -> impl Iterator<Item = RouteOperation<'_>> {
    paths.paths.iter().flat_map(|(path, item)| {
        let methods = [
            (Method::GET, &item.get),
            (Method::POST, &item.post),
            (Method::PUT, &item.put),
            (Method::PATCH, &item.patch),
            (Method::DELETE, &item.delete),
        ];
        methods.into_iter().filter_map(move |(method, operation)| {
            let has_body = operation.as_ref()?.request_body.is_some();
            Some(RouteOperation { path, method, has_body })
        })
    })
}

async fn no_such_path(uri: Uri) -> ProblemResponse {
    ProblemResponse::new(Code::NotFound, format!("there is no path {:?}; see /openapi.json", uri.path()))
}

async fn no_such_method(method: Method, uri: Uri) -> ProblemResponse {
    ProblemResponse::new(Code::MethodNotAllowed, format!("{} has no method {method}; see /openapi.json", uri.path()))
}
