//! For tests: a whole cluster in one process, in memory, under tokio's clock.
//!
//! With tokio's clock paused (`#[tokio::test(start_paused = true)]`) seconds of cluster life pass in milliseconds.

mod clock;
mod cluster;
mod switch;

pub use clock::TokioClock;
pub use cluster::{Cluster, TestNode};
pub use switch::{Line, Switch};

pub use crate::raft::Safeguards;
