//! The public HTTP listener of a node: JSON under `/v1`, health, metrics and the API's own description.
//!
//! A request is parsed into types that cannot be wrong, put to the [`Node`](crate::node::Node), and its answer is
//! written down. What a node says is mapped to the API's types in the module `service`, and nowhere else.
//! The caller hands in the listener, the node and the signal to stop, and owns the future that serves.
//!
//! | file | noun |
//! |---|---|
//! | `serve` | connections: their number, their timeouts, their end |
//! | `slot` | the node, from before it has started until after it has gone |
//! | `mount` | the same paths in somebody else's application |
//! | `routes`, `openapi` | which paths there are, and the document that says so |
//! | `admission` | how much is in hand at once, and what is refused at the door |
//! | `observe` | what every request has: the node's header, counts and durations |
//! | `body` | bodies of requests, and how much memory they may take |
//! | `input` | the other parts of requests, parsed |
//! | `answer`, `refusal` | answers and problems, as HTTP responses |
//! | `claims`, `reads`, `watch`, `status` | the handlers |
//!
//! This module must not know Raft, storage or the connections between nodes.

mod admission;
mod answer;
mod app;
mod body;
mod claims;
mod input;
mod mount;
mod node_ref;
mod observe;
mod openapi;
pub(crate) mod reads;
pub(crate) mod refusal;
mod routes;
mod serve;
mod status;
mod watch;

pub use app::{RenderMetrics, Settings};
pub use node_ref::NodeRef;
pub use observe::describe_metrics;
pub use openapi::document;
pub use serve::serve;

/// All paths, of a node that never starts: what can be refused without one is, and the rest is not ready.
#[cfg(feature = "testing")]
pub(crate) fn router_without_a_node() -> axum::Router {
    routes::whole(app::App::new(NodeRef::empty(), Settings::new(1), tokio_util::sync::CancellationToken::new()))
}
