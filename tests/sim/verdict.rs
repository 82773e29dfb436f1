//! The result of one run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A violated invariant and its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub promise: &'static str,
    how: String,
}

impl Violation {
    pub fn new(promise: &'static str, how: String) -> Violation {
        Violation { promise, how }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.how)
    }
}

/// Counts by label.
pub type Counts = BTreeMap<&'static str, u64>;

/// The result of one seed.
#[derive(Default)]
pub struct Verdict {
    pub violations: Vec<Violation>,
    /// Leases whose history the linearizability search could not decide.
    pub undecided: Vec<&'static str>,
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
