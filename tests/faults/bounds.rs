//! The bounds of the histories of real processes.

use std::time::Duration;

use super::judge::{Bounds, Observed};

const OF_RUN: Bounds = Bounds {
    inside_drift: true,
    // The harness and the nodes read the same clock, and no fault reaches it.
    shortest_second: 1.0,
    longest_second: 1.0,
    // Cluster time has whole milliseconds at the start and at the end of a ttl or a delay.
    rounding: Duration::from_millis(2),
    observed: Observed::Later,
    // The default of `lease.tick_ms`.
    tick: Duration::from_millis(1_000),
    commit: Duration::from_millis(250),
};

/// The bounds of this run.
pub static BOUNDS: Bounds = OF_RUN;

/// The bounds of a file, also of the simulation: the clocks keep to the configured drift of 1 %.
pub static FILE_BOUNDS: Bounds =
    Bounds { shortest_second: 0.99, longest_second: 1.01, rounding: Duration::ZERO, ..OF_RUN };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::history::Ended;
    use crate::judge::samples::{acquire, did, expired, granted, history, token};
    use crate::judge::{LeaseHistory, no_early_expiry};

    #[test]
    fn expiry_that_is_early_by_less_than_the_drift_is_detected() {
        let check = |bounds: &Bounds, expires: u64| {
            let asked = [did("a", acquire(), (0, 10), Ended::Held(token(5), Some(3_000)))];
            let log = [granted(5, "a", 5), expired(expires, "a", 5, 8)];
            no_early_expiry::check(&LeaseHistory { bounds, ..history(&asked, &log) })
        };
        check(&BOUNDS, 2_985).expect_err("15 ms before the end of the ttl");
        check(&BOUNDS, 2_999).expect("within the rounding");
        check(&FILE_BOUNDS, 2_985).expect("the clock of a leader may be faster");
        check(&FILE_BOUNDS, 2_960).expect_err("faster than the drift");
    }
}
