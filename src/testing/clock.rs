//! tokio's clock as the node's: it stands still where tokio's is paused.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Clock;

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

    fn suspended(&self) -> Duration {
        Duration::ZERO
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.elapsed().as_millis() as u64
    }
}
