//! The clocks of the nodes against that of the leader.

use std::time::{Duration, SystemTime};

use super::finding::{Finding, Status};
use super::probe::{CLOCK_INTERVAL, NoAnswer};

/// Wall clocks that differ by more make logs of several machines hard to compare, and certificates invalid early.
const WALL_DIFFERENCE_MS: i64 = 2_000;
/// A node returns its clock in whole milliseconds.
const RESOLUTION: Duration = Duration::from_millis(1);

/// The clocks in one answer of a node, between two moments of the local monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub asked: Duration,
    pub answered: Duration,
    pub monotonic_ms: u64,
    pub wall_difference_ms: i64,
}

impl Reading {
    pub fn round_trip(&self) -> Duration {
        self.answered.saturating_sub(self.asked)
    }

    fn middle(&self) -> f64 {
        (self.asked + self.answered).as_secs_f64() / 2.0
    }
}

/// A clock of a node, relative to the clock of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// The difference of the rates: 0.01 means that the clock of the node runs 1 % faster.
    pub rate: f64,
    /// The largest error of `rate`.
    pub error: f64,
    pub wall_difference_ms: i64,
    pub wall_error_ms: i64,
}

/// The rate of a clock between two readings.
pub fn measure(first: &Reading, second: &Reading) -> Measured {
    let here = (second.middle() - first.middle()).max(f64::MIN_POSITIVE);
    let there = (second.monotonic_ms as f64 - first.monotonic_ms as f64) / 1e3;
    let half = |reading: &Reading| reading.round_trip().as_secs_f64() / 2.0;
    Measured {
        rate: there / here - 1.0,
        error: (half(first) + half(second) + RESOLUTION.as_secs_f64()) / here,
        wall_difference_ms: second.wall_difference_ms,
        wall_error_ms: second.round_trip().as_millis() as i64 + 1,
    }
}

/// The clock of one node. `is_leader`: the others are compared with it.
pub struct LabelledClock<'a> {
    pub label: String,
    pub is_leader: bool,
    pub clock: Result<Measured, &'a NoAnswer>,
}

/// Compares the rates of all clocks, this machine included, with that of the leader. A difference above
/// `drift_permille` breaks the promises of leases.
pub fn rates(nodes: &[LabelledClock<'_>], drift_permille: u64) -> Finding {
    let name = "clock.rate";
    let Some(leader) = nodes.iter().find(|node| node.is_leader) else {
        return Finding::unknown(name, "no answer names a leader", "repeat this when `quorum` is ok");
    };
    let base = match leader.clock {
        Ok(measured) => measured,
        Err(why) => {
            let facts = format!("the leader, {}, tells no clock: {}", leader.label, why.message());
            return Finding::unknown(name, facts, "repeat this, with an access token if the cluster needs one");
        }
    };
    let allowed = drift_permille as f64 / 1e3;
    let (mut status, mut compared, mut largest_error) = (Status::Ok, Vec::new(), 0.0_f64);
    let here = LabelledClock { label: "this machine".to_owned(), is_leader: false, clock: Ok(Measured::default()) };
    for node in std::iter::once(&here).chain(nodes.iter().filter(|node| !node.is_leader)) {
        let Ok(measured) = node.clock else {
            status = status.max(Status::Unknown);
            compared.push(format!("{} unknown", node.label));
            continue;
        };
        let (difference, error) = (measured.rate - base.rate, measured.error + base.error);
        let certain = difference.abs() - error;
        status = status.max(match certain {
            _ if certain > allowed => Status::Problem,
            _ if certain > allowed / 2.0 => Status::Warning,
            _ if error > allowed / 2.0 => Status::Unknown,
            _ => Status::Ok,
        });
        largest_error = largest_error.max(error);
        compared.push(format!("{} {:+.3} %", node.label, difference * 100.0));
    }
    let facts = format!(
        "against the leader, {}, over {} s: {}; error at most {:.3} %, allowed {:.1} %",
        leader.label,
        CLOCK_INTERVAL.as_secs(),
        compared.join(", "),
        largest_error * 100.0,
        allowed * 100.0
    );
    if status == Status::Unknown && largest_error > allowed / 2.0 {
        return Finding::unknown(
            name,
            facts,
            "answers are too slow to tell: repeat this on a machine close to the nodes",
        );
    }
    let advice = "stop the machine whose clock differs, and repair its clock or its time service: docs/operations.md, \
                  Timings";
    Finding::of_nodes(status, name, facts, advice)
}

/// Compares all wall clocks with each other, this machine included. No rule of leases reads them.
pub fn walls(nodes: &[LabelledClock<'_>]) -> Finding {
    let name = "clock.wall";
    let (mut status, mut compared) = (Status::Ok, Vec::new());
    // The certain part of the differences. The clock of this machine differs by 0.
    let (mut ahead, mut behind) = (0_i64, 0_i64);
    for node in nodes {
        match node.clock {
            Ok(Measured { wall_difference_ms: difference, wall_error_ms: error, .. }) => {
                ahead = ahead.max(difference.saturating_sub(error));
                behind = behind.min(difference.saturating_add(error));
                compared.push(format!("{} {difference:+} ms", node.label));
            }
            Err(_) => {
                status = status.max(Status::Unknown);
                compared.push(format!("{} unknown", node.label));
            }
        }
    }
    if ahead.saturating_sub(behind) > WALL_DIFFERENCE_MS {
        status = Status::Warning;
    }
    let now = humantime::format_rfc3339_seconds(SystemTime::now());
    let facts = format!("against this machine at {now}: {}", compared.join(", "));
    let advice = "synchronize the wall clocks with NTP: leases do not use them, but certificates, access tokens and logs \
                  do";
    Finding::of_nodes(status, name, facts, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(asked_ms: u64, round_trip_ms: u64, monotonic_ms: u64) -> Reading {
        let asked = Duration::from_millis(asked_ms);
        let answered = asked + Duration::from_millis(round_trip_ms);
        Reading { asked, answered, monotonic_ms, wall_difference_ms: 0 }
    }

    #[test]
    fn rate_is_measured_between_two_readings() {
        let measured = measure(&reading(0, 2, 50_000), &reading(10_000, 2, 60_100));
        assert!((measured.rate - 0.01).abs() < 1e-9, "{measured:?}");
        assert!((measured.error - 0.0003).abs() < 1e-9, "half of each round trip and 1 ms in 10 s: {measured:?}");
    }

    fn nodes(rates: [Option<f64>; 3], error: f64) -> Vec<LabelledClock<'static>> {
        static NONE: NoAnswer = NoAnswer::Failed(String::new());
        let node = |(index, rate): (usize, Option<f64>)| LabelledClock {
            label: format!("node {}", index + 1),
            is_leader: index == 0,
            clock: rate.map(|rate| Measured { rate, error, ..Measured::default() }).ok_or(&NONE),
        };
        rates.into_iter().enumerate().map(node).collect()
    }

    #[test]
    fn rates_are_compared_with_the_leader() {
        let status = |rates_of, error| rates(&nodes(rates_of, error), 10).status;
        assert_eq!(status([Some(0.0), Some(0.001), Some(-0.004)], 0.0001), Status::Ok);
        assert_eq!(status([Some(0.0), Some(0.001), Some(0.006)], 0.0001), Status::Warning);
        assert_eq!(status([Some(0.006), Some(0.0), Some(-0.005)], 0.0001), Status::Problem, "11 permille apart");
        assert_eq!(status([Some(0.02), Some(0.02), Some(0.02)], 0.0001), Status::Problem, "this machine differs");
        assert_eq!(status([Some(0.0), Some(0.0), None], 0.0001), Status::Unknown);
        assert_eq!(status([Some(0.0), Some(0.02), None], 0.0001), Status::Problem, "unknown hides no problem");
        assert_eq!(status([None, Some(0.0), Some(0.0)], 0.0001), Status::Unknown, "the leader does not answer");
        assert_eq!(status([Some(0.0), Some(0.0), Some(0.0)], 0.004), Status::Unknown, "the error is too large");
        assert_eq!(status([Some(0.0), Some(0.012), Some(0.0)], 0.004), Status::Unknown, "0.4 to 2 % apart");
        assert_eq!(rates(&nodes([Some(0.0); 3], 0.0)[1..], 10).status, Status::Unknown, "no leader");
    }

    /// A clock that differs from this machine by this time, with an error of 5 ms.
    fn wall(difference_ms: i64) -> LabelledClock<'static> {
        LabelledClock {
            label: "node 1".to_owned(),
            is_leader: true,
            clock: Ok(Measured { wall_difference_ms: difference_ms, wall_error_ms: 5, ..Measured::default() }),
        }
    }

    #[test]
    fn wall_clocks_may_differ_by_2_s() {
        assert_eq!(walls(&[wall(2_005)]).status, Status::Ok);
        assert_eq!(walls(&[wall(-2_006)]).status, Status::Warning);
        assert_eq!(walls(&nodes([Some(0.0), None, None], 0.0)).status, Status::Unknown);
    }

    /// This machine is between both nodes.
    #[test]
    fn wall_clocks_of_two_nodes_may_differ_by_2_s() {
        assert_eq!(walls(&[wall(1_005), wall(-1_005)]).status, Status::Ok);
        assert_eq!(walls(&[wall(1_006), wall(-1_005)]).status, Status::Warning);
        assert_eq!(walls(&[wall(-1_900), wall(1_900)]).status, Status::Warning);
        assert_eq!(walls(&[wall(1_900), wall(1_900)]).status, Status::Ok, "both are ahead of this machine");
    }
}
