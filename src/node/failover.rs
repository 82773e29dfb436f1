//! Early elections after the end of the leader's process.
//!
//! If the leader closes its connection and its address then refuses a new one, no process answers there. This node then
//! stands for election when the leadership lease expires, and does not wait for the random election timeout after it.
//!
//! A refused connection does not prove that the leader is gone, so it changes only the moment of the election. The
//! voters still keep their promises: each refuses every candidate until its own leadership lease expires.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::config::RaftTimings;
use crate::node::NodeCore;
use crate::peer::Transport;
use crate::storage::Storage;
use crate::time;
use crate::types::NodeId;

/// Early elections of each node. After them, the random election timeout decides.
const ATTEMPTS: u32 = 4;
/// A tenth of a lease is longer than an election on a fast network.
const STEPS_IN_A_LEASE: u32 = 10;

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// Stands for election if `from` leads, and its process has ended. The caller has lost the connection from it.
    pub(in crate::node) async fn replace_ended_leader(self: Arc<Self>, from: NodeId) {
        let known = self.raft.leadership();
        let (Some(info), true) = (self.raft.member(from), known.leader == Some(from)) else { return };
        let voters = self.raft.current_membership().voters;
        let Some(schedule) = ElectionSchedule::new(&self.raft.timings, &voters, from, self.settings.id) else { return };
        let (lost_at, _) = self.requests.clock.reading();
        // A process that ends closes its connections and its listener one after the other.
        let mut probes = STEPS_IN_A_LEASE;
        while !self.transport.is_refused(from, &info.peer).await {
            let (now, _) = self.requests.clock.reading();
            // A message from before the loss may still wait for the disk, and then counts as heard a little later.
            let since = Duration::from_millis(now - lost_at).saturating_sub(schedule.step);
            let is_heard_again = self.raft.last_contact().is_none_or(|heard| heard < since);
            probes -= 1;
            if is_heard_again || probes == 0 || self.raft.leadership() != known {
                return;
            }
            time::sleep(schedule.step).await;
        }
        tracing::info!(leader = from, term = known.term, "the leader's process has ended");
        for attempt in 0..ATTEMPTS {
            loop {
                // Another node leads, or this node stands in a later term: the usual timers apply.
                if self.raft.leadership() != known {
                    return;
                }
                let Some(heard) = self.raft.last_contact() else { return };
                let left = schedule.due(attempt).saturating_sub(heard);
                if left.is_zero() {
                    break;
                }
                time::sleep(left).await;
            }
            self.raft.stand_for_election().await;
        }
    }
}

/// When the candidates stand for election, one after the other. Two at once could split the votes.
#[derive(Debug, PartialEq, Eq)]
struct ElectionSchedule {
    /// The time after the last message of the leader at which the first candidate stands.
    first: Duration,
    /// The time between two candidates.
    step: Duration,
    /// The number of candidates before this node, and the number of all.
    rank: u32,
    candidates: u32,
}

impl ElectionSchedule {
    /// `None` if this node is not a voter.
    fn new(timings: &RaftTimings, voters: &BTreeSet<NodeId>, ended: NodeId, own: NodeId) -> Option<ElectionSchedule> {
        let candidates: Vec<NodeId> = voters.iter().copied().filter(|&voter| voter != ended).collect();
        let rank = candidates.iter().position(|&candidate| candidate == own)? as u32;
        let lease = timings.leadership_lease();
        let first = timings.by_any_clock(lease);
        Some(ElectionSchedule { first, step: lease / STEPS_IN_A_LEASE, rank, candidates: candidates.len() as u32 })
    }

    /// The time after the last message of the leader.
    fn due(&self, attempt: u32) -> Duration {
        self.first + self.step * (attempt * self.candidates + self.rank)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;
    use crate::config::LeaseSettings;
    use crate::lease::Command;
    use crate::node::{Forward, Request};
    use crate::sim::Cut;
    use crate::testing::Cluster;

    /// Time for an election and the first requests on the simulated network, whose timers count whole milliseconds.
    const ELECTION: Duration = Duration::from_millis(20);

    #[test]
    fn candidates_stand_one_after_the_other() {
        let timings = RaftTimings { election_timeout_max_ms: 1_000, drift_permille: 50, ..RaftTimings::lan() };
        let voters = BTreeSet::from([1, 3, 4, 9]);
        let schedule = |own| ElectionSchedule::new(&timings, &voters, 3, own).expect("a voter");
        let due = |own, attempt| schedule(own).due(attempt).as_millis();
        assert_eq!([due(1, 0), due(4, 0), due(9, 0), due(1, 1)], [1_050, 1_150, 1_250, 1_350]);
        assert_eq!(ElectionSchedule::new(&timings, &voters, 3, 7), None, "a learner");
    }

    /// Waits for `after`. Then it ends the process of the leader (`is_noticed`), or cuts the power of its machine. Returns the times until the other nodes have
    /// answered a request that they got meanwhile.
    async fn leaderless_times(cluster: &mut Cluster, after: Duration, is_noticed: bool) -> Vec<Duration> {
        let leader = cluster.leader().await;
        tokio::time::sleep(after).await;
        let killed = cluster.cut_power(leader, Cut::Keep(usize::MAX)).expect("it runs");
        let began = Instant::now();
        if is_noticed {
            cluster.board.close_connections(leader);
        }
        killed.await;
        let requests = cluster.ids().filter(|id| *id != leader).map(|id| {
            let node = cluster.node(id).clone();
            async move {
                node.request(Request::Change(Command::Tick), Forward::Once).await.expect("another node leads");
                began.elapsed()
            }
        });
        let times = join_all(requests).await;
        cluster.restart(leader).await;
        times
    }

    #[tokio::test(start_paused = true)]
    async fn ended_leader_is_replaced_when_its_lease_expires() {
        let timings = RaftTimings::lan();
        let lease = timings.leadership_lease();
        for nodes in [3, 5] {
            let mut cluster = Cluster::start(nodes, timings, LeaseSettings::default()).await;
            let heartbeat = Duration::from_millis(timings.heartbeat_interval_ms);
            // Some of the leaders end just after a heartbeat, so the whole lease passes.
            for part in 0..10 {
                let after = Duration::from_secs(1) + heartbeat * part / 10;
                for lasted in leaderless_times(&mut cluster, after, true).await {
                    assert!(lasted > lease - heartbeat - ELECTION, "the voters keep their promise: {lasted:?}");
                    assert!(lasted < timings.by_any_clock(lease) + ELECTION, "{nodes} nodes: {lasted:?}");
                }
            }
            cluster.shutdown().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn leader_without_power_is_replaced_after_the_election_timeout() {
        let timings = RaftTimings::lan();
        let mut cluster = Cluster::start(3, timings, LeaseSettings::default()).await;
        let lasted = leaderless_times(&mut cluster, Duration::from_secs(1), false).await;
        let heartbeat = Duration::from_millis(timings.heartbeat_interval_ms);
        let election_timeout = Duration::from_millis(timings.election_timeout_min_ms);
        let least = timings.leadership_lease() - heartbeat + election_timeout;
        assert!(lasted.iter().all(|lasted| *lasted > least), "{lasted:?}");
        cluster.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn lost_connection_to_a_running_leader_changes_nothing() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        let before = cluster.node(leader).raft().leadership();
        for _ in 0..20 {
            cluster.board.close_connections(leader);
            tokio::time::sleep(Duration::from_millis(97)).await;
        }
        assert_eq!(cluster.node(leader).raft().leadership(), before);
        cluster.shutdown().await;
    }
}
