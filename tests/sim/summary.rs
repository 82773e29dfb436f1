//! The printed summary of many runs.

use std::fmt;
use std::time::{Duration, Instant};

use super::verdict::{Counts, Verdict};

pub struct Summary {
    began: Instant,
    first: u64,
    seeds: u64,
    simulated: Duration,
    pub faults: Counts,
    pub work: Counts,
    operations: Counts,
    pub figures: Counts,
    /// Violations by invariant.
    violations: Counts,
    /// Seeds with a violation.
    pub failed: Vec<u64>,
    /// Histories that the linearizability search could not decide.
    pub undecided: u64,
}

impl Summary {
    pub fn new(first: u64) -> Summary {
        let counts = Counts::new;
        Summary {
            began: Instant::now(),
            first,
            seeds: 0,
            simulated: Duration::ZERO,
            faults: counts(),
            work: counts(),
            operations: counts(),
            figures: counts(),
            violations: counts(),
            failed: Vec::new(),
            undecided: 0,
        }
    }

    pub fn add(&mut self, seed: u64, verdict: Verdict) {
        self.seeds += 1;
        self.simulated += verdict.simulated;
        self.undecided += verdict.undecided.len() as u64;
        if !verdict.violations.is_empty() {
            self.failed.push(seed);
        }
        verdict.violations.iter().for_each(|found| *self.violations.entry(found.promise).or_default() += 1);
        sum(&mut self.faults, verdict.faults);
        sum(&mut self.work, verdict.work);
        sum(&mut self.operations, verdict.operations);
        sum(&mut self.figures, verdict.figures);
    }
}

fn sum(total: &mut Counts, counts: Counts) {
    counts.into_iter().for_each(|(label, count)| *total.entry(label).or_default() += count);
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.began.elapsed().as_secs_f64();
        let last = (self.first + self.seeds).saturating_sub(1);
        writeln!(f, "seeds: {} (from {} to {last})", self.seeds, self.first)?;
        writeln!(f, "time: {seconds:.1} s, {:.1} seeds a second", self.seeds as f64 / seconds)?;
        writeln!(f, "simulated time: {} s", self.simulated.as_secs())?;
        let total: u64 = self.operations.values().sum();
        let unknown: u64 = self.operations.iter().filter(|(label, _)| label.ends_with("unknown")).map(|(_, n)| n).sum();
        writeln!(f, "operations: {total}, outcome unknown of {unknown}")?;
        block(f, &self.operations)?;
        let blocks = [
            ("faults", &self.faults),
            ("work", &self.work),
            ("figures", &self.figures),
            ("broken promises", &self.violations),
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
    counts.iter().try_for_each(|(label, count)| writeln!(f, "  {label}: {count}"))
}
