//! The public HTTP listener of a node: JSON under `/v1`, health, metrics and the OpenAPI document.
//!
//! A handler parses a request into validated types, passes it to the [`Node`](crate::node::Node) and serializes the
//! response. Only the module `service` maps node types to API types.
//! The caller passes in the listener, the node and the shutdown signal, and owns the serving future.
//!
//! | file | contents |
//! |---|---|
//! | `serve` | connections: limit, timeouts, shutdown |
//! | `socket` | the socket of a connection, which shows a handler that its client has left |
//! | `app` | the settings, the reference to the node, and the state of all handlers |
//! | `routes` | the route table |
//! | `openapi` | the OpenAPI document |
//! | `admission` | concurrency limits and overload errors |
//! | `observe` | the node header and the request metrics |
//! | `auth` | the caller of a request, failed attempts, and the audit log |
//! | `input` | path, query, body and header extractors; the memory budget of bodies |
//! | `response` | responses and problems |
//! | `ui` | the web page and its files |
//! | `claims`, `reads`, `watch`, `status`, `members`, `access` | the handlers |
//! | `compat` | the routes of the lease service, with the feature `compat-leases` |
//!
//! This module must not depend on Raft, storage or the connections between nodes.

mod access;
mod admission;
mod app;
mod auth;
mod backup;
mod claims;
#[cfg(feature = "compat-leases")]
mod compat;
mod input;
mod members;
mod observe;
mod openapi;
pub(crate) mod reads;
pub(crate) mod response;
mod routes;
mod serve;
mod socket;
mod status;
mod ui;
mod watch;

pub use app::{NodeRef, RenderMetrics, Settings};
pub use observe::describe_metrics;
pub use openapi::document;
pub use serve::serve;

/// All routes, without a node. Invalid requests get their usual problem; valid requests get `not_ready`.
#[cfg(feature = "testing")]
pub(crate) fn router_without_a_node() -> axum::Router {
    routes::standalone_router(app::App::new(
        NodeRef::empty(),
        Settings::new(1),
        tokio_util::sync::CancellationToken::new(),
    ))
}
