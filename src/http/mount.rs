//! The API as a part of somebody else's axum application.

use axum::Router;
use tokio_util::sync::CancellationToken;

use super::app::App;
use super::{NodeRef, Settings, routes};
use crate::node::Node;

impl Node {
    /// The API of this node, to be mounted in the program's own axum application: merged into it, or nested under a
    /// prefix, which is then the same on all nodes.
    ///
    /// There are `/v1/…`, `/livez`, `/readyz`, `/version` and `/openapi.json`; [`router_with`](Node::router_with) adds
    /// `/metrics`. Other paths are the program's.
    ///
    /// The program serves it: how many connections there are, how long a request's head may take and what happens to
    /// open connections at the end is decided by its server. Bodies are bounded in size and time here, and watches in
    /// number. It does not keep the node alive; once the node has ended, its watches end and requests are refused as
    /// shutting down. Whoever can reach it can take and revoke every lease: put the program's own authentication
    /// around it.
    ///
    /// ```no_run
    /// # fn example(node: &tenure::node::Node) -> axum::Router {
    /// axum::Router::new().nest("/tenure", node.router())
    /// # }
    /// ```
    pub fn router(&self) -> Router {
        self.router_with(Settings::new(self.id()))
    }

    /// [`router`](Node::router), with settings of its own. Those about connections are not used.
    pub fn router_with(&self, settings: Settings) -> Router {
        // Nothing but the node's own end ends a watch here.
        routes::routes(App::new(NodeRef::from(self), settings, CancellationToken::new()))
    }
}
