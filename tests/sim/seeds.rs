//! Many seeds.

use super::nemesis::KINDS;
use super::plan::Plan;
use super::run::run;
use super::verdict::{Counts, Verdict};
use super::world::Planted;

/// What clients must have done and been told in an ordinary run.
const WORK: [&str; 9] =
    ["granted", "refused", "acquire unknown", "released", "handed over", "revoked", "read", "watched", "led"];
/// Seeds that are run twice, at most.
const TWICE: u64 = 50;
/// Seeds of an ordinary run.
const SEEDS: u64 = 20;

fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")))
}

fn one(seed: u64) -> Verdict {
    run(Plan::of(seed, Planted::default()))
}

#[test]
fn the_same_seed_makes_the_same_run() {
    let first = number("TENURE_SIM_FIRST", 1);
    for seed in first..first + number("TENURE_SIM_SEEDS", SEEDS).min(TWICE) {
        let (once, again) = (one(seed), one(seed));
        for (place, (line, other)) in once.trace.iter().zip(&again.trace).enumerate() {
            assert_eq!(line, other, "seed {seed}, line {place}");
        }
        assert_eq!(once.trace.len(), again.trace.len(), "seed {seed}");
    }
}

#[test]
fn every_promise_is_kept_on_every_seed() {
    let (first, count) = (number("TENURE_SIM_FIRST", 1), number("TENURE_SIM_SEEDS", SEEDS));
    let began = std::time::Instant::now();
    let (mut faults, mut work, mut failed) = (Counts::new(), Counts::new(), 0);
    for seed in first..first + count {
        let verdict = one(seed);
        if std::env::var_os("TENURE_SIM_TRACE").is_some() {
            verdict.trace.iter().for_each(|line| println!("{line}"));
        }
        for broken in &verdict.broken {
            println!("seed {seed}: {broken}");
        }
        if !verdict.broken.is_empty() {
            println!("replay: TENURE_SIM_TRACE=1 scripts/simulate 1 {seed}");
            failed += 1;
        }
        verdict.faults.into_iter().for_each(|(kind, count)| *faults.entry(kind).or_default() += count);
        verdict.work.into_iter().for_each(|(kind, count)| *work.entry(kind).or_default() += count);
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    println!("{count} seeds, {rate:.2} a second; faults: {faults:?}; work: {work:?}");
    let done = work;
    assert_eq!(failed, 0, "seeds that broke a promise");
    // A run that made no faults of a kind says nothing about it.
    if count >= SEEDS {
        let missing: Vec<_> = KINDS.iter().filter(|(kind, _)| !faults.contains_key(kind)).collect();
        assert!(missing.is_empty(), "faults that were planned and never happened: {missing:?}");
        let undone: Vec<_> = WORK.iter().filter(|work| !done.contains_key(**work)).collect();
        assert!(undone.is_empty(), "work that was never done: {undone:?}");
    }
}
