//! A clock that runs at its own rate, and at another one while its machine is suspended.

use std::time::Duration;

use tenure::clock::{Clock, Suspended};
use tenure::testing::NodeTime;
use tokio::time::Instant;

/// True time since the simulation began, times a rate. The tasks of a node have timers of the same rate, which stand still
/// while the machine is suspended; this clock goes on, and counts it.
#[derive(Clone)]
pub struct SkewedClock {
    began: Instant,
    /// Ahead of true time by so much from the start.
    ahead: Duration,
    rate: f64,
    /// The machine, and the rate of this clock while it is suspended.
    machine: Option<(NodeTime, f64)>,
}

impl SkewedClock {
    /// The clock of a machine that is never suspended, if nothing else is said.
    pub fn new(began: Instant, ahead: Duration, rate: f64) -> SkewedClock {
        SkewedClock { began, ahead, rate, machine: None }
    }

    /// The clock of a machine that is suspended as its pace says.
    pub fn of_machine(self, pace: NodeTime, suspended_rate: f64) -> SkewedClock {
        SkewedClock { machine: Some((pace, suspended_rate)), ..self }
    }

    /// How much true time passes while this clock counts `time`.
    pub fn in_true_time(&self, time: Duration) -> Duration {
        time.div_f64(self.rate)
    }

    /// True time in which the machine was suspended, and what this clock counted meanwhile.
    fn suspends(&self) -> (Duration, Duration) {
        let suspends = self.machine.as_ref().map(|(pace, rate)| (pace.suspended(), pace.suspended().mul_f64(*rate)));
        suspends.unwrap_or_default()
    }
}

impl Clock for SkewedClock {
    fn elapsed(&self) -> Duration {
        let (asleep, counted) = self.suspends();
        self.ahead + (self.began.elapsed() - asleep).mul_f64(self.rate) + counted
    }

    fn suspended(&self) -> Suspended {
        Suspended::exactly(self.suspends().1)
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.elapsed().as_millis() as u64
    }
}

/// A planted bug: time that jumps 5 s ahead every 7 s, as a wall clock may when somebody sets it.
pub struct JumpingClock(pub SkewedClock);

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
