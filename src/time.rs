//! Sleeps and tasks of nodes and lease managers. With the feature `testing`, they can run in simulated time.

#[cfg(feature = "testing")]
pub(crate) use crate::sim::time::{inherit_time, sleep};
#[cfg(not(feature = "testing"))]
pub(crate) use tokio::time::sleep;

/// Lets a new task use the time source of its parent task: real time in this build.
#[cfg(not(feature = "testing"))]
pub(crate) fn inherit_time<F: Future>(task: F) -> F {
    task
}
