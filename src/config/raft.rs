//! `[raft]`: timings of the replication, validated together because each is only right beside the others.

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

pub(super) fn read(raft: &mut Reader) -> RaftTimings {
    let base = read_profile(raft);
    let timings = RaftTimings {
        heartbeat_interval_ms: raft.number("heartbeat_interval_ms", base.heartbeat_interval_ms, 10, 10_000),
        election_timeout_min_ms: raft.number("election_timeout_min_ms", base.election_timeout_min_ms, 50, 60_000),
        election_timeout_max_ms: raft.number("election_timeout_max_ms", base.election_timeout_max_ms, 50, 60_000),
        drift_permille: raft.number("drift_permille", base.drift_permille, 1, 200),
        snapshot_every: raft.number("snapshot_every", base.snapshot_every, 100, 100_000_000),
        snapshot_keep: raft.number("snapshot_keep", base.snapshot_keep, 0, 100_000_000),
    };
    check_together(raft, &timings);
    timings
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

fn check_together(raft: &mut Reader, timings: &RaftTimings) {
    let (heartbeat, min, max) =
        (timings.heartbeat_interval_ms, timings.election_timeout_min_ms, timings.election_timeout_max_ms);
    if min >= max {
        raft.problem(format!(
            "election_timeout_min_ms: {min} must be below election_timeout_max_ms, {max}, or nodes stand for election \
             at the same moment"
        ));
    }
    if heartbeat * HEARTBEATS_PER_ELECTION > min {
        raft.problem(format!(
            "heartbeat_interval_ms: {heartbeat} must fit {HEARTBEATS_PER_ELECTION} times into \
             election_timeout_min_ms, {min}"
        ));
    }
    if timings.snapshot_keep >= timings.snapshot_every {
        raft.problem(format!(
            "snapshot_keep: {} must be below snapshot_every, {}",
            timings.snapshot_keep, timings.snapshot_every
        ));
    }
}
