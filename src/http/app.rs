//! The settings of a listener, its reference to the node, and the state that all handlers share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use tokio_util::sync::CancellationToken;

use super::admission::AdmissionControl;
use super::auth::Failures;
use super::response::ProblemResponse;
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
