//! The state that all handlers share, and the route table. The attribute of a handler has its method, path and
//! documentation.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{Method, Uri};
use axum::routing::get;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::Paths;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::admission::AdmissionControl;
use super::auth::Failures;
use super::observe::MetricsLayer;
use super::openapi;
use super::response::ProblemResponse;
use super::{access, backup, claims, members, reads, status, ui, watch};
use crate::api::Code;
use crate::config::HttpLimits;
use crate::node::{Node, WeakNode};
use crate::tls::NodeTls;
use crate::types::NodeId;

/// Renders the process's metrics in the Prometheus text format.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Settings of a node's HTTP listener.
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The id of this node, for the header `X-Tenure-Node`.
    pub node: NodeId,
    /// Renders the response of `/metrics`. If `None`, the route `/metrics` does not exist.
    pub metrics: Option<RenderMetrics>,
    /// The certificates of the listener; `None`: it serves without TLS.
    pub tls: Option<NodeTls>,
    /// Whether the listener refuses each client without a certificate while access control is off. With access control,
    /// an access token is enough. `None`: it does if it has certificates and listens on another address than loopback.
    pub require_identity: Option<bool>,
    /// Above the connection limit, the listener answers 503 and closes the connection. Above the other limits, a
    /// request fails with `too_busy`.
    pub limits: HttpLimits,
    /// The listener closes a connection when the next request head is not complete after this time. Idle connections
    /// are included.
    pub head_timeout: Duration,
    /// A body that is not complete after this time fails with `body_timeout`.
    pub body_timeout: Duration,
    /// The listener closes a connection when the client reads nothing of a response or a watch for this time.
    pub write_timeout: Duration,
    /// Longest time between two messages on a watch without events.
    pub watch_keep_alive: Duration,
}

impl Settings {
    /// Default settings: no metrics, no TLS, 60 s for a head, 10 s for a body, 30 s per write, 10 s between keep-alives.
    pub fn new(node: NodeId) -> Settings {
        Settings {
            node,
            metrics: None,
            tls: None,
            require_identity: None,
            limits: HttpLimits::default(),
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            watch_keep_alive: Duration::from_secs(10),
        }
    }
}

/// The state of the router. Cheap to clone.
#[derive(Clone)]
pub(super) struct App(Arc<AppState>);

pub(super) struct AppState {
    pub settings: Settings,
    pub node: NodeRef,
    pub admission: AdmissionControl,
    pub failures: Failures,
    pub openapi: Bytes,
    /// Cancelled when the listener shuts down. It ends the watches, which have no other end.
    pub shutdown: CancellationToken,
}

impl App {
    pub fn new(node: NodeRef, settings: Settings, shutdown: CancellationToken) -> App {
        let admission = AdmissionControl::new(settings.limits);
        let openapi = Bytes::from(super::document());
        App(Arc::new(AppState { settings, node, admission, failures: Failures::new(), openapi, shutdown }))
    }

    /// The node, or `not_ready` before it has started, or `shutting_down` after it was dropped.
    pub fn node(&self) -> Result<Node, ProblemResponse> {
        self.0.node.require()
    }
}

impl std::ops::Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

/// A listener's reference to its node.
///
/// The listener can serve before the node has started: `/livez` succeeds, and other requests fail with `not_ready`.
///
/// A `NodeRef` does not keep the node alive, and neither do requests in progress. When the last handle of the node is
/// dropped, requests fail with `shutting_down`.
#[derive(Clone, Default)]
pub struct NodeRef(Arc<OnceLock<WeakNode>>);

impl NodeRef {
    /// Creates a reference to a node that has not started yet.
    pub fn empty() -> NodeRef {
        NodeRef::default()
    }

    /// Sets the node. Only the first call has an effect.
    pub fn fill(&self, node: &Node) {
        let _ = self.0.set(node.downgrade());
    }

    /// The node, if it has started and is not dropped.
    pub(super) fn get(&self) -> Option<Node> {
        self.0.get()?.upgrade_for_request()
    }

    /// The node, or a problem that says why there is none.
    pub(super) fn require(&self) -> Result<Node, ProblemResponse> {
        let started = self.0.get().ok_or_else(|| ProblemResponse::new(Code::NotReady, "the node is starting"))?;
        started
            .upgrade_for_request()
            .ok_or_else(|| ProblemResponse::new(Code::ShuttingDown, "the node was dropped by its program"))
    }
}

impl From<&Node> for NodeRef {
    fn from(node: &Node) -> NodeRef {
        let node_ref = NodeRef::empty();
        node_ref.fill(node);
        node_ref
    }
}

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
