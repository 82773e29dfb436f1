//! Invariants of the implementation that only the simulation sees, one per file. [`judge`](super::judge) has the
//! promises to users.

pub mod cluster_time_advances;
pub mod committed_stays;
pub mod idle_leader;
pub mod log_matching;
pub mod nobody_panics;
pub mod one_leader;
pub mod state_ages;
