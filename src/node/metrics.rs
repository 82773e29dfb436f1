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

/// The program can outlive its node. A node that has ended leads no cluster, hears no leader and knows no leases.
impl Drop for Gauges {
    fn drop(&mut self) {
        for gauge in [&self.leader, &self.quorum, &self.urgent, &self.ordinary] {
            gauge.set(0.0);
        }
        for gauge in [&self.held, &self.waiting, &self.delayed, &self.ended] {
            gauge.set(0.0);
        }
        self.contact.set(seconds(None));
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
mod tests;
