//! The bounds of a supplier of client histories.

use std::time::Duration;

/// The clock rates and delays behind a client history. Each adapter states the reason for its values.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Whether the clocks keep to the configured drift. Otherwise no check of time applies, and a refusal from a
    /// leader's memory proves nothing.
    pub inside_drift: bool,
    /// The shortest and the longest time of the history in which the cluster counts one second of a ttl.
    pub shortest_second: f64,
    pub longest_second: f64,
    /// The error of the recorded times.
    pub rounding: Duration,
    /// When the observer sees a transition.
    pub observed: Observed,
    /// `lease.tick_ms` of the cluster.
    pub tick: Duration,
    /// The longest pause between two commits of a cluster with a leader. A longer pause counts as time without a
    /// leader: an election, a slow disk, or a machine that stands still.
    pub commit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// When the first replica applies the entry: before any answer.
    AtApply,
    /// When a watcher receives it: at any time after the commit.
    Later,
}

impl Bounds {
    /// The shortest time in which this ttl can end.
    pub fn shortest(&self, ttl: Duration) -> Duration {
        ttl.mul_f64(self.shortest_second)
    }

    /// The longest time until the cluster knows that this ttl has ended, while it commits.
    pub fn longest(&self, ttl: Duration) -> Duration {
        ttl.mul_f64(self.longest_second)
    }
}
