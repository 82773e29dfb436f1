//! Many seeds.

use std::fs::File;
use std::io::Write;

use super::bugs::Planted;
use super::faults::KINDS;
use super::parallel::{number, runs};
use super::plan::Plan;
use super::run::run;
use super::summary::Tally;
use super::verdict::Verdict;

/// What clients must have done and been told in an ordinary run.
const WORK: [&str; 18] = [
    "granted",
    "refused",
    "acquire unknown",
    "released",
    "handed over",
    "revoked",
    "read",
    "watched",
    "led",
    "voters changed",
    "written",
    "worked",
    "work stopped",
    "asked late",
    "asked again",
    "answered too late",
    "arrived twice",
    "lost on the way",
];
/// Seeds that are run twice, at most.
const TWICE: u64 = 50;
/// Seeds of an ordinary run.
const SEEDS: u64 = 20;

fn asked_for() -> (u64, u64) {
    (number("TENURE_SIM_FIRST", 1), number("TENURE_SIM_SEEDS", SEEDS))
}

fn plan(seed: u64) -> Plan {
    Plan::of(seed, Planted::default())
}

/// Once here and once on some other thread, beside other runs.
#[test]
fn the_same_seed_makes_the_same_run() {
    let (first, count) = asked_for();
    runs(
        first,
        count.min(TWICE),
        |seed| plan(seed).traced(),
        |seed, other| {
            let once = run(plan(seed).traced());
            for (place, (line, other)) in once.trace.iter().zip(&other.trace).enumerate() {
                assert_eq!(line, other, "seed {seed}, line {place}");
            }
            assert_eq!(once.trace.len(), other.trace.len(), "seed {seed}");
            assert!(once.trace.len() > 100, "seed {seed} has a trace");
        },
    );
}

#[test]
fn every_promise_is_kept_on_every_seed() {
    let (first, count) = asked_for();
    let traced = std::env::var_os("TENURE_SIM_TRACE").is_some();
    let stops = std::env::var_os("TENURE_SIM_STOP").is_some();
    let mut tally = Tally::new(first);
    let history = std::env::var_os("TENURE_SIM_HISTORY");
    let mut file = history.as_ref().map(|path| File::create(path).expect("the file of TENURE_SIM_HISTORY"));
    let exported = file.is_some();
    runs(
        first,
        count,
        |seed| Plan { traced, exported, ..plan(seed) },
        |seed, verdict| {
            tell(seed, &verdict);
            if let Some(file) = &mut file {
                file.write_all(&verdict.history).expect("the file of TENURE_SIM_HISTORY");
            }
            tally.add(seed, verdict);
            if stops && !tally.failed.is_empty() {
                // The test runner would go on with the other tests.
                println!("\n{tally}");
                std::process::exit(1);
            }
        },
    );
    let said = tally.to_string();
    println!("\n{said}");
    if let Some(file) = std::env::var_os("TENURE_SIM_REPORT") {
        std::fs::write(&file, said).unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
    }
    assert!(tally.failed.is_empty(), "seeds that broke a promise: {:?}", tally.failed);
    assert_eq!(tally.undecided, 0, "histories that are too hard to decide: nothing is known of them");
    // A run that made no faults of a kind says nothing about it.
    if count >= SEEDS {
        let missing: Vec<_> = KINDS.iter().filter(|(kind, _)| !tally.faults.contains_key(kind)).collect();
        assert!(missing.is_empty(), "faults that were planned and never happened: {missing:?}");
        let undone: Vec<_> = WORK.iter().filter(|work| !tally.work.contains_key(**work)).collect();
        assert!(undone.is_empty(), "work that was never done: {undone:?}");
    }
}

fn tell(seed: u64, verdict: &Verdict) {
    verdict.trace.iter().for_each(|line| println!("{line}"));
    verdict.broken.iter().for_each(|broken| println!("seed {seed}: {broken}"));
    verdict.undecided.iter().for_each(|lease| println!("seed {seed}: the history of {lease} is too hard to decide"));
    if !verdict.broken.is_empty() || !verdict.undecided.is_empty() {
        println!("replay: TENURE_SIM_TRACE=1 scripts/simulate 1 {seed} seeds::every_promise");
    }
}
