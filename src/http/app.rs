//! The state that all handlers share.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tokio_util::sync::CancellationToken;

use super::NodeRef;
use super::admission::Admission;
use super::refusal::HttpProblem;
use crate::config::HttpLimits;
use crate::node::Node;
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
    /// Default settings: no metrics, 60 s for a head, 10 s for a body, 30 s per write, 10 s between keep-alives.
    pub fn new(node: NodeId) -> Settings {
        Settings {
            node,
            metrics: None,
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
    pub admission: Admission,
    pub openapi: Bytes,
    /// Cancelled when the listener shuts down. It ends the watches, which have no other end.
    pub shutdown: CancellationToken,
}

impl App {
    pub fn new(node: NodeRef, settings: Settings, shutdown: CancellationToken) -> App {
        let admission = Admission::new(settings.limits);
        let openapi = Bytes::from(super::document());
        App(Arc::new(AppState { settings, node, admission, openapi, shutdown }))
    }

    /// The node, or `not_ready` before it has started, or `shutting_down` after it was dropped.
    pub fn node(&self) -> Result<Node, HttpProblem> {
        self.0.node.require()
    }
}

impl std::ops::Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}
