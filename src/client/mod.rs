//! The HTTP client of a remote cluster.
//!
//! [`Remote`] is one client of one cluster: it knows several nodes, asks the next when one cannot be reached or has
//! no leader, and says of every request whether it was done, refused or may have been done. It keeps nothing alive:
//! whoever acquires renews.
//!
//! | file | noun |
//! |---|---|
//! | `remote` | the operations |
//! | `endpoints` | the nodes, and which to ask first |
//! | `call` | one request: its attempts, and what their ends mean |
//! | `watch`, `frames` | the event stream, resumed by itself |
//! | `error` | what can come of a request |
//!
//! This module must not know the server's: no storage, no Raft, no listener.

pub(crate) mod attempts;
mod call;
mod coordinator;
mod endpoints;
mod error;
mod frames;
mod remote;
mod watch;

pub use attempts::Patience;
pub use coordinator::{Answer, Coordinator, Events};
pub use endpoints::{DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, InvalidEndpoints, MAX_ENDPOINTS};
pub use error::CallError;
pub use remote::{ListQuery, Remote};
pub use watch::Watch;
