//! `[raft]`: the timings of replication. They are validated together because they depend on each other.

use super::number::{self, Number};
use super::reader::Reader;

/// Minimum number of heartbeats in the shortest election timeout. With fewer, one late heartbeat starts an election.
const HEARTBEATS_PER_ELECTION: u64 = 3;

/// The timings of replication. The leadership lease lasts `election_timeout_max_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RaftTimings {
    /// Interval between two heartbeats of the leader, in milliseconds.
    pub heartbeat_interval_ms: u64,
    /// Lower bound of the random election timeout, in milliseconds. A follower starts an election when it hears
    /// nothing from the leader for this timeout.
    pub election_timeout_min_ms: u64,
    /// Upper bound of the random election timeout, in milliseconds.
    pub election_timeout_max_ms: u64,
    /// Maximum difference between the clock rates of two nodes, in thousandths.
    pub drift_permille: u64,
    /// Number of log entries between two snapshots.
    pub snapshot_every: u64,
    /// Number of log entries that a node keeps before a snapshot, for followers that lag a little.
    pub snapshot_keep: u64,
}

impl RaftTimings {
    /// Timings for one site: the cluster elects a new leader within one second after the old one fails.
    pub fn lan() -> RaftTimings {
        RaftTimings {
            heartbeat_interval_ms: 75,
            election_timeout_min_ms: 225,
            election_timeout_max_ms: 325,
            drift_permille: 10,
            snapshot_every: 20_000,
            snapshot_keep: 2_000,
        }
    }

    /// Timings for several sites with round trips of up to 300 ms.
    pub fn wan() -> RaftTimings {
        RaftTimings {
            heartbeat_interval_ms: 500,
            election_timeout_min_ms: 2_500,
            election_timeout_max_ms: 4_000,
            ..RaftTimings::lan()
        }
    }
}

impl Default for RaftTimings {
    fn default() -> RaftTimings {
        RaftTimings::lan()
    }
}

const NUMBERS: [Number<RaftTimings>; 6] = [
    Number {
        key: "heartbeat_interval_ms",
        min: 10,
        max: 10_000,
        get: |timings| timings.heartbeat_interval_ms,
        set: |timings, value| timings.heartbeat_interval_ms = value,
    },
    Number {
        key: "election_timeout_min_ms",
        min: 50,
        // Below the maximum of `election_timeout_max_ms`.
        max: 59_999,
        get: |timings| timings.election_timeout_min_ms,
        set: |timings, value| timings.election_timeout_min_ms = value,
    },
    Number {
        key: "election_timeout_max_ms",
        // Above the minimum of `election_timeout_min_ms`.
        min: 51,
        max: 60_000,
        get: |timings| timings.election_timeout_max_ms,
        set: |timings, value| timings.election_timeout_max_ms = value,
    },
    Number {
        key: "drift_permille",
        min: 1,
        max: 200,
        get: |timings| timings.drift_permille,
        set: |timings, value| timings.drift_permille = value,
    },
    Number {
        key: "snapshot_every",
        min: 100,
        max: 100_000_000,
        get: |timings| timings.snapshot_every,
        set: |timings, value| timings.snapshot_every = value,
    },
    Number {
        key: "snapshot_keep",
        min: 0,
        // Below the maximum of `snapshot_every`.
        max: 99_999_999,
        get: |timings| timings.snapshot_keep,
        set: |timings, value| timings.snapshot_keep = value,
    },
];

pub(super) fn read(raft: &mut Reader) -> RaftTimings {
    let mut timings = read_profile(raft);
    number::read(&NUMBERS, raft, &mut timings);
    for problem in conflicts(&timings) {
        raft.problem(problem);
    }
    timings
}

/// All problems of timings that a program set.
pub(super) fn problems(timings: &RaftTimings) -> Vec<String> {
    let mut problems = number::check(&NUMBERS, timings);
    problems.extend(conflicts(timings));
    problems
}

fn read_profile(raft: &mut Reader) -> RaftTimings {
    match raft.text("profile").as_deref() {
        None | Some("lan") => RaftTimings::lan(),
        Some("wan") => RaftTimings::wan(),
        Some(other) => {
            raft.problem(format!("profile: unknown profile {other:?}: expected \"lan\" or \"wan\""));
            RaftTimings::lan()
        }
    }
}

/// All pairs of settings that conflict.
fn conflicts(timings: &RaftTimings) -> Vec<String> {
    let mut conflicts = Vec::new();
    let (heartbeat, min, max) =
        (timings.heartbeat_interval_ms, timings.election_timeout_min_ms, timings.election_timeout_max_ms);
    if min >= max {
        conflicts.push(format!(
            "election_timeout_min_ms: {min} must be below election_timeout_max_ms, {max}: a random timeout prevents \
             that several nodes start an election at the same time"
        ));
    }
    if heartbeat.saturating_mul(HEARTBEATS_PER_ELECTION) > min {
        conflicts.push(format!(
            "heartbeat_interval_ms: {heartbeat} must fit {HEARTBEATS_PER_ELECTION} times into \
             election_timeout_min_ms, {min}"
        ));
    }
    if timings.snapshot_keep >= timings.snapshot_every {
        conflicts.push(format!(
            "snapshot_keep: {} must be below snapshot_every, {}",
            timings.snapshot_keep, timings.snapshot_every
        ));
    }
    conflicts
}
