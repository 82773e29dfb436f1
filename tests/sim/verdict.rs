//! The result of one run.

use std::collections::BTreeMap;
use std::time::Duration;

use super::judge::Broken;

/// Counts by label.
pub type Counts = BTreeMap<&'static str, u64>;

/// The result of one seed.
#[derive(Default)]
pub struct Verdict {
    pub violations: Vec<Broken>,
    /// Leases whose history the linearizability search could not decide.
    pub undecided: Vec<String>,
    /// Events with their virtual times; empty unless [`Plan::traced`](super::plan::Plan) is set.
    pub trace: Vec<String>,
    /// The history as JSON lines; empty unless [`Plan::exported`](super::plan::Plan) is set.
    pub history: Vec<u8>,
    pub faults: Counts,
    pub work: Counts,
    /// Client operations by kind and result.
    pub operations: Counts,
    /// Counts for information. They do not fail a run.
    pub figures: Counts,
    /// Virtual time.
    pub simulated: Duration,
}
