//! Holding leases: the manager, its leases and guards, and the ways to a cluster.
//!
//! A [`LeaseManager`] holds leases over a [`Coordinator`]: a [`Remote`] cluster, or a node in the same process. It renews
//! what it holds, knows by its own clock when it holds no more, and says of every request whether it was done, refused
//! or may have been done.
//!
//! | file | noun |
//! |---|---|
//! | `manager`, `lease`, `guard`, `work` | what a program uses |
//! | `options`, `state` | how a lease is held, and how its holder stands |
//! | `hold`, `grant` | one lease as its holder knows it: grant, deadline, signals |
//! | `operations`, `metadata` | what is asked of the cluster for one lease |
//! | `keeper`, `shared` | the task that renews, and what it shares with the rest |
//! | `listeners`, `meters` | who is told |
//! | `lookout` | when to look at leases that somebody else may hold |
//! | `coordinator` | the trait of every way to a cluster |
//! | `remote`, `endpoints`, `call`, `watch`, `frames` | the way over HTTP |
//! | `played` | what a test's fake does to a manager |
//! | `attempts`, `error` | what the attempts of a request come to |
//!
//! This module must not know the server's: no storage, no Raft, no listener.

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
#[cfg(feature = "testing")]
mod played;
mod refresh;
pub(crate) mod retry;
mod shared;
mod state;
mod work;

pub use coordinator::{Answer, Coordinator, Events};
pub use error::CallError;
pub use guard::LeaseGuard;
#[cfg(feature = "client-http")]
pub use http::{
    DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, InvalidEndpoints, ListQuery, MAX_ENDPOINTS, Remote, Watch,
};
pub use lease::Lease;
pub use listeners::Subscription;
pub use manager::LeaseManager;
pub use metrics::describe_metrics;
pub use options::{AcquireOptions, LeaseOptions, ManagerOptions, Wait};
#[cfg(feature = "testing")]
pub(crate) use played::PlayedManager;
pub(crate) use refresh::RefreshTrigger;
pub use retry::RetryBudget;
pub use state::{HoldState, Loss};
pub use work::WithError;
