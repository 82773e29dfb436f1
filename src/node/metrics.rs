//! Metrics of a node, through the `metrics` facade. The names are stable. [`describe_metrics`] has their meanings, and
//! docs/operations.md describes them for operators.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use metrics::{Counter, Gauge, Unit, counter, gauge};

use super::NodeCore;
use crate::access::Caller;
use crate::lease::Change;
use crate::node::request::propose::Class;
use crate::node::request::route::Forward;
use crate::node::request::{Answer, Request};
use crate::node::status::MemberStatus;
use crate::peer::Transport;
use crate::raft::{AppliedEntry, ApplyObserver, CurrentLeader};
use crate::storage::{self, Storage};
use crate::types::NodeId;

/// Update interval of the gauges. A follower also waits for its leader's answer for this long.
const INTERVAL: Duration = Duration::from_secs(1);
/// Updates without a quorum, one after the other, until the node logs its loss.
const UPDATES_WITHOUT_QUORUM: u32 = 3;

/// Describes the metrics of nodes and of their stores to the installed recorder.
///
/// All nodes of a process share them. Call it once, after the program has installed its recorder.
pub fn describe_metrics() {
    use metrics::{describe_counter, describe_gauge};
    describe_gauge!(
        "tenure_leases",
        Unit::Count,
        "Leases by state: held names, waiters, names under a lock delay, ended leases that are still listed"
    );
    describe_counter!(
        "tenure_lease_transitions_total",
        Unit::Count,
        "Lease transitions that this node applied, by change; the replay of the log counts too"
    );
    describe_gauge!("tenure_raft_term", "Current Raft term of this node");
    describe_gauge!("tenure_raft_leader", "1 while this node leads with a majority, else 0");
    describe_gauge!(
        "tenure_raft_quorum",
        "1 if this node reaches a leader that a majority acknowledges, else 0: then no lease changes through this node"
    );
    describe_gauge!("tenure_raft_applied_index", "Log index of the last entry that this node applied");
    describe_gauge!(
        "tenure_feature_level",
        "What all members of the cluster understand: it rises after an upgrade of all members"
    );
    describe_gauge!(
        "tenure_raft_leader_contact_seconds",
        Unit::Seconds,
        "Seconds since the last message from a leader; on the leader, since it sent the last message that a majority \
         acknowledged"
    );
    describe_gauge!(
        "tenure_raft_member_lag_entries",
        Unit::Count,
        "On the leader: log entries that the member lacks; 0 on other nodes and for removed members"
    );
    describe_gauge!(
        "tenure_raft_member_contact_seconds",
        Unit::Seconds,
        "On the leader: seconds since it sent the last message that the member acknowledged; 0 on other nodes and for \
         removed members"
    );
    describe_gauge!(
        "tenure_cluster_time_seconds",
        Unit::Seconds,
        "Cluster time of this node in seconds; leases expire by it"
    );
    describe_gauge!(
        "tenure_tls_certificate_expiry_timestamp_seconds",
        Unit::Seconds,
        "End of the certificate's validity, in seconds since 1970"
    );
    describe_counter!(
        "tenure_tls_reloads_total",
        Unit::Count,
        "Changes of the certificate files, by result; after a failed one the node keeps the old certificates"
    );
    describe_counter!(
        "tenure_tls_handshakes_failed_total",
        Unit::Count,
        "Failed TLS handshakes and connections without the required TLS, by listener"
    );
    describe_gauge!(
        "tenure_backup_age_seconds",
        Unit::Seconds,
        "Age in seconds of the newest scheduled backup in this node's folder"
    );
    describe_counter!("tenure_backups_total", Unit::Count, "Scheduled backups of this node, by result");
    describe_gauge!(
        "tenure_commands_waiting",
        Unit::Count,
        "Commands in the leader's queue that wait for a log entry, by class"
    );
    describe_counter!(
        "tenure_refused_total",
        Unit::Count,
        "Requests that the listener or the leader's queue refused as too_busy, by reason"
    );
    storage::describe_metrics();
}

struct Gauges {
    held: Gauge,
    waiting: Gauge,
    delayed: Gauge,
    ended: Gauge,
    term: Gauge,
    leader: Gauge,
    quorum: Gauge,
    applied: Gauge,
    level: Gauge,
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
            quorum: gauge!("tenure_raft_quorum"),
            applied: gauge!("tenure_raft_applied_index"),
            level: gauge!("tenure_feature_level"),
            contact: gauge!("tenure_raft_leader_contact_seconds"),
            cluster_time: gauge!("tenure_cluster_time_seconds"),
            urgent: gauge!("tenure_commands_waiting", "class" => "urgent"),
            ordinary: gauge!("tenure_commands_waiting", "class" => "ordinary"),
        }
    }
}

/// The program can outlive its node. A node that has ended leads no cluster and knows no leases.
impl Drop for Gauges {
    fn drop(&mut self) {
        for gauge in [&self.leader, &self.quorum, &self.urgent, &self.ordinary] {
            gauge.set(0.0);
        }
        for gauge in [&self.held, &self.waiting, &self.delayed, &self.ended] {
            gauge.set(0.0);
        }
    }
}

/// The gauges of the other members, by their ids. Only the leader knows the values.
#[derive(Default)]
struct MemberGauges(BTreeMap<NodeId, (Gauge, Gauge)>);

impl MemberGauges {
    /// Sets the gauges of `members`. The facade cannot remove a series, so the gauges of all other members become 0.
    fn set(&mut self, members: &[MemberStatus]) {
        self.0.retain(|id, (lag, contact)| {
            let stays = members.iter().any(|member| member.id == *id);
            if !stays {
                lag.set(0.0);
                contact.set(0.0);
            }
            stays
        });
        for member in members {
            let (lag, contact) = self.0.entry(member.id).or_insert_with(|| {
                let gauge = |name: &'static str| gauge!(name, "member" => member.id.to_string());
                (gauge("tenure_raft_member_lag_entries"), gauge("tenure_raft_member_contact_seconds"))
            });
            lag.set(member.lag.unwrap_or_default() as f64);
            contact.set(seconds(member.last_contact_ms));
        }
    }
}

impl Drop for MemberGauges {
    fn drop(&mut self) {
        self.set(&[]);
    }
}

/// Milliseconds as the value of a gauge in seconds. Without a value, such as before the first contact, it is infinite.
fn seconds(ms: Option<u64>) -> f64 {
    ms.map_or(f64::INFINITY, |ms| ms as f64 / 1e3)
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    pub(super) async fn update_gauges(self: Arc<Self>) {
        let gauges = Gauges::new();
        let mut members = MemberGauges::default();
        let mut quorum_log = QuorumLog::default();
        loop {
            let (counts, now, applied) = self.raft.replica().read(|state| {
                let applied = state.applied.map_or(0, |applied| applied.index);
                (state.machine.counts(), state.machine.now(), applied)
            });
            let leads = self.requests.clock.leader_term().is_some();
            let contact = self.raft.contact_age().map(|age| age.as_millis() as u64);
            gauges.held.set(counts.held as f64);
            gauges.waiting.set(counts.waiting as f64);
            gauges.delayed.set(counts.delayed as f64);
            gauges.ended.set(counts.ended as f64);
            gauges.term.set(self.raft.leadership().term as f64);
            gauges.leader.set(flag(leads));
            gauges.applied.set(applied as f64);
            gauges.level.set(self.raft.replica().level().0);
            gauges.contact.set(seconds(contact));
            gauges.cluster_time.set(now as f64 / 1e3);
            gauges.urgent.set(self.requests.proposer.waiting(Class::Urgent) as f64);
            gauges.ordinary.set(self.requests.proposer.waiting(Class::Ordinary) as f64);
            members.set(&if leads { self.other_members() } else { Vec::new() });
            let update_quorum = async {
                let members = self.members_of_quorum().await;
                gauges.quorum.set(flag(members.is_some()));
                if let Some(change) = quorum_log.next(members.is_some()) {
                    self.log_quorum(change);
                }
                if let Some(members) = members {
                    self.record_contacts(&members);
                }
            };
            tokio::join!(update_quorum, self.update_disks(), tokio::time::sleep(INTERVAL));
        }
    }

    fn log_quorum(&self, change: QuorumChange) {
        let CurrentLeader { term, leader } = self.raft.leadership();
        match change {
            QuorumChange::Lost => {
                tracing::warn!(term, "quorum lost: this node reaches no leader that a majority acknowledges");
            }
            QuorumChange::Regained => tracing::info!(term, ?leader, "quorum regained"),
        }
    }

    fn other_members(&self) -> Vec<MemberStatus> {
        let mut members = self.members();
        members.retain(|member| member.id != self.settings.id);
        members
    }

    /// The members as the leader sees them. `None` if this node reaches no leader that a majority acknowledges.
    ///
    /// A follower asks the leader. Its last contact proves nothing: a leader that lost its majority still sends
    /// heartbeats.
    async fn members_of_quorum(self: &Arc<Self>) -> Option<Vec<MemberStatus>> {
        if self.raft.leadership().leader? == self.settings.id {
            return Some(self.members());
        }
        // Without the box, the types of the callers are nested too deeply for the compiler.
        let asked = self.attempt(&Caller::Program, Request::Members, Forward::Once).boxed();
        match tokio::time::timeout(INTERVAL, asked).await.ok()?.ok()?.answer {
            Answer::Members(members) => Some(members),
            _ => None,
        }
    }
}

/// Decides when to log a change of the quorum. One or two updates without it may be an election, and are no loss.
#[derive(Default)]
struct QuorumLog {
    /// The updates without a quorum, one after the other.
    without: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuorumChange {
    Lost,
    Regained,
}

impl QuorumLog {
    /// The change to log after an update.
    fn next(&mut self, has_quorum: bool) -> Option<QuorumChange> {
        let before = self.without;
        self.without = if has_quorum { 0 } else { before.saturating_add(1) };
        if self.without == UPDATES_WITHOUT_QUORUM {
            return Some(QuorumChange::Lost);
        }
        (has_quorum && before >= UPDATES_WITHOUT_QUORUM).then_some(QuorumChange::Regained)
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

impl ApplyObserver for TransitionCounters {
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
    use crate::types::{HolderId, LeaseName, MemberChange, Metadata, NodeId, Ttl};

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

    /// Starts a cluster and crashes one follower. Returns it and the leader. The follower that the test restarts is the
    /// only node with the recorder.
    async fn without_a_follower(count: u64) -> (Cluster, NodeId, NodeId) {
        let mut cluster = Cluster::start(count, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        let follower = cluster.ids().find(|id| *id != leader).expect("several nodes");
        cluster.crash(follower).await;
        (cluster, follower, leader)
    }

    /// Transfers the leadership, and waits for the gauges of the new leader.
    async fn transfer(cluster: &Cluster, from: NodeId, to: NodeId) {
        // A node that lags could not take the leadership.
        let lags = async || {
            let members = cluster.node(from).status().await.members;
            members.iter().any(|member| member.id == to && member.lag != Some(0))
        };
        while lags().await {
            tokio::time::sleep(INTERVAL / 10).await;
        }
        cluster.node(from).transfer_leadership_to(to).await.expect("it is connected");
        tokio::time::sleep(2 * INTERVAL).await;
    }

    /// The program goes on after the end of its node.
    #[tokio::test(start_paused = true)]
    async fn node_that_has_ended_exports_no_leader_and_no_leases() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let render = recorder.handle();
        let (mut cluster, observed, leader) = without_a_follower(3).await;
        let _recording = metrics::set_default_local_recorder(&recorder);
        cluster.restart(observed).await;
        transfer(&cluster, leader, observed).await;
        let third = cluster.ids().find(|id| ![observed, leader].contains(id)).expect("three nodes");
        cluster.node(observed).request(claim("job"), Forward::Once).await.expect("answered");
        cluster.board.isolate(third, cluster.ids());
        tokio::time::sleep(3 * INTERVAL).await;
        let contact = format!("tenure_raft_member_contact_seconds{{member=\"{third}\"}}");
        let values = || {
            let gauges = ["tenure_raft_leader", "tenure_raft_quorum", "tenure_leases{state=\"held\"}"];
            gauges.map(|series| value(&render, series))
        };
        assert_eq!(values(), [1; 3]);
        assert_ne!(text(&render, &contact), "0", "the node is isolated");

        cluster.crash(observed).await;
        assert_eq!(values(), [0; 3]);
        assert_eq!(text(&render, &contact), "0");
    }

    #[tokio::test(start_paused = true)]
    async fn quorum_gauge_needs_a_leader_with_a_majority() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let render = recorder.handle();
        let quorum = || value(&render, "tenure_raft_quorum");
        let contact = || text(&render, "tenure_raft_leader_contact_seconds").parse::<f64>().expect("a number");
        let (mut cluster, follower, leader) = without_a_follower(5).await;
        let _recording = metrics::set_default_local_recorder(&recorder);
        cluster.restart(follower).await;
        tokio::time::sleep(3 * INTERVAL).await;
        assert_eq!(quorum(), 1, "the leader has a majority");
        // The old leader and this node are a minority. It still hears the leader.
        let majority: Vec<_> = cluster.ids().filter(|id| ![leader, follower].contains(id)).collect();
        for node in [leader, follower] {
            cluster.board.isolate(node, majority.iter().copied());
        }
        tokio::time::sleep(5 * INTERVAL).await;
        assert!(contact() < 1.0, "the leader sent the last message {} s ago", contact());
        assert_eq!(quorum(), 0, "the leader has no majority");
        cluster.board.heal();
        tokio::time::sleep(5 * INTERVAL).await;
        assert_eq!(quorum(), 1, "the new leader has a majority");
        cluster.node(cluster.leader().await).transfer_leadership_to(follower).await.expect("it is connected");
        tokio::time::sleep(3 * INTERVAL).await;
        assert_eq!((value(&render, "tenure_raft_leader"), quorum()), (1, 1));
        cluster.board.isolate(follower, cluster.ids());
        tokio::time::sleep(3 * INTERVAL).await;
        assert_eq!((value(&render, "tenure_raft_leader"), quorum()), (0, 0), "a leader without a majority");
    }

    #[tokio::test(start_paused = true)]
    async fn leader_reports_lag_and_contact_of_its_members() {
        const MISSED: u64 = 20;
        let recorder = PrometheusBuilder::new().build_recorder();
        let render = recorder.handle();
        let (mut cluster, observed, third) = without_a_follower(3).await;
        let _recording = metrics::set_default_local_recorder(&recorder);
        cluster.restart(observed).await;
        let second = cluster.ids().find(|id| ![observed, third].contains(id)).expect("three nodes");
        let lag = |member| value(&render, &format!("tenure_raft_member_lag_entries{{member=\"{member}\"}}"));
        let contact = |member| {
            let series = format!("tenure_raft_member_contact_seconds{{member=\"{member}\"}}");
            text(&render, &series).parse::<f64>().expect("a number")
        };
        transfer(&cluster, third, observed).await;
        for member in [second, third] {
            assert_eq!(lag(member), 0, "node {member}");
            assert!((0.0..1.0).contains(&contact(member)), "node {member} answers: {} s", contact(member));
        }
        let own = format!("tenure_raft_member_lag_entries{{member=\"{observed}\"}}");
        assert!(!render.render().contains(&own), "the leader is no follower of itself");

        cluster.board.isolate(second, cluster.ids());
        for number in 0..MISSED {
            let granted = cluster.node(observed).request(claim(&format!("job-{number}")), Forward::Once).await;
            granted.expect("answered");
        }
        tokio::time::sleep(6 * INTERVAL).await;
        assert!(lag(second) >= MISSED, "{} entries", lag(second));
        assert!((5.0..8.0).contains(&contact(second)), "the node is isolated for 6 s: {} s", contact(second));
        assert!(lag(third) == 0 && contact(third) < 1.0, "the other follower: {} s", contact(third));

        let removal = Request::ChangeMembers(MemberChange::Remove { id: second, force: true });
        cluster.node(observed).request(removal, Forward::Once).await.expect("a majority remains");
        tokio::time::sleep(2 * INTERVAL).await;
        assert_eq!((lag(second), contact(second)), (0, 0.0), "the node is removed");
        assert!(contact(third) > 0.0, "the other follower: {} s", contact(third));

        cluster.node(observed).transfer_leadership_to(third).await.expect("it is connected");
        tokio::time::sleep(2 * INTERVAL).await;
        assert_eq!((lag(third), contact(third)), (0, 0.0), "this node does not lead");
    }
}
