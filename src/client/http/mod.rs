//! The transport over HTTP. Only this part of the client uses reqwest.

mod call;
mod endpoints;
pub(crate) mod frames;
mod remote;
mod watch;

pub use endpoints::{DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, InvalidEndpoints, MAX_ENDPOINTS};
pub use remote::{ListQuery, Remote};
pub use watch::Watch;
