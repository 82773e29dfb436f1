//! The transport over HTTP. Only this part of the client uses reqwest.

mod access;
mod call;
mod credential;
mod endpoints;
pub(crate) mod events;
mod path;
mod remote;
mod snapshot;
mod status;
mod watch;

pub use endpoints::{DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, InvalidEndpoints, MAX_ENDPOINTS};
pub use remote::{ListQuery, Remote};
pub use snapshot::Snapshot;
pub use watch::Watch;

use super::LeaseManager;

impl LeaseManager {
    /// Creates a manager that reaches the cluster over HTTP. `endpoints` holds the URLs of the nodes, separated by commas.
    ///
    /// It sends nothing. The first request opens the first connection.
    ///
    /// # Errors
    ///
    /// `endpoints` holds no URL, an invalid one, or more than [`MAX_ENDPOINTS`].
    pub fn connect_lazy(endpoints: &str) -> Result<LeaseManager, InvalidEndpoints> {
        Ok(LeaseManager::new(Remote::new(endpoints.parse::<Endpoints>()?)))
    }
}
