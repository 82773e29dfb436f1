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
//! | `tenure_commands_waiting` by `class` | commands in the leader's queue that wait for a log entry: `urgent`, `ordinary` |

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge};

use super::Inner;
use crate::lease::Change;
use crate::node::request::queue::Class;
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
            };
            counter.increment(1);
        }
    }
}
