//! What many runs came to, in one block: what was done, what went wrong, and what nobody can tell.

use std::fmt;
use std::time::{Duration, Instant};

use super::verdict::{Counts, Verdict};

pub struct Tally {
    began: Instant,
    first: u64,
    seeds: u64,
    simulated: Duration,
    pub faults: Counts,
    pub work: Counts,
    operations: Counts,
    figures: Counts,
    /// How often each promise was broken.
    broken: Counts,
    /// Seeds that broke a promise.
    pub failed: Vec<u64>,
    /// Histories that no search decided.
    pub undecided: u64,
}

impl Tally {
    pub fn new(first: u64) -> Tally {
        let counts = Counts::new;
        Tally {
            began: Instant::now(),
            first,
            seeds: 0,
            simulated: Duration::ZERO,
            faults: counts(),
            work: counts(),
            operations: counts(),
            figures: counts(),
            broken: counts(),
            failed: Vec::new(),
            undecided: 0,
        }
    }

    pub fn add(&mut self, seed: u64, verdict: Verdict) {
        self.seeds += 1;
        self.simulated += verdict.simulated;
        self.undecided += verdict.undecided.len() as u64;
        if !verdict.broken.is_empty() {
            self.failed.push(seed);
        }
        verdict.broken.iter().for_each(|broken| *self.broken.entry(broken.promise).or_default() += 1);
        sum(&mut self.faults, verdict.faults);
        sum(&mut self.work, verdict.work);
        sum(&mut self.operations, verdict.operations);
        sum(&mut self.figures, verdict.figures);
    }
}

fn sum(all: &mut Counts, more: Counts) {
    more.into_iter().for_each(|(what, count)| *all.entry(what).or_default() += count);
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.began.elapsed().as_secs_f64();
        let last = (self.first + self.seeds).saturating_sub(1);
        writeln!(f, "seeds: {} (from {} to {last})", self.seeds, self.first)?;
        writeln!(f, "time: {seconds:.1} s, {:.1} seeds a second", self.seeds as f64 / seconds)?;
        writeln!(f, "simulated time: {} s", self.simulated.as_secs())?;
        let total: u64 = self.operations.values().sum();
        let unknown: u64 = self.operations.iter().filter(|(what, _)| what.ends_with("unknown")).map(|(_, n)| n).sum();
        writeln!(f, "operations: {total}, outcome unknown of {unknown}")?;
        block(f, &self.operations)?;
        let blocks = [
            ("faults", &self.faults),
            ("work", &self.work),
            ("figures", &self.figures),
            ("broken promises", &self.broken),
        ];
        for (title, counts) in blocks {
            writeln!(f, "{title}: {}", counts.values().sum::<u64>())?;
            block(f, counts)?;
        }
        writeln!(f, "histories too hard to decide: {}", self.undecided)?;
        let mut failed = self.failed.clone();
        failed.sort();
        writeln!(f, "seeds that broke a promise: {} {failed:?}", failed.len())
    }
}

fn block(f: &mut fmt::Formatter<'_>, counts: &Counts) -> fmt::Result {
    counts.iter().try_for_each(|(what, count)| writeln!(f, "  {what}: {count}"))
}
