//! A cluster over HTTP: the only part of the client that names reqwest.

mod call;
mod endpoints;
pub(crate) mod frames;
mod remote;
mod watch;

pub use endpoints::{DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, InvalidEndpoints, MAX_ENDPOINTS};
pub use remote::{ListQuery, Remote};
pub use watch::Watch;
