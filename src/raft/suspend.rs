//! Whether this machine was suspended lately.

use std::sync::Arc;
use std::time::Duration;

use openraft::Instant as _;
use openraft::alias::InstantOf;
use parking_lot::Mutex;

use super::types::TypeConfig;
use crate::clock::Clock;

/// A suspend below this is not noticed by itself, so that the rounding of two clocks is not taken for one. Short
/// suspends add up until they are noticed.
const SUSPEND_STEP: Duration = Duration::from_millis(5);

/// Notices suspends by the clock that counts them. openraft measures the age of an acknowledgement with a clock that
/// stands still meanwhile.
pub struct SuspendMeter {
    clock: Arc<dyn Clock>,
    /// When the meter was made, by the clock that measures the age of an acknowledgement.
    made: InstantOf<TypeConfig>,
    state: Mutex<State>,
}

struct State {
    /// The machine had been suspended for at least this long when the last suspend was noticed.
    known: Duration,
    /// When that was, as time since `made`, and for how long at most the machine had been suspended.
    noticed: Option<(Duration, Duration)>,
}

impl SuspendMeter {
    pub fn new(clock: Arc<dyn Clock>) -> SuspendMeter {
        let state = State { known: clock.suspended().at_least, noticed: None };
        SuspendMeter { clock, made: InstantOf::<TypeConfig>::now(), state: Mutex::new(state) }
    }

    /// For how long at most the machine was suspended during the last `age`.
    pub fn suspended_within(&self, age: Duration) -> Duration {
        let (measured, now) = (self.clock.suspended(), self.made.elapsed());
        let mut state = self.state.lock();
        // Each bound is the one that errs towards a suspend: a thread that is preempted while it reads the clocks
        // causes one needless confirmation, and hides no later suspend.
        if measured.at_most > state.known + SUSPEND_STEP {
            state.noticed = Some((now, measured.at_most - state.known));
            state.known = state.known.max(measured.at_least);
        }
        let recent = state.noticed.filter(|(noticed, _)| now.saturating_sub(*noticed) <= age);
        recent.map_or(Duration::ZERO, |(_, suspended)| suspended)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::clock::Suspended;

    /// Answers what the test wrote down, then the last answer again.
    struct Script(Mutex<VecDeque<Suspended>>);

    impl Clock for Script {
        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }

        fn suspended(&self) -> Suspended {
            let mut answers = self.0.lock();
            let next = answers.pop_front().expect("the script is long enough");
            if answers.is_empty() {
                answers.push_back(next);
            }
            next
        }

        fn wall_ms(&self) -> u64 {
            0
        }
    }

    const AGE: Duration = Duration::from_millis(200);

    /// Reads the meter once for each answer after the first, a second apart. In milliseconds.
    async fn readings(answers_ms: &[(u64, u64)]) -> Vec<u128> {
        let ms = Duration::from_millis;
        let answers = answers_ms.iter().map(|&(least, most)| Suspended { at_least: ms(least), at_most: ms(most) });
        let meter = SuspendMeter::new(Arc::new(Script(Mutex::new(answers.collect()))));
        let mut seen = Vec::new();
        for _ in 1..answers_ms.len() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            seen.push(meter.suspended_within(AGE).as_millis());
        }
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspend_is_noticed_once() {
        assert_eq!(readings(&[(0, 0), (0, 0), (700, 700), (700, 700)]).await, [0, 700, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_preempted_reading_hides_no_later_suspend() {
        // The second reading took a second, so it may look like a suspend. The third is one, of 700 ms.
        assert_eq!(readings(&[(0, 0), (0, 1_000), (700, 700), (700, 700)]).await, [1_000, 700, 0]);
        // The first reading took a second.
        assert_eq!(readings(&[(0, 1_000), (700, 700), (700, 700)]).await, [700, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn short_suspends_add_up() {
        assert_eq!(readings(&[(0, 0), (3, 3), (6, 6), (9, 9), (12, 12)]).await, [0, 6, 0, 6]);
    }
}
