//! The fault schedule of a run: the faults of each episode, with their times and targets.
//!
//! The seed decides the schedule only. It does not decide the timing of processes and packets, so two runs of one seed
//! differ.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::kind::Kind;

/// Each fault of an episode begins within this time.
const LATEST_BEGIN: Duration = Duration::from_millis(2_500);
const SHORTEST: Duration = Duration::from_millis(300);
const LONGEST: Duration = Duration::from_millis(7_000);

/// One fault of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub kind: Kind,
    /// The delay from the start of the episode's faults.
    pub begins: Duration,
    pub lasts: Duration,
    /// The hosts in random order. The fault affects the nodes of the first ones that qualify.
    pub order: Vec<u64>,
    /// Chooses a variant of the fault, and seeds its random decisions.
    pub draw: u64,
}

/// The schedule of a run.
pub struct Plan {
    rng: StdRng,
    hosts: u64,
    kinds: Vec<Kind>,
    /// The kinds that remain in this round through all kinds.
    left: Vec<Kind>,
}

impl Plan {
    /// Creates a plan with these fault kinds.
    pub fn new(seed: u64, hosts: u64, kinds: Vec<Kind>) -> Plan {
        assert!(!kinds.is_empty(), "a plan needs at least one fault kind");
        Plan { rng: StdRng::seed_from_u64(seed), hosts, kinds, left: Vec::new() }
    }

    /// The faults of the next episode: one to three at once. Each kind comes once before a kind comes again.
    pub fn episode(&mut self) -> Vec<Fault> {
        if self.left.is_empty() {
            self.left = self.kinds.clone();
            self.left.shuffle(&mut self.rng);
        }
        let first = self.left.pop().expect("the round was refilled");
        let mut kinds = vec![first];
        // Other tests change the members without faults.
        let is_undisturbed = |kinds: &[Kind]| kinds.iter().all(|kind| kind.changes_members());
        while kinds.len() < 3 && (is_undisturbed(&kinds) || self.rng.random_bool(0.5)) {
            let fits = |next: &Kind| kinds.iter().all(|kind| kind.is_compatible_with(*next));
            let Some(next) = self.left.iter().rposition(fits) else { break };
            kinds.push(self.left.remove(next));
        }
        kinds.into_iter().map(|kind| self.fault(kind)).collect()
    }

    /// Plans a fault that had no target again: it comes first in the next episode.
    pub fn repeat(&mut self, kind: Kind) {
        self.left.push(kind);
    }

    fn fault(&mut self, kind: Kind) -> Fault {
        let mut order: Vec<u64> = (1..=self.hosts).collect();
        order.shuffle(&mut self.rng);
        let begins = self.rng.random_range(Duration::ZERO..LATEST_BEGIN);
        let lasts = self.rng.random_range(SHORTEST..LONGEST);
        Fault { kind, begins, lasts, order, draw: self.rng.random() }
    }
}

/// How often each kind was planned and injected.
#[derive(Debug, Default)]
pub struct FaultCounts {
    pub planned: BTreeMap<Kind, u64>,
    pub happened: BTreeMap<Kind, u64>,
}

impl FaultCounts {
    /// The kinds that were planned and never injected. The run tested nothing about them.
    pub fn missing(&self) -> Vec<Kind> {
        self.planned.keys().filter(|kind| !self.happened.contains_key(kind)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_decides_the_schedule() {
        let schedule = |seed| {
            let mut plan = Plan::new(seed, 5, Kind::ALL.to_vec());
            (0..50).map(|_| plan.episode()).collect::<Vec<_>>()
        };
        assert_eq!(schedule(7), schedule(7));
        assert_ne!(schedule(7), schedule(8));
    }

    #[test]
    fn each_round_has_every_kind_once() {
        let mut plan = Plan::new(1, 3, Kind::ALL.to_vec());
        let mut episodes = vec![plan.episode()];
        while !plan.left.is_empty() {
            episodes.push(plan.episode());
        }
        let mut kinds: Vec<Kind> = episodes.iter().flatten().map(|fault| fault.kind).collect();
        kinds.sort();
        assert_eq!(kinds, Kind::ALL);
        let changes = |faults: &Vec<Fault>| faults.iter().any(|fault| fault.kind.changes_members());
        assert!(episodes.iter().filter(|faults| changes(faults)).all(|faults| faults.len() > 1), "{episodes:?}");
        assert!(episodes.iter().any(|faults| faults.len() == 1) && episodes.iter().any(|faults| faults.len() > 1));
        assert!(episodes.iter().flatten().all(|fault| fault.lasts >= SHORTEST && fault.order.len() == 3));
    }

    #[test]
    fn fault_without_a_target_comes_first_in_the_next_episode() {
        let mut plan = Plan::new(1, 3, Kind::ALL.to_vec());
        let kind = plan.episode()[0].kind;
        plan.repeat(kind);
        assert_eq!(plan.episode()[0].kind, kind);
    }

    #[test]
    fn planned_fault_without_injection_is_missing() {
        let mut tally = FaultCounts::default();
        tally.planned.insert(Kind::Kill, 2);
        tally.planned.insert(Kind::Bridge, 1);
        tally.happened.insert(Kind::Kill, 1);
        assert_eq!(tally.missing(), [Kind::Bridge]);
    }
}
