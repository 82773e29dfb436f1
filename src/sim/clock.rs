//! tokio's clock as the node's: it stands still where tokio's is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::{Clock, Suspended};
use crate::sim::NodeTime;

/// Time since this clock was made, by tokio. Never suspended.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: Instant,
}

impl TokioClock {
    pub fn new() -> TokioClock {
        TokioClock { start: Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> TokioClock {
        TokioClock::new()
    }
}

impl Clock for TokioClock {
    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn suspended(&self) -> Suspended {
        Suspended::default()
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.elapsed().as_millis() as u64
    }
}

/// tokio's clock on a machine that is suspended as its [`Pace`] says: this clock goes on meanwhile, and counts it.
#[derive(Clone)]
pub struct SuspendedClock {
    clock: TokioClock,
    pace: NodeTime,
}

impl SuspendedClock {
    pub fn new(pace: NodeTime) -> SuspendedClock {
        SuspendedClock { clock: TokioClock::new(), pace }
    }
}

impl Clock for SuspendedClock {
    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn suspended(&self) -> Suspended {
        Suspended::exactly(self.pace.suspended())
    }

    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }
}

/// A clock that stands still until a test moves it. Clones are the same clock.
///
/// What is asked of a lease without `await` follows at once; what a lease manager does by itself (losing what is over,
/// renewing what is due) follows within 100 ms of real time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Lets time pass.
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn suspended(&self) -> Suspended {
        Suspended::default()
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.elapsed().as_millis() as u64
    }
}
