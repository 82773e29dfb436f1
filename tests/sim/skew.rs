//! A clock that runs at its own rate.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::Clock;
use tokio::time::Instant;

/// True time since the simulation began, times a rate. tokio's timers are not behind it: they run at the true rate on
/// every node, and so does what openraft measures.
#[derive(Clone, Copy, Debug)]
pub struct SkewedClock {
    began: Instant,
    /// Ahead of true time by so much from the start.
    ahead: Duration,
    rate: f64,
}

impl SkewedClock {
    pub fn new(began: Instant, ahead: Duration, rate: f64) -> Arc<SkewedClock> {
        Arc::new(SkewedClock { began, ahead, rate })
    }

    /// How much true time passes while this clock counts `time`.
    pub fn in_true_time(&self, time: Duration) -> Duration {
        time.div_f64(self.rate)
    }
}

impl Clock for SkewedClock {
    fn elapsed(&self) -> Duration {
        self.ahead + self.began.elapsed().mul_f64(self.rate)
    }

    fn suspended(&self) -> Duration {
        Duration::ZERO
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.elapsed().as_millis() as u64
    }
}

/// A planted bug: time that jumps 5 s ahead every 7 s, as a wall clock may when somebody sets it.
pub struct JumpingClock(pub Arc<SkewedClock>);

impl Clock for JumpingClock {
    fn elapsed(&self) -> Duration {
        let elapsed = self.0.elapsed();
        elapsed + Duration::from_secs(5) * (elapsed.as_secs() / 7) as u32
    }

    fn suspended(&self) -> Duration {
        Duration::ZERO
    }

    fn wall_ms(&self) -> u64 {
        self.0.wall_ms()
    }
}
