//! Every clock the crate reads is behind [`Clock`], so that tests drive it.

#[cfg(target_os = "linux")]
use std::sync::LazyLock;
#[cfg(target_os = "linux")]
use std::time::Instant;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Monotonic time that counts suspend, and the wall clock (which is only ever shown to people).
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed point. Never decreases, and goes on while the machine is suspended.
    fn elapsed(&self) -> Duration;

    /// How long the machine has been suspended since this process first asked: by how much [`elapsed`](Clock::elapsed)
    /// has got ahead of a clock that stands still meanwhile.
    fn suspended(&self) -> Suspended;

    /// Milliseconds since the Unix epoch, by a clock that may jump. For people only: nothing is decided by it.
    fn wall_ms(&self) -> u64;
}

/// How long a machine has been suspended. Two clocks cannot be read at the same moment, so this is a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspended {
    pub at_least: Duration,
    pub at_most: Duration,
}

impl Suspended {
    /// A total that is known exactly.
    pub fn exactly(total: Duration) -> Suspended {
        Suspended { at_least: total, at_most: total }
    }

    /// Reads a clock that counts suspend between two readings of one that does not. `awake` is read again while it
    /// moved on by more than [`TIGHT`] in between, at most [`MAX_READINGS`] times: the thread was preempted.
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

/// Time between two readings of a clock that were not interrupted.
#[cfg(any(target_os = "linux", test))]
const TIGHT: Duration = Duration::from_micros(100);
/// Most readings for one measurement.
#[cfg(any(target_os = "linux", test))]
const MAX_READINGS: usize = 4;

/// Both clocks at the first reading of this process. The clock that stands still is that of `Instant` itself, because
/// openraft measures the age of an acknowledgement with it. The one that goes on is read first: a thread that is preempted
/// in between adds a constant to every later measurement, and never hides a suspend.
#[cfg(target_os = "linux")]
static FIRST: LazyLock<(Duration, Instant)> = LazyLock::new(|| (SystemClock.elapsed(), Instant::now()));

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

    /// Measures with readings in milliseconds, in the order in which they are taken.
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
        assert_eq!(measured(&[100, 1_100, 1_100], &[800, 1_800]), (700, 700), "before the second clock was read");
        assert_eq!(measured(&[100, 1_100, 1_100], &[1_800, 1_800]), (700, 700), "after it was read");
    }

    #[test]
    fn constant_preemption_yields_a_range() {
        assert_eq!(measured(&[0, 10, 18, 24, 34], &[705, 714, 720, 730]), (696, 702));
    }
}
