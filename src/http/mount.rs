//! The API as a part of a program's own axum application.

use axum::Router;
use tokio_util::sync::CancellationToken;

use super::app::App;
use super::{NodeRef, Settings, routes};
use crate::node::Node;

impl Node {
    /// Returns the API of this node as a router for the program's own axum application.
    ///
    /// Merge the router, or nest it under a prefix. All nodes must use the same prefix. The routes are `/v1/…`,
    /// `/livez`, `/readyz`, `/version` and `/openapi.json`; [`router_with`](Node::router_with) can add `/metrics`.
    ///
    /// The program's server limits the connections and the time for a request head, and closes connections at
    /// shutdown. The router limits the size and time of bodies, and the number of requests and watches.
    ///
    /// The router does not keep the node alive. When the node has shut down, its watches end and requests fail with
    /// `shutting_down`.
    ///
    /// The router has no authentication: every client that reaches it can take and revoke every lease. Wrap it in the
    /// program's own authentication.
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
        routes::mountable_router(App::new(NodeRef::from(self), settings, CancellationToken::new()))
    }
}
