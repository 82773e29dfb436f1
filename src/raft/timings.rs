//! How openraft is set up, and why.

use std::time::Duration;

use openraft::{Config, ConfigError, SnapshotPolicy};

use crate::config::RaftTimings;

/// Log entries in one append: openraft's own unit; bytes are bounded in the log reader.
const MAX_APPEND_ENTRIES: u64 = 1024;
/// Log entries in one write to the store.
const MAX_WRITE_ENTRIES: u64 = 1024;
/// Log entries removed in one go, so that a purge does not hold up the votes and appends behind it.
const PURGE_BATCH: u64 = 256;
/// Longest installation of a snapshot, in milliseconds: a million leases, on a slow disk.
const SNAPSHOT_TIMEOUT_MS: u64 = 120_000;

/// What closes hazards of openraft as it comes. All on, except in tests that show what each is for by taking it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safeguards {
    /// A restarted node keeps still until no leadership lease that it granted can be in force.
    pub quarantine: bool,
    /// A restarted leader stands for election like everybody else.
    pub reelection: bool,
    /// A node asks whether it would be elected before it stands for election.
    pub pre_vote: bool,
    /// Nothing is read from memory without a leadership lease.
    pub lease_on_read: bool,
    /// The leadership lease counts from when the followers were asked, and not from when their answer came.
    pub lease_from_asking: bool,
    /// Nothing is read from memory after a suspend that the age of an acknowledgement does not count.
    pub suspend_guard: bool,
}

impl Default for Safeguards {
    fn default() -> Safeguards {
        Safeguards {
            quarantine: true,
            reelection: true,
            pre_vote: true,
            lease_on_read: true,
            lease_from_asking: true,
            suspend_guard: true,
        }
    }
}

impl RaftTimings {
    /// How long a follower that heard from a leader elects nobody else. openraft has one value for both.
    pub fn leadership_lease(&self) -> Duration {
        Duration::from_millis(self.election_timeout_max_ms)
    }

    /// A leader that no majority has acknowledged for this long leads no more, in any view. Its leadership lease is over
    /// then, and the others have had as long again to elect another.
    pub fn isolation(&self) -> Duration {
        self.leadership_lease() * 2
    }

    /// How long to wait until `time` has passed by every node's clock, as long as their rates are inside the drift.
    pub fn by_any_clock(&self, time: Duration) -> Duration {
        time * (1000 + self.drift_permille as u32) / 1000
    }

    /// Longest wait for an answer that includes another node's disk.
    pub(super) fn disk_timeout(&self) -> Duration {
        (self.leadership_lease() * 2).max(Duration::from_secs(2))
    }

    pub(super) fn openraft_config(&self, cluster: &str, safeguards: Safeguards) -> Result<Config, ConfigError> {
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
            // Without it a node that was cut off comes back with a higher term and deposes a healthy leader.
            enable_pre_vote: Some(safeguards.pre_vote),
            // A leader that crashed after it handed leadership on would restore its old vote.
            enable_leader_restore: Some(!safeguards.reelection),
            // The heartbeats of an isolated old leader can hold a connected majority back (openraft #2080). It withholds
            // them during every other such interval, and goes on leading.
            quorum_loss_probe_interval: Some(self.election_timeout_max_ms * 2),
            ..Config::default()
        };
        config.validate()
    }
}
