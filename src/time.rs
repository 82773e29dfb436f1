//! Timers and tasks of a node and of a lease manager. With the feature `testing`, they follow simulated time.

#[cfg(feature = "testing")]
pub(crate) use crate::sim::time::{inherit_time, sleep};
#[cfg(not(feature = "testing"))]
pub(crate) use tokio::time::sleep;

/// A task that keeps the time of the task that starts it.
#[cfg(not(feature = "testing"))]
pub(crate) fn inherit_time<F: Future>(task: F) -> F {
    task
}
