//! Test support for programs that hold leases.
//!
//! - [`FakeCluster`] has no nodes. The test controls the outcome of requests, and moves the [clock](ManualClock).
//! - [`Switch`] cuts the connection between a manager and any cluster.
//! - [`member`] creates members for the test of a [`Placement`](crate::group::Placement).

mod fake;
#[doc(hidden)]
pub mod inputs;
mod placement;
mod switch;

pub use crate::sim::ManualClock;
pub use fake::FakeCluster;
pub use placement::member;
pub use switch::{Line, Switch};

// For the tests of this repository: a cluster in one process and in memory, with simulated time, network and disks.
#[doc(hidden)]
pub use crate::node::exchange_vote_lease;
#[doc(hidden)]
pub use crate::raft::{AppliedEntry, ApplyObserver};
#[doc(hidden)]
pub use crate::rng::{Seeded, seed};
#[doc(hidden)]
pub use crate::sim::{
    Cluster, Cut, Flip, ForNode, MemoryStorage, NetworkFaults, NodeTime, Setup, SuspendedClock, Switchboard, SyncMode,
    TestNode, TokioClock,
};
