//! What all handlers share.

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

/// How a node's API is served.
#[derive(Clone)]
pub struct Settings {
    /// The node that answers, for the headers.
    pub node: NodeId,
    /// What `/metrics` says; without it there is no such path.
    pub metrics: Option<RenderMetrics>,
    /// One more connection is told 503 and closed; one more of the others is refused as `too_busy`.
    pub limits: HttpLimits,
    /// A connection is closed when the head of its next request is not complete after this long; an idle one too.
    pub head_timeout: Duration,
    /// A body must be complete after this long.
    pub body_timeout: Duration,
    /// A connection is closed when its client takes nothing of an answer, or of a watch, for this long.
    pub write_timeout: Duration,
    /// A quiet watch says at least this often that it is alive.
    pub watch_keep_alive: Duration,
}

impl Settings {
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

/// The state of the router: cheap to clone.
#[derive(Clone)]
pub(super) struct App(Arc<Shared>);

pub(super) struct Shared {
    pub settings: Settings,
    pub node: NodeRef,
    pub admission: Admission,
    pub openapi: Bytes,
    /// Cancelled when the listener stops: what never ends by itself ends then.
    pub shutdown: CancellationToken,
}

impl App {
    pub fn new(node: NodeRef, settings: Settings, shutdown: CancellationToken) -> App {
        let admission = Admission::new(settings.limits);
        let openapi = Bytes::from(super::document());
        App(Arc::new(Shared { settings, node, admission, openapi, shutdown }))
    }

    /// The node, once it has started and while it is there.
    pub fn node(&self) -> Result<Node, HttpProblem> {
        self.0.node.require()
    }
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
