//! The client: the manager, its leases and guards, and the transports to a cluster.
//!
//! A [`LeaseManager`] holds leases through a [`Coordinator`]: a [`Remote`] cluster, or a node in the same process. It
//! renews the held leases and ends them by its own clock. The result of each request is done, refused or unknown.
//!
//! | file | noun |
//! |---|---|
//! | `manager`, `lease`, `guard`, `work` | the handles that a program uses |
//! | `options`, `state` | options, and the state of a lease at its holder |
//! | `hold`, `grant` | the local state of one lease: grant, deadline, signals |
//! | `operations`, `claims`, `metadata` | requests to the cluster for one lease |
//! | `keeper`, `shared` | the task that renews, and the state that it shares with the handles |
//! | `listeners`, `metrics` | callbacks of the program, and metrics |
//! | `refresh` | when to read the leases of other holders again |
//! | `coordinator` | the trait of a transport |
//! | `http` | the transport over HTTP: `remote`, `endpoints`, `call`, `watch`, `events` |
//! | `retry`, `error` | the attempts of one request, and their combined result |
//!
//! This module must not depend on the server: no storage, no Raft, no listener.

mod claims;
mod coordinator;
mod error;
mod grant;
mod guard;
mod hold;
#[cfg(feature = "client-http")]
pub(crate) mod http;
mod keeper;
mod lease;
mod listeners;
mod manager;
mod metadata;
mod metrics;
mod operations;
mod options;
mod refresh;
#[cfg(any(feature = "client-http", feature = "server"))]
pub(crate) mod retry;
mod shared;
mod state;
mod work;

pub use coordinator::{Coordinator, Events, ResponseFuture, RetryBudget};
pub use error::CallError;
pub use guard::LeaseGuard;
#[cfg(feature = "client-http")]
pub use http::{
    DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, InvalidEndpoints, ListQuery, MAX_ENDPOINTS, Remote, Snapshot,
    Watch,
};
pub use lease::Lease;
pub use listeners::Subscription;
pub use manager::LeaseManager;
pub use metrics::describe_metrics;
pub use options::{AcquireOptions, LeaseOptions, ManagerOptions, Wait};
pub(crate) use refresh::{RefreshTrigger, check_refresh};
pub use state::{HoldState, Loss};
pub use work::WithError;
