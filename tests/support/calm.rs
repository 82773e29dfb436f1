//! Timings for tests that a delay of a node must not disturb by an election.
#![allow(dead_code, reason = "each test program uses a part of it")]

use tenure::config::RaftTimings;

/// As in a local network, but a follower waits for seconds before it calls an election.
pub fn timings() -> RaftTimings {
    let mut timings = RaftTimings::lan();
    (timings.election_timeout_min_ms, timings.election_timeout_max_ms) = (1_500, 2_500);
    timings
}

/// The same timings in a configuration file.
pub const SETTINGS: &str = "[raft]\nelection_timeout_min_ms = 1500\nelection_timeout_max_ms = 2500\n";
