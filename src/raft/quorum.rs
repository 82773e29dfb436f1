//! The majority that acknowledges a leader.

use std::sync::Arc;
use std::time::Duration;

use openraft::alias::{InstantOf, WatchReceiverOf};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftMetrics;
use openraft::{Instant as _, ServerState};

use super::RaftTimings;
use super::suspend::SuspendMeter;
use super::types::TypeConfig;
use crate::clock::Clock;

/// What this node knows of the majority that acknowledges it as the leader.
pub struct Quorum {
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    suspend: SuspendMeter,
    isolation: Duration,
    /// Without an acknowledgement for this time, another node may lead: a voter whose leadership lease is over, on a clock
    /// within the drift, stands for election at once if the leader refuses connections.
    alone: Duration,
}

enum Acked {
    /// The leader is the only voter.
    Alone,
    At(InstantOf<TypeConfig>),
}

impl Quorum {
    pub fn new(
        metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
        clock: Arc<dyn Clock>,
        timings: &RaftTimings,
    ) -> Quorum {
        Quorum {
            metrics,
            suspend: SuspendMeter::new(clock),
            isolation: timings.isolation(),
            alone: timings.leadership_lease() * (1_000 - timings.drift_permille as u32) / 1_000,
        }
    }

    /// Time since this leader sent the last message that a majority acknowledged. It includes suspended time. `None` if
    /// the node does not lead, or if no majority has acknowledged it yet.
    pub fn age(&self) -> Option<Duration> {
        self.age_if(|_| true)
    }

    /// [`age`](Self::age) as the leader of this term.
    pub fn age_in(&self, term: u64) -> Option<Duration> {
        self.age_if(|metrics| metrics.current_term == term)
    }

    fn age_if(&self, counts: impl Fn(&RaftMetrics<TypeConfig>) -> bool) -> Option<Duration> {
        match self.acked(counts)? {
            Acked::Alone => Some(Duration::ZERO),
            Acked::At(acked) => {
                let age = acked.elapsed();
                Some(age + self.suspend.suspended_within(age))
            }
        }
    }

    /// When this node sent the last message that a majority acknowledged, as the leader of this term. `None` as for
    /// [`age`](Self::age).
    pub fn acked_at(&self, term: u64) -> Option<InstantOf<TypeConfig>> {
        match self.acked(|metrics| metrics.current_term == term)? {
            Acked::Alone => Some(InstantOf::<TypeConfig>::now()),
            Acked::At(acked) => Some(acked),
        }
    }

    fn acked(&self, counts: impl Fn(&RaftMetrics<TypeConfig>) -> bool) -> Option<Acked> {
        let metrics = self.metrics.borrow_watched();
        if metrics.state != ServerState::Leader || !counts(&metrics) {
            return None;
        }
        if metrics.membership_config.voter_ids().eq([metrics.id]) {
            return Some(Acked::Alone);
        }
        metrics.last_quorum_acked.map(|acked| Acked::At(*acked))
    }

    /// The time for which this node still leads without a new acknowledgement of a majority. `None` if it does not
    /// lead.
    ///
    /// openraft's leader does not step down when it loses its majority.
    pub fn leads_for(&self) -> Option<Duration> {
        self.isolation.checked_sub(self.age()?)
    }

    /// Upper bound of the time for which the machine was suspended during the last `age`.
    pub fn suspended_within(&self, age: Duration) -> Duration {
        self.suspend.suspended_within(age)
    }

    /// Whether this leader had a majority, and another node may lead now.
    pub fn is_lost(&self) -> bool {
        self.age().is_some_and(|age| age >= self.alone)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::config::LeaseSettings;
    use crate::testing::Cluster;

    /// With a drift of 20 %, the fastest clock of another node passes the leadership lease in 83 % of its length.
    #[tokio::test(start_paused = true)]
    async fn local_reads_end_before_the_lease_on_a_fast_clock() {
        let timings = RaftTimings { drift_permille: 200, ..RaftTimings::lan() };
        let cluster = Cluster::start(3, timings, LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        let raft = cluster.node(leader).raft();
        while !raft.may_read_locally() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        cluster.board.isolate(leader, cluster.ids());
        let after = async |percent: u32| {
            while raft.quorum.age().expect("it had a majority") < timings.leadership_lease() * percent / 100 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (raft.may_read_locally(), raft.quorum.is_lost())
        };
        assert_eq!(after(60).await, (true, false), "control: the others still have their leases");
        assert_eq!(after(83).await, (false, true), "another node may lead");
        cluster.shutdown().await;
    }
}
