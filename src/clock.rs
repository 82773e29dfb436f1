//! Every clock the crate reads is behind [`Clock`], so that tests drive it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Monotonic time that counts suspend, and the wall clock (which is only ever shown to people).
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed point. Never decreases, and goes on while the machine is suspended.
    fn elapsed(&self) -> Duration;

    /// How long the machine has been suspended in all: by how much [`elapsed`](Clock::elapsed) is ahead of a clock
    /// that stands still meanwhile. Two readings a moment apart may differ by that moment.
    fn suspended(&self) -> Duration;

    /// Milliseconds since the Unix epoch, by a clock that may jump. For people only: nothing is decided by it.
    fn wall_ms(&self) -> u64;
}

/// The operating system's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(target_os = "linux")]
    fn elapsed(&self) -> Duration {
        // CLOCK_BOOTTIME rather than std::time::Instant (CLOCK_MONOTONIC), which stands still while suspended.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    #[cfg(not(target_os = "linux"))]
    fn elapsed(&self) -> Duration {
        // On Apple systems CLOCK_MONOTONIC counts suspend.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    #[cfg(target_os = "linux")]
    fn suspended(&self) -> Duration {
        let awake = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        self.elapsed().saturating_sub(Duration::new(awake.tv_sec as u64, awake.tv_nsec as u32))
    }

    #[cfg(not(target_os = "linux"))]
    fn suspended(&self) -> Duration {
        Duration::ZERO
    }

    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_moves_forward() {
        let before = SystemClock.elapsed();
        std::thread::yield_now();
        assert!(SystemClock.elapsed() >= before);
        assert!(SystemClock.wall_ms() > 1_600_000_000_000);
    }
}
