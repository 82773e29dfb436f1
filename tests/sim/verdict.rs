//! What a run came to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Which promise was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub promise: &'static str,
    how: String,
}

impl Broken {
    pub fn new(promise: &'static str, how: String) -> Broken {
        Broken { promise, how }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.how)
    }
}

/// How often something happened, by its name.
pub type Counts = BTreeMap<&'static str, u64>;

/// One run of one seed.
#[derive(Default)]
pub struct Verdict {
    pub broken: Vec<Broken>,
    /// Leases whose histories no search decided.
    pub undecided: Vec<&'static str>,
    /// What happened, line by line, with the virtual time of each; empty if the plan asked for none.
    pub trace: Vec<String>,
    /// What was asked and answered, as JSON lines; empty if the plan asked for none.
    pub history: Vec<u8>,
    pub faults: Counts,
    pub work: Counts,
    /// What was asked, and how it ended.
    pub operations: Counts,
    /// What is counted because it is worth knowing, and is no failure.
    pub figures: Counts,
    /// Virtual time.
    pub simulated: Duration,
}
