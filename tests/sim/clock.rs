//! Clocks with their own rate, and with another rate while their machine is suspended.

use std::time::Duration;

use tenure::clock::{Clock, Suspended};
use tenure::testing::NodeTime;
use tokio::time::Instant;

/// True time since the start of the run, multiplied by a rate.
///
/// The timers of a node have the same rate. They stop while the machine is suspended, but this clock continues.
#[derive(Clone)]
pub struct DriftingClock {
    began: Instant,
    /// Offset from true time at the start.
    offset: Duration,
    rate: f64,
    /// The machine, and the clock rate while it is suspended.
    machine: Option<(NodeTime, f64)>,
}

impl DriftingClock {
    /// Creates the clock of a machine that is never suspended.
    pub fn new(began: Instant, offset: Duration, rate: f64) -> DriftingClock {
        DriftingClock { began, offset, rate, machine: None }
    }

    /// Attaches the clock to a machine that can be suspended.
    pub fn of_machine(self, machine: NodeTime, suspended_rate: f64) -> DriftingClock {
        DriftingClock { machine: Some((machine, suspended_rate)), ..self }
    }

    /// Converts a duration on this clock to true time.
    pub fn in_true_time(&self, time: Duration) -> Duration {
        time.div_f64(self.rate)
    }

    /// The suspended time so far: in true time, and on this clock.
    fn suspended_times(&self) -> (Duration, Duration) {
        let machine = self.machine.as_ref();
        machine.map(|(time, rate)| (time.suspended(), time.suspended().mul_f64(*rate))).unwrap_or_default()
    }
}

impl Clock for DriftingClock {
    fn elapsed(&self) -> Duration {
        let (suspended, counted) = self.suspended_times();
        self.offset + (self.began.elapsed() - suspended).mul_f64(self.rate) + counted
    }

    fn suspended(&self) -> Suspended {
        Suspended::exactly(self.suspended_times().1)
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.elapsed().as_millis() as u64
    }
}

/// A planted bug: time jumps 5 s ahead every 7 s, like a wall clock that an operator sets.
pub struct JumpingClock(pub DriftingClock);

impl Clock for JumpingClock {
    fn elapsed(&self) -> Duration {
        let elapsed = self.0.elapsed();
        elapsed + Duration::from_secs(5) * (elapsed.as_secs() / 7) as u32
    }

    fn suspended(&self) -> Suspended {
        self.0.suspended()
    }

    fn wall_ms(&self) -> u64 {
        self.0.wall_ms()
    }
}
