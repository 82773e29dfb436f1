//! What a seed decides before anything runs.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::config::RaftTimings;
use tenure::lease::Limits;
use tenure::types::NodeId;

use super::bugs::Planted;

/// The leadership leases that nodes are configured with.
const LEASES_MS: [u64; 2] = [325, 900];

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub nodes: u64,
    pub clients: u64,
    /// How long faults are made.
    pub faults: Duration,
    pub snapshot_every: u64,
    /// The leadership lease that nodes start with, in milliseconds.
    pub lease_ms: u64,
    /// Each node's clock against true time.
    pub rates: BTreeMap<NodeId, f64>,
    /// The same while its machine is suspended.
    pub suspended_rates: BTreeMap<NodeId, f64>,
    /// Each client's.
    pub client_rates: Vec<f64>,
    /// Rates differ by less than the configured drift.
    pub inside_drift: bool,
    /// What each node's file says; its leader's counts.
    pub limits: BTreeMap<NodeId, Limits>,
    /// Links between clients and nodes take time and fail. With perfect links clients do more, and their histories leave
    /// less room for an order that explains a stale read.
    pub slow_links: bool,
    pub planted: Planted,
    /// Everything that happens is written down.
    pub traced: bool,
    /// The histories of all leases are written down.
    pub exported: bool,
}

impl Plan {
    pub fn of(seed: u64, planted: Planted) -> Plan {
        let mut dice = StdRng::seed_from_u64(seed);
        let nodes = if dice.random_bool(0.2) { 5 } else { 3 };
        let clients = dice.random_range(2..=4);
        let inside_drift = dice.random_bool(0.85);
        let (low, high) = if inside_drift { (0.9955, 1.0045) } else { (0.5, 2.0) };
        let mut rates = || (1..=nodes).map(|id| (id, dice.random_range(low..high))).collect();
        let (rates, suspended_rates) = (rates(), rates());
        let holder = if planted.slow_holder { 0.8 } else { 1.0 };
        Plan {
            seed,
            nodes,
            clients,
            faults: Duration::from_secs(dice.random_range(20..30)),
            snapshot_every: [20, 60, 5_000][dice.random_range(0..3)],
            lease_ms: LEASES_MS[usize::from(dice.random_bool(0.4))],
            rates,
            suspended_rates,
            client_rates: (0..clients).map(|_| holder * dice.random_range(0.9955..1.0045)).collect(),
            inside_drift,
            limits: (1..=nodes).map(|id| (id, limits(id as u32))).collect(),
            slow_links: dice.random_bool(0.5),
            planted,
            traced: false,
            exported: false,
        }
    }

    /// The slowest and the fastest that a node's clock runs.
    pub fn extreme_rates(&self) -> (f64, f64) {
        let rates = self.rates.values().chain(self.suspended_rates.values());
        rates.fold((f64::MAX, 0.0), |(low, high), rate| (low.min(*rate), high.max(*rate)))
    }

    /// The timings of a node: alike in the leadership lease, which nodes agree on, and different in the rest.
    pub fn timings(&self, id: NodeId, lease_ms: u64) -> RaftTimings {
        RaftTimings {
            heartbeat_interval_ms: 60 + 5 * (id % 4),
            election_timeout_min_ms: lease_ms * 7 / 10 - 2 * id,
            election_timeout_max_ms: lease_ms,
            snapshot_every: self.snapshot_every + id,
            snapshot_keep: 10,
            ..RaftTimings::lan()
        }
    }

    /// The leadership lease that nodes change to from this one.
    pub fn other_lease(&self, lease_ms: u64) -> u64 {
        LEASES_MS.into_iter().find(|other| *other != lease_ms).expect("two")
    }

    pub fn traced(self) -> Plan {
        Plan { traced: true, ..self }
    }
}

/// Small enough that the queues of a run reach them.
pub fn limits(small: u32) -> Limits {
    Limits {
        max_waiters: small,
        history: 15 + small,
        ended_keep: 10 * u64::from(small),
        patience_ms: 9_000 + u64::from(small),
        ..Limits::default()
    }
}
