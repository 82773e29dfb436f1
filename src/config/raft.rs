//! `[raft]`: the timings of replication. They are validated together because they depend on each other.

use serde::{Deserialize, Serialize};

use super::reader::{Found, within};

/// Minimum number of heartbeats in the shortest election timeout. With fewer, one late heartbeat starts an election.
const HEARTBEATS_PER_ELECTION: u64 = 3;

/// The timings of replication. The leadership lease lasts `election_timeout_max_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RaftTimings {
    /// Interval between two heartbeats of the leader, in milliseconds.
    pub heartbeat_interval_ms: u64,
    /// Lower bound of the random election timeout, in milliseconds. A follower starts an election when it hears
    /// nothing from the leader for the leadership lease and then for this timeout.
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

/// The timings that a file starts from.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Profile {
    #[default]
    Lan,
    Wan,
}

impl Profile {
    pub fn timings(self) -> RaftTimings {
        match self {
            Profile::Lan => RaftTimings::lan(),
            Profile::Wan => RaftTimings::wan(),
        }
    }
}

/// `[raft]`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RaftSection {
    profile: Profile,
    #[serde(deserialize_with = "within::<_, _, 10, 10_000>")]
    heartbeat_interval_ms: u64,
    // Below the maximum of `election_timeout_max_ms`.
    #[serde(deserialize_with = "within::<_, _, 50, 59_999>")]
    election_timeout_min_ms: u64,
    // Above the minimum of `election_timeout_min_ms`.
    #[serde(deserialize_with = "within::<_, _, 51, 60_000>")]
    election_timeout_max_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 200>")]
    drift_permille: u64,
    #[serde(deserialize_with = "within::<_, _, 100, 100_000_000>")]
    snapshot_every: u64,
    // Below the maximum of `snapshot_every`.
    #[serde(deserialize_with = "within::<_, _, 0, 99_999_999>")]
    snapshot_keep: u64,
}

impl RaftSection {
    pub fn new(profile: Profile, timings: &RaftTimings) -> RaftSection {
        RaftSection {
            profile,
            heartbeat_interval_ms: timings.heartbeat_interval_ms,
            election_timeout_min_ms: timings.election_timeout_min_ms,
            election_timeout_max_ms: timings.election_timeout_max_ms,
            drift_permille: timings.drift_permille,
            snapshot_every: timings.snapshot_every,
            snapshot_keep: timings.snapshot_keep,
        }
    }

    pub fn timings(&self) -> RaftTimings {
        RaftTimings {
            heartbeat_interval_ms: self.heartbeat_interval_ms,
            election_timeout_min_ms: self.election_timeout_min_ms,
            election_timeout_max_ms: self.election_timeout_max_ms,
            drift_permille: self.drift_permille,
            snapshot_every: self.snapshot_every,
            snapshot_keep: self.snapshot_keep,
        }
    }
}

/// Adds all pairs of settings that conflict.
pub(super) fn validate(timings: &RaftTimings, found: &mut Found) {
    let (heartbeat, min, max) =
        (timings.heartbeat_interval_ms, timings.election_timeout_min_ms, timings.election_timeout_max_ms);
    if min >= max {
        let text = format!(
            "{min} must be below election_timeout_max_ms, {max}: a random timeout prevents that several nodes start \
             an election at the same time"
        );
        found.add_first("raft.election_timeout_min_ms", text);
    }
    if heartbeat.saturating_mul(HEARTBEATS_PER_ELECTION) > min {
        let text = format!("{heartbeat} must fit {HEARTBEATS_PER_ELECTION} times into election_timeout_min_ms, {min}");
        found.add_first("raft.heartbeat_interval_ms", text);
    }
    let (keep, every) = (timings.snapshot_keep, timings.snapshot_every);
    if keep >= every {
        found.add_first("raft.snapshot_keep", format!("{keep} must be below snapshot_every, {every}"));
    }
}
