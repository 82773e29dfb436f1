//! Clocks for simulated nodes and for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::{Clock, Suspended};
use crate::sim::NodeTime;

/// Time since the creation of this clock, by tokio's clock. It stops while tokio's clock is paused, and reports no
/// suspend.
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

/// tokio's clock on a machine that [`NodeTime`] can suspend. This clock advances during a suspend and counts its
/// length.
#[derive(Clone)]
pub struct SuspendedClock {
    clock: TokioClock,
    time: NodeTime,
}

impl SuspendedClock {
    pub fn new(time: NodeTime) -> SuspendedClock {
        SuspendedClock { clock: TokioClock::new(), time }
    }
}

impl Clock for SuspendedClock {
    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn suspended(&self) -> Suspended {
        Suspended::exactly(self.time.suspended())
    }

    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }
}

/// A clock that advances only when a test moves it. Clones share the time.
///
/// Calls of a lease without `await` use the new time at once. The background work of a lease manager (expiry and
/// renewal) follows within 100 ms of real time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock at 0.
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Advances the clock.
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
