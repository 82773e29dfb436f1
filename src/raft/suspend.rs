//! Detection of recent suspends of this machine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use openraft::Instant as _;
use openraft::alias::InstantOf;
use parking_lot::Mutex;

use super::types::TypeConfig;
use crate::clock::Clock;

/// Shortest detected suspend. The rounding of two clocks stays below it. Shorter suspends add up until their sum
/// exceeds it.
const SUSPEND_STEP: Duration = Duration::from_millis(5);

/// Most suspends that are remembered one by one.
const MAX_DETECTED: usize = 64;

/// Detects suspends with a clock that counts suspended time. openraft measures the age of an acknowledgement with a
/// clock that stops during a suspend.
pub struct SuspendMeter {
    clock: Arc<dyn Clock>,
    /// Creation time of the meter, on openraft's clock.
    created: InstantOf<TypeConfig>,
    state: Mutex<SuspendState>,
}

struct SuspendState {
    /// Lower bound of the total suspended time at the last detected suspend.
    known: Duration,
    /// When the meter detected each suspend, as time since `created`, and an upper bound of its length.
    detected: VecDeque<(Duration, Duration)>,
}

impl SuspendMeter {
    pub fn new(clock: Arc<dyn Clock>) -> SuspendMeter {
        let state = SuspendState { known: clock.suspended().at_least, detected: VecDeque::new() };
        SuspendMeter { clock, created: InstantOf::<TypeConfig>::now(), state: Mutex::new(state) }
    }

    /// Upper bound of the time for which the machine was suspended during the last `age`.
    pub fn suspended_within(&self, age: Duration) -> Duration {
        let (measured, now) = (self.clock.suspended(), self.created.elapsed());
        let mut state = self.state.lock();
        // Both bounds overestimate a suspend. If the thread is preempted between the two clock readings, the leader
        // confirms one read without need, and later suspends remain detectable.
        if measured.at_most > state.known + SUSPEND_STEP {
            // The oldest two count as one at the later time, which is an upper bound, too.
            if state.detected.len() == MAX_DETECTED
                && let Some((_, earlier)) = state.detected.pop_front()
                && let Some((_, suspended)) = state.detected.front_mut()
            {
                *suspended += earlier;
            }
            let suspended = measured.at_most - state.known;
            state.detected.push_back((now, suspended));
            state.known = state.known.max(measured.at_least);
        }
        let recent = state.detected.iter().filter(|(detected, _)| now.saturating_sub(*detected) <= age);
        recent.map(|(_, suspended)| *suspended).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Suspended;

    /// Returns the given readings in order, then repeats the last one.
    struct ScriptedClock(Mutex<VecDeque<Suspended>>);

    impl Clock for ScriptedClock {
        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }

        fn suspended(&self) -> Suspended {
            let mut readings = self.0.lock();
            let next = readings.pop_front().expect("the last reading stays");
            if readings.is_empty() {
                readings.push_back(next);
            }
            next
        }

        fn wall_ms(&self) -> u64 {
            0
        }
    }

    const AGE: Duration = Duration::from_millis(200);

    /// Reads the meter once per second, for each clock reading after the first. All values are milliseconds.
    async fn measure(readings_ms: &[(u64, u64)]) -> Vec<u128> {
        let ms = Duration::from_millis;
        let readings = readings_ms.iter().map(|&(least, most)| Suspended { at_least: ms(least), at_most: ms(most) });
        let meter = SuspendMeter::new(Arc::new(ScriptedClock(Mutex::new(readings.collect()))));
        let mut seen = Vec::new();
        for _ in 1..readings_ms.len() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            seen.push(meter.suspended_within(AGE).as_millis());
        }
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn suspend_is_detected_once() {
        assert_eq!(measure(&[(0, 0), (0, 0), (700, 700), (700, 700)]).await, [0, 700, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn preempted_reading_hides_no_later_suspend() {
        // The second reading took one second, so it counts as a possible suspend. The third shows a suspend of 700 ms.
        assert_eq!(measure(&[(0, 0), (0, 1_000), (700, 700), (700, 700)]).await, [1_000, 700, 0]);
        // The first reading took one second.
        assert_eq!(measure(&[(0, 1_000), (700, 700), (700, 700)]).await, [700, 0]);
    }

    /// As a machine that wakes up twice within the time that counts.
    #[tokio::test(start_paused = true)]
    async fn suspends_of_one_age_add_up() {
        let ms = Duration::from_millis;
        let readings = (0..=200).map(|count| Suspended { at_least: ms(700 * count), at_most: ms(700 * count) });
        let meter = SuspendMeter::new(Arc::new(ScriptedClock(Mutex::new(readings.collect()))));
        for count in 1..=200 {
            tokio::time::sleep(ms(100)).await;
            assert_eq!(meter.suspended_within(ms(150)), ms(700 * count.min(2)), "suspend {count}");
        }
        assert_eq!(meter.suspended_within(ms(100 * 1_000)), ms(700 * 200), "no suspend is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn short_suspends_add_up() {
        assert_eq!(measure(&[(0, 0), (3, 3), (6, 6), (9, 9), (12, 12)]).await, [0, 6, 0, 6]);
    }
}
