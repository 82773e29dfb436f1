//! The choices that a seed makes before a run starts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::config::RaftTimings;
use tenure::lease::Limits;
use tenure::types::NodeId;

use super::bugs::PlantedBugs;

/// Most nodes that join the cluster of a run after it has formed.
const JOINING: u64 = 3;

/// The configured leadership leases, in milliseconds. A run changes between them.
const LEASES_MS: [u64; 2] = [325, 900];

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// The nodes that form the cluster.
    pub nodes: u64,
    /// The ids of all nodes, with those that may join later.
    pub last_id: NodeId,
    pub clients: u64,
    /// Duration of the fault phase.
    pub faults: Duration,
    pub snapshot_every: u64,
    /// The leadership lease that nodes start with, in milliseconds.
    pub lease_ms: u64,
    /// Each node's clock rate relative to true time.
    pub rates: BTreeMap<NodeId, f64>,
    /// Each node's clock rate while its machine is suspended.
    pub suspended_rates: BTreeMap<NodeId, f64>,
    /// Each client's clock rate.
    pub client_rates: Vec<f64>,
    /// All rates stay inside the configured drift.
    pub inside_drift: bool,
    /// Each node's configured limits. The leader's limits apply.
    pub limits: BTreeMap<NodeId, Limits>,
    /// The nodes that start with an older release. A restart can upgrade them.
    pub older: BTreeSet<NodeId>,
    /// Links between clients and nodes have delays and outages. With perfect links clients issue more requests, and
    /// fewer linearizations can hide a stale read.
    pub slow_links: bool,
    pub planted: PlantedBugs,
    /// The run records a trace.
    pub traced: bool,
    /// The run exports the histories of all leases.
    pub exported: bool,
}

impl Plan {
    pub fn of(seed: u64, planted: PlantedBugs) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed);
        let nodes = if rng.random_bool(0.2) { 5 } else { 3 };
        let clients = rng.random_range(2..=4);
        let inside_drift = rng.random_bool(0.85);
        let (low, high) = if inside_drift { (0.9955, 1.0045) } else { (0.5, 2.0) };
        let mut rates = || (1..=nodes).map(|id| (id, rng.random_range(low..high))).collect();
        let (rates, suspended_rates) = (rates(), rates());
        // These nodes have their own random numbers, so a seed keeps its other choices.
        let mut joining = StdRng::seed_from_u64(seed ^ 0x6a6f_696e);
        let last_id = nodes + JOINING;
        let mut extended = |mut rates: BTreeMap<NodeId, f64>| {
            rates.extend((nodes + 1..=last_id).map(|id| (id, joining.random_range(low..high))));
            rates
        };
        let (rates, suspended_rates) = (extended(rates), extended(suspended_rates));
        let holder = if planted.slow_holder { 0.8 } else { 1.0 };
        Plan {
            seed,
            nodes,
            last_id,
            clients,
            faults: Duration::from_secs(rng.random_range(20..30)),
            snapshot_every: [20, 60, 5_000][rng.random_range(0..3)],
            lease_ms: LEASES_MS[usize::from(rng.random_bool(0.4))],
            rates,
            suspended_rates,
            client_rates: (0..clients).map(|_| holder * rng.random_range(0.9955..1.0045)).collect(),
            inside_drift,
            limits: (1..=last_id).map(|id| (id, limits(id as u32))).collect(),
            older: older(seed, nodes),
            slow_links: rng.random_bool(0.5),
            planted,
            traced: false,
            exported: false,
        }
    }

    /// The lowest and the highest clock rate of all nodes.
    pub fn extreme_rates(&self) -> (f64, f64) {
        let rates = self.rates.values().chain(self.suspended_rates.values());
        rates.fold((f64::MAX, 0.0), |(low, high), rate| (low.min(*rate), high.max(*rate)))
    }

    /// The timings of a node. Nodes must agree on the leadership lease; all other timings differ.
    pub fn timings(&self, id: NodeId, lease_ms: u64) -> RaftTimings {
        let mut timings = RaftTimings::lan();
        timings.heartbeat_interval_ms = 60 + 5 * (id % 4);
        timings.election_timeout_min_ms = lease_ms * 7 / 10 - 2 * id;
        timings.election_timeout_max_ms = lease_ms;
        timings.snapshot_every = self.snapshot_every + id;
        timings.snapshot_keep = 10;
        timings
    }

    /// The other configured leadership lease.
    pub fn other_lease(&self, lease_ms: u64) -> u64 {
        LEASES_MS.into_iter().find(|other| *other != lease_ms).expect("LEASES_MS has two different values")
    }

    pub fn traced(self) -> Plan {
        Plan { traced: true, ..self }
    }
}

/// No node in most runs, else some of the first ones. They have their own random numbers, so a seed keeps its other choices.
fn older(seed: u64, nodes: u64) -> BTreeSet<NodeId> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x6c65_7665);
    if rng.random_bool(0.7) {
        return BTreeSet::new();
    }
    (1..=nodes).filter(|_| rng.random_bool(0.5)).collect()
}

/// Limits that are small enough for the queues of a run to reach them.
pub fn limits(small: u32) -> Limits {
    let mut limits = Limits::default();
    limits.max_waiters = small;
    limits.history = 15 + small;
    limits.ended_keep = 10 * u64::from(small);
    // Shorter than many waits, or longer.
    limits.waiter_timeout_ms = if small.is_multiple_of(2) { 1_000 } else { 9_000 } + u64::from(small);
    limits
}
