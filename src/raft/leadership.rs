//! The leader and the members, as this member of the cluster knows them.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::{Instant as _, ServerState};

use super::handle::RaftHandle;
use super::types::{PeerInfo, TypeConfig};
use crate::storage::Storage;
use crate::types::NodeId;

/// The leader and the term that this member knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurrentLeader {
    pub term: u64,
    pub leader: Option<NodeId>,
}

/// Reports possible changes of the leadership in Raft. Here, a leader that lost its majority still counts as the
/// leader.
pub struct LeadershipWatch {
    metrics: WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>,
}

/// This node's knowledge of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    pub id: NodeId,
    pub info: PeerInfo,
    pub voter: bool,
    /// Number of entries that the member lacks. Only the leader knows it.
    pub lag: Option<u64>,
    /// Time since the leader sent the last message that the member acknowledged. Only the leader knows it.
    pub heard: Option<Duration>,
}

impl LeadershipWatch {
    pub fn now(&mut self) -> CurrentLeader {
        let metrics = self.metrics.borrow_and_update();
        let leader = observed_leader(metrics.id, metrics.state, metrics.current_leader);
        CurrentLeader { term: metrics.vote.leader_id.term, leader }
    }

    /// Waits for a change since the last call of [`now`](Self::now). After Raft has stopped, it never returns.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn changed(&mut self) {
        if self.metrics.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// openraft derives the leader from the last vote, so a restarted leader would report itself as the leader.
fn observed_leader(own: NodeId, state: ServerState, voted: Option<NodeId>) -> Option<NodeId> {
    voted.filter(|&leader| leader != own || state == ServerState::Leader)
}

impl<S: Storage> RaftHandle<S> {
    /// Time since this leader sent the last message that a majority acknowledged. It includes suspended time. `None` if
    /// the node does not lead, or if no majority has acknowledged it yet.
    pub fn quorum_age(&self) -> Option<Duration> {
        let acked = {
            let metrics = self.metrics.borrow_watched();
            if metrics.state != ServerState::Leader {
                return None;
            }
            if metrics.membership_config.voter_ids().take(2).count() == 1 {
                return Some(Duration::ZERO);
            }
            metrics.last_quorum_acked.map(|acked| *acked)?
        };
        let age = acked.elapsed();
        Some(age + self.suspend.suspended_within(age))
    }

    /// The time for which this node still leads without a new acknowledgement of a majority. `None` if it does not
    /// lead.
    ///
    /// openraft's leader does not step down when it loses its majority.
    pub fn leads_for(&self) -> Option<Duration> {
        self.timings.isolation().checked_sub(self.quorum_age()?)
    }

    /// Time since the leader sent the last message that this member acknowledged. Only the leader knows it.
    pub fn heard_from(&self, node: NodeId) -> Option<Duration> {
        let metrics = self.metrics.borrow_watched();
        let heard = metrics.heartbeat.as_ref()?.get(&node)?.as_ref()?;
        Some(heard.elapsed())
    }

    /// Time since this node accepted a leader's append or heartbeat. `None` if it accepted none since its start.
    pub fn last_contact(&self) -> Option<Duration> {
        self.contact.elapsed()
    }

    /// Upper bound of the age of this node's state. `None` if it has heard of no leader.
    pub fn state_age(&self) -> Option<Duration> {
        self.quorum_age().or_else(|| self.last_contact())
    }

    /// The current leader. A leader that no majority has acknowledged for
    /// [`isolation`](crate::config::RaftTimings::isolation) does not count.
    pub fn leadership(&self) -> CurrentLeader {
        let (term, leader) = {
            let metrics = self.metrics.borrow_watched();
            (metrics.current_term, observed_leader(metrics.id, metrics.state, metrics.current_leader))
        };
        CurrentLeader { term, leader: leader.filter(|&leader| leader != self.node || self.leads_for().is_some()) }
    }

    pub fn watch_leadership(&self) -> LeadershipWatch {
        LeadershipWatch { metrics: self.raft.server_metrics() }
    }

    /// The addresses of a member.
    pub fn member(&self, node: NodeId) -> Option<PeerInfo> {
        let metrics = self.metrics.borrow_watched();
        metrics.membership_config.membership().get_node(&node).cloned()
    }

    /// All members. On the leader, with the lag and the last contact of each.
    pub fn members(&self) -> Vec<MemberState> {
        let metrics = self.metrics.borrow_watched();
        let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().collect();
        let last = metrics.last_log_index.unwrap_or_default();
        let state = |(&id, info): (&NodeId, &PeerInfo)| {
            let matched = metrics.replication.as_ref().and_then(|progress| progress.get(&id)).cloned().flatten();
            let heard = metrics.heartbeat.as_ref().and_then(|heard| heard.get(&id)).cloned().flatten();
            MemberState {
                id,
                info: info.clone(),
                voter: voters.contains(&id),
                lag: metrics.replication.as_ref().map(|_| last.saturating_sub(matched.map_or(0, |at| at.index))),
                heard: heard.map(|at| at.elapsed()),
            }
        };
        metrics.membership_config.nodes().map(state).collect()
    }
}
