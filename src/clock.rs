//! The crate reads clocks only through [`Clock`], so that tests can control them.

#[cfg(target_os = "linux")]
use std::sync::LazyLock;
#[cfg(target_os = "linux")]
use std::time::Instant;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A monotonic clock that includes suspend, and the wall clock.
pub trait Clock: Send + Sync + 'static {
    /// Time since a fixed point. Never decreases, and includes time in suspend.
    fn elapsed(&self) -> Duration;

    /// Total time in suspend since the first call in this process. It is the lead of [`elapsed`](Clock::elapsed) over a
    /// clock that stops during suspend.
    fn suspended(&self) -> Suspended;

    /// Milliseconds since the Unix epoch. This clock can jump. No rule of leases reads it: it is for display, and for the expiry
    /// of access tokens.
    fn wall_ms(&self) -> u64;
}

/// Total time in suspend. A range, because two clocks cannot be read at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Suspended {
    /// The shortest possible time.
    pub at_least: Duration,
    /// The longest possible time.
    pub at_most: Duration,
}

impl Suspended {
    /// A range with one value.
    pub fn exactly(total: Duration) -> Suspended {
        Suspended { at_least: total, at_most: total }
    }

    /// A range of these values.
    pub fn between(at_least: Duration, at_most: Duration) -> Suspended {
        Suspended { at_least, at_most }
    }

    /// Reads `elapsed`, which includes suspend, between two readings of `awake`, which does not. If the readings of
    /// `awake` differ by more than [`TIGHT`], the thread was preempted: then measures again, at most [`MAX_READINGS`]
    /// times.
    #[cfg(any(target_os = "linux", test))]
    fn measure(mut awake: impl FnMut() -> Duration, mut elapsed: impl FnMut() -> Duration) -> Suspended {
        let mut before = awake();
        let mut tightest: Option<Suspended> = None;
        for _ in 0..MAX_READINGS {
            let (all, after) = (elapsed(), awake());
            let measured = Suspended { at_least: all.saturating_sub(after), at_most: all.saturating_sub(before) };
            if tightest.is_none_or(|best| measured.width() < best.width()) {
                tightest = Some(measured);
            }
            if after.saturating_sub(before) <= TIGHT {
                break;
            }
            before = after;
        }
        tightest.unwrap_or_default()
    }

    #[cfg(any(target_os = "linux", test))]
    fn width(&self) -> Duration {
        self.at_most - self.at_least
    }
}

/// Longest time between two readings of a clock without preemption.
#[cfg(any(target_os = "linux", test))]
const TIGHT: Duration = Duration::from_micros(100);
/// Most readings for one measurement.
#[cfg(any(target_os = "linux", test))]
const MAX_READINGS: usize = 4;

/// Both clocks at the first call in this process. The clock without suspend must be `Instant`: openraft measures the
/// age of an acknowledgement with it. The clock with suspend is read first. A preemption between the two readings then
/// adds a constant to each later measurement, and never hides a suspend.
#[cfg(target_os = "linux")]
static FIRST: LazyLock<(Duration, Instant)> = LazyLock::new(|| (SystemClock.elapsed(), Instant::now()));

/// The operating system's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(target_os = "linux")]
    fn elapsed(&self) -> Duration {
        // Not std::time::Instant: on Linux it is CLOCK_MONOTONIC, which stops during suspend.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    #[cfg(not(target_os = "linux"))]
    fn elapsed(&self) -> Duration {
        // On Apple systems CLOCK_MONOTONIC includes suspend.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    #[cfg(target_os = "linux")]
    fn suspended(&self) -> Suspended {
        let (boot, awake) = *FIRST;
        Suspended::measure(|| awake.elapsed(), || self.elapsed().saturating_sub(boot))
    }

    #[cfg(not(target_os = "linux"))]
    fn suspended(&self) -> Suspended {
        Suspended::default()
    }

    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_moves_forward() {
        let before = SystemClock.elapsed();
        std::thread::yield_now();
        assert!(SystemClock.elapsed() >= before);
        assert!(SystemClock.wall_ms() > 1_600_000_000_000);
    }

    /// Measures with these readings, in milliseconds and in order.
    fn measured(awake: &[u64], elapsed: &[u64]) -> (u64, u64) {
        let mut awake = awake.iter().map(|&ms| Duration::from_millis(ms));
        let mut elapsed = elapsed.iter().map(|&ms| Duration::from_millis(ms));
        let Suspended { at_least, at_most } = Suspended::measure(
            || awake.next().expect("no more readings than needed"),
            || elapsed.next().expect("no more readings than needed"),
        );
        (at_least.as_millis() as u64, at_most.as_millis() as u64)
    }

    #[test]
    fn suspended_time_is_the_difference_of_two_clocks() {
        assert_eq!(measured(&[100, 100], &[800]), (700, 700));
    }

    #[test]
    fn preempted_reading_is_repeated() {
        assert_eq!(
            measured(&[100, 1_100, 1_100], &[800, 1_800]),
            (700, 700),
            "preempted before the reading of `elapsed`"
        );
        assert_eq!(
            measured(&[100, 1_100, 1_100], &[1_800, 1_800]),
            (700, 700),
            "preempted after the reading of `elapsed`"
        );
    }

    #[test]
    fn constant_preemption_yields_a_range() {
        assert_eq!(measured(&[0, 10, 18, 24, 34], &[705, 714, 720, 730]), (696, 702));
    }
}
