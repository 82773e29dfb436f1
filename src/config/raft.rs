//! `[raft]`: timings of the replication, validated together because each is only right beside the others.

use super::number::{self, Number};
use super::reader::Reader;

/// How many heartbeats must fit into the shortest election timeout: with fewer, one late heartbeat elects a leader.
const HEARTBEATS_PER_ELECTION: u64 = 3;

/// Timings of the replication. The leadership lease is `election_timeout_max_ms` long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTimings {
    /// The leader is heard from at least this often, in milliseconds.
    pub heartbeat_interval_ms: u64,
    /// A follower that hears nothing for a random time from here ...
    pub election_timeout_min_ms: u64,
    /// ... to here, in milliseconds, stands for election.
    pub election_timeout_max_ms: u64,
    /// The most by which the rates of two nodes' clocks may differ, in thousandths.
    pub drift_permille: u64,
    /// Log entries between two snapshots.
    pub snapshot_every: u64,
    /// Log entries that are kept behind a snapshot, for followers that are a little behind.
    pub snapshot_keep: u64,
}

impl RaftTimings {
    /// One site: a new leader within a second of the old one's end.
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

    /// Several sites, with round trips of up to 300 ms.
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
        // The longest timeout is above it.
        max: 59_999,
        get: |timings| timings.election_timeout_min_ms,
        set: |timings, value| timings.election_timeout_min_ms = value,
    },
    Number {
        key: "election_timeout_max_ms",
        // The shortest timeout is below it.
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
        // `snapshot_every` is above it.
        max: 99_999_999,
        get: |timings| timings.snapshot_keep,
        set: |timings, value| timings.snapshot_keep = value,
    },
];

pub(super) fn read(raft: &mut Reader) -> RaftTimings {
    let mut timings = read_profile(raft);
    number::read(&NUMBERS, raft, &mut timings);
    for problem in clashes(&timings) {
        raft.problem(problem);
    }
    timings
}

/// Everything that is wrong with timings that a program set.
pub(super) fn problems(timings: &RaftTimings) -> Vec<String> {
    let mut problems = number::check(&NUMBERS, timings);
    problems.extend(clashes(timings));
    problems
}

fn read_profile(raft: &mut Reader) -> RaftTimings {
    match raft.text("profile").as_deref() {
        None | Some("lan") => RaftTimings::lan(),
        Some("wan") => RaftTimings::wan(),
        Some(other) => {
            raft.problem(format!("profile: {other:?} is none; \"lan\" and \"wan\" are"));
            RaftTimings::lan()
        }
    }
}

/// What does not fit together.
fn clashes(timings: &RaftTimings) -> Vec<String> {
    let mut clashes = Vec::new();
    let (heartbeat, min, max) =
        (timings.heartbeat_interval_ms, timings.election_timeout_min_ms, timings.election_timeout_max_ms);
    if min >= max {
        clashes.push(format!(
            "election_timeout_min_ms: {min} must be below election_timeout_max_ms, {max}, or nodes stand for election \
             at the same moment"
        ));
    }
    if heartbeat.saturating_mul(HEARTBEATS_PER_ELECTION) > min {
        clashes.push(format!(
            "heartbeat_interval_ms: {heartbeat} must fit {HEARTBEATS_PER_ELECTION} times into \
             election_timeout_min_ms, {min}"
        ));
    }
    if timings.snapshot_keep >= timings.snapshot_every {
        clashes.push(format!(
            "snapshot_keep: {} must be below snapshot_every, {}",
            timings.snapshot_keep, timings.snapshot_every
        ));
    }
    clashes
}
