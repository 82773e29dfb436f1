//! Metrics of a node, through the `metrics` facade. The names are stable.
//!
//! | name | meaning |
//! |---|---|
//! | `tenure_leases` by `state` | held names (`held`), waiters (`waiting`), names under a lock delay (`delayed`), ended leases still listed (`ended`) |
//! | `tenure_lease_transitions_total` by `change` | `granted`, `expired`, `released`, `revoked`, `handed_over`, counted when this node applies them |
//! | `tenure_raft_term` | the current term of this node |
//! | `tenure_raft_leader` | 1 while this node leads |
//! | `tenure_raft_applied_index` | log index of the last entry that this node applied |
//! | `tenure_raft_leader_contact_seconds` | time since the last message from a leader; on a leader, since it sent the last message that a majority acknowledged |
//! | `tenure_cluster_time_seconds` | cluster time of this node, which leases expire by |
//! | `tenure_backup_age_seconds` | age of the newest scheduled backup in this node's folder; only with a schedule |
//! | `tenure_backups_total` by `result` | scheduled backups of this node: `written`, `failed` |
//! | `tenure_commands_waiting` by `class` | commands in the leader's queue that wait for a log entry: `urgent`, `ordinary` |

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge};

use super::Inner;
use crate::lease::Change;
use crate::node::request::propose::Class;
use crate::peer::Transport;
use crate::raft::{AppliedEntry, Observer};
use crate::storage::Storage;

/// Update interval of the gauges.
const INTERVAL: Duration = Duration::from_secs(1);

struct Gauges {
    held: Gauge,
    waiting: Gauge,
    delayed: Gauge,
    ended: Gauge,
    term: Gauge,
    leader: Gauge,
    applied: Gauge,
    contact: Gauge,
    cluster_time: Gauge,
    urgent: Gauge,
    ordinary: Gauge,
}

impl Gauges {
    fn new() -> Gauges {
        Gauges {
            held: gauge!("tenure_leases", "state" => "held"),
            waiting: gauge!("tenure_leases", "state" => "waiting"),
            delayed: gauge!("tenure_leases", "state" => "delayed"),
            ended: gauge!("tenure_leases", "state" => "ended"),
            term: gauge!("tenure_raft_term"),
            leader: gauge!("tenure_raft_leader"),
            applied: gauge!("tenure_raft_applied_index"),
            contact: gauge!("tenure_raft_leader_contact_seconds"),
            cluster_time: gauge!("tenure_cluster_time_seconds"),
            urgent: gauge!("tenure_commands_waiting", "class" => "urgent"),
            ordinary: gauge!("tenure_commands_waiting", "class" => "ordinary"),
        }
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    pub(super) async fn update_gauges(self: Arc<Self>) {
        let gauges = Gauges::new();
        loop {
            let (counts, now, applied) = self.raft.replica().read(|state| {
                let applied = state.applied.map_or(0, |applied| applied.index);
                (state.machine.counts(), state.machine.now(), applied)
            });
            let leads = self.requests.clock.leader_term().is_some();
            let contact = self.stale_ms();
            gauges.held.set(counts.held as f64);
            gauges.waiting.set(counts.waiting as f64);
            gauges.delayed.set(counts.delayed as f64);
            gauges.ended.set(counts.ended as f64);
            gauges.term.set(self.raft.leadership().term as f64);
            gauges.leader.set(f64::from(u8::from(leads)));
            gauges.applied.set(applied as f64);
            gauges.contact.set(contact.map_or(f64::INFINITY, |ms| ms as f64 / 1e3));
            gauges.cluster_time.set(now as f64 / 1e3);
            gauges.urgent.set(self.requests.proposer.waiting(Class::Urgent) as f64);
            gauges.ordinary.set(self.requests.proposer.waiting(Class::Ordinary) as f64);
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Counters of the lease transitions that this node applies.
pub(super) struct TransitionCounters {
    granted: Counter,
    expired: Counter,
    released: Counter,
    revoked: Counter,
    handed_over: Counter,
}

impl TransitionCounters {
    pub fn new() -> TransitionCounters {
        let counter = |change: &'static str| counter!("tenure_lease_transitions_total", "change" => change);
        TransitionCounters {
            granted: counter("granted"),
            expired: counter("expired"),
            released: counter("released"),
            revoked: counter("revoked"),
            handed_over: counter("handed_over"),
        }
    }
}

impl Observer for TransitionCounters {
    fn applied(&self, entry: &AppliedEntry<'_>) {
        for transition in &entry.effects.transitions {
            let counter = match transition.change {
                Change::Granted(_) => &self.granted,
                Change::Expired => &self.expired,
                Change::Released => &self.released,
                Change::Revoked { .. } => &self.revoked,
                Change::HandedOver { .. } => &self.handed_over,
                Change::Restored => unreachable!("a restore runs without a log entry"),
            };
            counter.increment(1);
        }
    }
}

#[cfg(all(test, feature = "testing", feature = "cli"))]
mod tests {
    use std::time::Duration;

    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
    use tokio::task::JoinHandle;

    use super::INTERVAL;
    use crate::config::{LeaseSettings, RaftTimings};
    use crate::lease::{Acquire, Command};
    use crate::node::{Forward, Request, RequestError, Response};
    use crate::testing::{Cluster, TestNode};
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, Metadata, Ttl};

    fn claim(name: &str) -> Request {
        Request::Acquire(Acquire {
            name: LeaseName::new(name).expect("valid"),
            holder: HolderId::new("a").expect("valid"),
            ttl: Ttl::INFINITE,
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: Metadata::default(),
        })
    }

    fn release() -> Request {
        let (name, holder) = (LeaseName::new("job").expect("valid"), HolderId::new("a").expect("valid"));
        Request::Change(Command::Release { name, holder, token: FencingToken { term: 1, index: 1 } })
    }

    fn send(node: &TestNode, request: Request) -> JoinHandle<Result<Response, RequestError>> {
        let node = node.clone();
        tokio::spawn(async move { node.request(request, Forward::Once).await })
    }

    fn value(render: &PrometheusHandle, series: &str) -> u64 {
        text(render, series).parse().expect("a number")
    }

    fn text(render: &PrometheusHandle, series: &str) -> String {
        let text = render.render();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in:\n{text}")).to_owned()
    }

    /// The disk of a single node hangs, so two entries stay in flight and the later commands wait.
    #[tokio::test(start_paused = true)]
    async fn waiting_and_refused_commands_are_counted() {
        const MS: Duration = Duration::from_millis(1);
        let recorder = PrometheusBuilder::new().build_recorder();
        let render = recorder.handle();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
        cluster.leader().await;
        let node = cluster.node(1);
        node.request(claim("job"), Forward::Once).await.expect("answered");
        // The update of this gauge shows when the next updates come.
        while value(&render, "tenure_leases{state=\"held\"}") == 0 {
            tokio::time::sleep(MS).await;
        }
        let waiting =
            || ["ordinary", "urgent"].map(|of| value(&render, &format!("tenure_commands_waiting{{class=\"{of}\"}}")));
        let refused = || {
            ["slow", "late", "full"].map(|of| value(&render, &format!("tenure_refused_total{{reason=\"queue_{of}\"}}")))
        };
        assert_eq!((waiting(), refused()), ([0; 2], [0; 3]));
        tokio::time::sleep(INTERVAL - 300 * MS).await;
        cluster.hang_disk(1);
        for number in 0..2 {
            send(node, claim(&format!("in-flight-{number}")));
            tokio::time::sleep(MS).await;
        }
        let urgent: Vec<_> = (0..3).map(|_| send(node, release())).collect();
        tokio::time::sleep(MS).await;
        let ordinary: Vec<_> = (0..5).map(|number| send(node, claim(&format!("waits-{number}")))).collect();
        tokio::time::sleep(310 * MS).await;
        assert_eq!((waiting(), refused()), ([5, 3], [0; 3]));
        tokio::time::sleep(100 * MS).await;
        for _ in 0..2 {
            let refused = node.request(claim("too-slow"), Forward::Once).await;
            assert_eq!(refused, Err(RequestError::Busy));
        }
        assert_eq!(refused(), [2, 0, 0]);
        tokio::time::sleep(400 * MS).await;
        for late in ordinary {
            assert_eq!(late.await.expect("no panic"), Err(RequestError::Busy));
        }
        assert_eq!(refused(), [2, 5, 0]);
        tokio::time::sleep(INTERVAL).await;
        assert_eq!(waiting(), [0, 3]);
        assert!(urgent.iter().all(|waits| !waits.is_finished()), "a release is not refused");
    }

    /// Only the restarted node has the recorder.
    #[tokio::test(start_paused = true)]
    async fn restarted_follower_counts_the_replayed_transitions() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let render = recorder.handle();
        let mut cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        for number in 0..5 {
            let granted = cluster.node(leader).request(claim(&format!("job-{number}")), Forward::Once).await;
            granted.expect("answered");
        }
        let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
        cluster.crash(follower).await;
        let _recording = metrics::set_default_local_recorder(&recorder);
        cluster.restart(follower).await;
        let applied = cluster.node(leader).status().await.applied;
        while cluster.node(follower).status().await.applied < applied {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let granted = value(&render, "tenure_lease_transitions_total{change=\"granted\"}");
        assert_eq!(granted, 5);
        tokio::time::sleep(2 * INTERVAL).await;
        assert_eq!(value(&render, "tenure_raft_leader"), 0);
        let contact =
            || text(&render, "tenure_raft_leader_contact_seconds").parse::<f64>().expect("a number of seconds");
        let connected = contact();
        assert!(connected < 1.0, "the leader sends heartbeats: {connected} s");
        cluster.board.isolate(follower, cluster.ids());
        tokio::time::sleep(Duration::from_secs(6)).await;
        let isolated = contact();
        assert!((4.0..7.0).contains(&isolated), "the node is isolated for 6 s: {isolated} s");
    }
}
