//! What a seed decides before anything runs.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::types::NodeId;

use super::bug::Planted;

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub nodes: u64,
    pub clients: u64,
    /// How long faults are made.
    pub faults: Duration,
    pub snapshot_every: u64,
    /// Each node's clock against true time.
    pub rates: BTreeMap<NodeId, f64>,
    /// Each client's.
    pub client_rates: Vec<f64>,
    /// Rates differ by less than the configured drift.
    pub inside_drift: bool,
    pub planted: Planted,
    /// Everything that happens is written down.
    pub traced: bool,
}

impl Plan {
    pub fn of(seed: u64, planted: Planted) -> Plan {
        let mut dice = StdRng::seed_from_u64(seed);
        let nodes = if dice.random_bool(0.2) { 5 } else { 3 };
        let clients = dice.random_range(2..=4);
        let inside_drift = dice.random_bool(0.85);
        let (low, high) = if inside_drift { (0.9955, 1.0045) } else { (0.5, 2.0) };
        let rates = (1..=nodes).map(|id| (id, dice.random_range(low..high))).collect();
        let holder = if planted.slow_holder { 0.8 } else { 1.0 };
        Plan {
            seed,
            nodes,
            clients,
            faults: Duration::from_secs(dice.random_range(20..30)),
            snapshot_every: [20, 60, 5_000][dice.random_range(0..3)],
            rates,
            client_rates: (0..clients).map(|_| holder * dice.random_range(0.9955..1.0045)).collect(),
            inside_drift,
            planted,
            traced: false,
        }
    }

    pub fn traced(self) -> Plan {
        Plan { traced: true, ..self }
    }
}
