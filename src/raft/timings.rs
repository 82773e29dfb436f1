//! openraft's configuration, with the reason for each value.

use std::time::Duration;

use openraft::{Config, ConfigError, SnapshotPolicy, StepDownPolicy};

use crate::config::RaftTimings;

/// Most log entries in one append request. The log reader bounds the bytes.
const MAX_APPEND_ENTRIES: u64 = 1024;
/// Most log entries in one write to the store.
const MAX_WRITE_ENTRIES: u64 = 1024;
/// Fewest log entries that one purge removes. Raft's core waits for the sync of each purge.
const PURGE_BATCH: u64 = 256;
/// Longest installation of a snapshot, in milliseconds. It allows for a million leases on a slow disk.
const SNAPSHOT_TIMEOUT_MS: u64 = 120_000;

impl RaftTimings {
    /// After a message from a leader, a follower votes for no other node for this time. openraft uses the maximum
    /// election timeout as the length of the leadership lease.
    pub fn leadership_lease(&self) -> Duration {
        Duration::from_millis(self.election_timeout_max_ms)
    }

    #[doc(hidden)]
    /// A leader that no majority has acknowledged for this time reports that it does not lead. Its leadership lease has
    /// expired, and the other nodes have had the same time again for an election.
    pub fn isolation(&self) -> Duration {
        self.leadership_lease() * 2
    }

    #[doc(hidden)]
    /// The wait after which `time` has passed on each node's clock, provided that all clock rates are within the drift.
    pub fn by_any_clock(&self, time: Duration) -> Duration {
        time * (1000 + self.drift_permille as u32) / 1000
    }

    /// Longest wait for a reply that another node sends after a disk sync.
    pub(super) fn disk_timeout(&self) -> Duration {
        (self.leadership_lease() * 2).max(Duration::from_secs(2))
    }

    pub(super) fn openraft_config(&self, cluster: &str) -> Result<Config, ConfigError> {
        let config = Config {
            cluster_name: cluster.to_string(),
            heartbeat_interval: self.heartbeat_interval_ms,
            election_timeout_min: self.election_timeout_min_ms,
            election_timeout_max: self.election_timeout_max_ms,
            install_snapshot_timeout: SNAPSHOT_TIMEOUT_MS,
            max_payload_entries: MAX_APPEND_ENTRIES,
            max_append_entries: Some(MAX_WRITE_ENTRIES),
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_every),
            max_in_snapshot_log_to_keep: self.snapshot_keep,
            replication_lag_threshold: self.snapshot_every + self.snapshot_keep,
            purge_batch_size: PURGE_BATCH,
            // Without pre-vote, a node that returns from a partition has a higher term and deposes a healthy leader.
            enable_pre_vote: Some(true),
            // A leader that crashed after a leadership transfer would restore its old vote and lead again.
            enable_leader_restore: Some(false),
            // The heartbeats of an isolated leader can prevent an election in a connected majority (openraft #2080).
            // With this setting, the leader withholds its heartbeats in every other interval and continues to lead.
            quorum_loss_probe_interval: Some(self.election_timeout_max_ms * 2),
            // openraft would transfer the leadership of a removed leader, and local reads would not know it. Tenure
            // transfers leadership before it removes a leader.
            removed_leader_step_down: StepDownPolicy::Never,
            ..Config::default()
        };
        config.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installation_of_a_snapshot_may_take_two_minutes() {
        let config = RaftTimings::lan().openraft_config("test").expect("the timings are valid");
        assert_eq!(config.install_snapshot_timeout, 120_000);
    }

    #[test]
    fn restarted_leader_must_win_an_election_with_pre_vote() {
        let config = RaftTimings::lan().openraft_config("test").expect("the timings are valid");
        assert_eq!((config.enable_pre_vote, config.enable_leader_restore), (Some(true), Some(false)));
    }
}
