//! For tests: a cluster that is played, a way to a cluster that can be cut, and a whole cluster in one process.
//!
//! - [`FakeCluster`] for the tests of a program that holds leases: nothing runs, and the test says what happens.
//! - [`Switch`] between a manager and any cluster.
//! - [`Cluster`], real nodes in memory with a network that can be partitioned, under tokio's clock: with the clock paused
//!   (`#[tokio::test(start_paused = true)]`) seconds of cluster life pass in milliseconds.

mod fake;
pub mod inputs;
mod switch;

pub use fake::FakeCluster;
pub use switch::{Line, Switch};

pub use crate::node::exchange_promise;
pub use crate::raft::{Observer, Safeguards};
pub use crate::rng::{Seeded, seed};
pub use crate::sim::NodeTime;
pub use crate::sim::{
    Cluster, Cut, Flip, ForNode, ManualClock, MemoryStorage, NetworkFaults, Setup, SuspendedClock, Switchboard,
    SyncMode, TestNode, TokioClock,
};
