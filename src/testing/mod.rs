//! Test support: a fake cluster, a connection with faults, and a real cluster in one process.
//!
//! - [`FakeCluster`] tests a program that holds leases. It has no nodes, and the test controls the outcome of requests.
//! - [`Switch`] cuts the connection between a manager and any cluster.
//! - [`Cluster`] runs real nodes in memory, with a network that a test can partition. It uses tokio's clock. If the
//!   clock is paused (`#[tokio::test(start_paused = true)]`), seconds of cluster time pass in milliseconds.

mod fake;
pub mod inputs;
mod switch;

pub use fake::FakeCluster;
pub use switch::{Line, Switch};

pub use crate::node::exchange_promise;
pub use crate::raft::{AppliedEntry, Observer};
pub use crate::rng::{Seeded, seed};
pub use crate::sim::NodeTime;
pub use crate::sim::{
    Cluster, Cut, Flip, ForNode, ManualClock, MemoryStorage, NetworkFaults, Setup, SuspendedClock, Switchboard,
    SyncMode, TestNode, TokioClock,
};
