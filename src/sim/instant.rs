//! Instants and timeouts in the simulated time of the node whose task asks for them.

use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use tokio::time::Timeout;

pub use super::time::Sleep;
use super::time::{self, ClockRate, current};

/// A reading of a node's clock. It keeps the rate of that clock, because tasks of other nodes may ask for its age.
#[derive(Clone, Copy, Debug)]
pub struct Instant {
    shown: tokio::time::Instant,
    rate: Option<ClockRate>,
}

impl Instant {
    fn of(rate: Option<ClockRate>) -> Instant {
        let now = tokio::time::Instant::now();
        Instant { shown: rate.map_or(now, |rate| rate.shown_at(now)), rate }
    }

    pub fn current() -> Instant {
        Instant::of(current().rate())
    }

    pub fn age(&self) -> Duration {
        Instant::of(self.rate) - *self
    }

    fn moment(self) -> tokio::time::Instant {
        self.rate.map_or(self.shown, |rate| rate.moment_of(self.shown))
    }
}

pub fn sleep(duration: Duration) -> Sleep {
    time::sleep(duration)
}

pub fn sleep_until(deadline: Instant) -> Sleep {
    time::sleep_until(deadline.shown, deadline.rate)
}

pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    tokio::time::timeout(current().rate().map_or(duration, |rate| rate.in_true_time(duration)), future)
}

pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> Timeout<F> {
    tokio::time::timeout_at(deadline.moment(), future)
}

impl PartialEq for Instant {
    fn eq(&self, other: &Instant) -> bool {
        self.shown == other.shown
    }
}

impl Eq for Instant {}

impl PartialOrd for Instant {
    fn partial_cmp(&self, other: &Instant) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Instant {
    fn cmp(&self, other: &Instant) -> Ordering {
        self.shown.cmp(&other.shown)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant { shown: self.shown + time, ..self }
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        self.shown += time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, time: Duration) -> Instant {
        Instant { shown: self.shown - time, ..self }
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, time: Duration) {
        self.shown -= time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.shown - earlier.shown
    }
}
