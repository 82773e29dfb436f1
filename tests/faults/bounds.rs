//! The bounds of the histories of real processes.

use std::time::Duration;

use super::judge::{Bounds, Observed};

pub static BOUNDS: Bounds = Bounds {
    // No fault reaches the clock of leases. The rates of the machine's clock stay inside the configured drift of 1 %.
    inside_drift: true,
    shortest_second: 0.99,
    longest_second: 1.01,
    // The harness and the nodes read the same clock.
    rounding: Duration::ZERO,
    observed: Observed::Later,
    // The default of `lease.tick_ms`.
    tick: Duration::from_millis(1_000),
    commit: Duration::from_millis(250),
};
