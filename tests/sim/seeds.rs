//! Runs of many seeds, and the reproducibility of a run.

use std::fs::File;
use std::io::Write;

use super::bugs::PlantedBugs;
use super::faults::{DISK_KINDS, KINDS};
use super::parallel::{env_number, run_seeds};
use super::plan::Plan;
use super::restore;
use super::run::run;
use super::summary::Summary;
use super::verdict::Verdict;

/// Client work that each full run must include at least once.
const WORK: [&str; 34] = [
    "granted",
    "refused",
    "acquire unknown",
    "released",
    "handed over",
    "handed over to a named waiter",
    "metadata updated",
    "revoked",
    "read",
    "watched",
    "watched from now",
    "watch compacted",
    "led",
    "member added",
    "member removed",
    "member replaced",
    "addresses changed",
    "written",
    "worked",
    "work stopped",
    "asked late",
    "asked again",
    "answered too late",
    "arrived twice",
    "lost on the way",
    "cancelled at the node",
    "deadlines without faults",
    "access control on",
    "access token revoked",
    "principal acquired",
    "principal renewed",
    "principal released",
    "principal lost",
    "principal refused",
];
/// The figures of each full run that must not be 0: a check that judged nothing proves nothing.
const JUDGED: [&str; 4] = [
    "expiries within their bound",
    "grants from a queue within their bound",
    "lock delays before a grant",
    "ages of states",
];
/// The same of each full run that restores backups.
const RESTORED: [&str; 1] = ["leases that a restore ended"];
/// The figures that a run of this many seeds must have: few backups contain a waiter.
const RESTORED_WAITERS: ([&str; 1], u64) = (["waiters that a restore dropped"], 500);
/// Maximum number of seeds that run twice.
const MAX_REPEATED_SEEDS: u64 = 10;
/// Default number of seeds.
const DEFAULT_SEEDS: u64 = 20;
/// So many seeds include each kind of fault and work.
const COMPLETE_SEEDS: u64 = 100;

fn first_and_count() -> (u64, u64) {
    let (first, count) = (env_number("TENURE_SIM_FIRST", 1), env_number("TENURE_SIM_SEEDS", DEFAULT_SEEDS));
    assert!(count > 0, "a run without seeds proves nothing");
    (first, count)
}

fn plan(seed: u64) -> Plan {
    Plan::of(seed, PlantedBugs::default())
}

/// Runs each seed on this thread and on a worker thread next to other runs.
#[test]
fn equal_seeds_give_equal_runs() {
    let (first, count) = first_and_count();
    run_seeds(
        first,
        count.min(MAX_REPEATED_SEEDS),
        |seed| run(plan(seed).traced()),
        |seed, other| {
            let first_run = run(plan(seed).traced());
            for (number, (line, other)) in first_run.trace.iter().zip(&other.trace).enumerate() {
                assert_eq!(line, other, "seed {seed}, line {number}");
            }
            assert_eq!(first_run.trace.len(), other.trace.len(), "seed {seed}");
            assert!(first_run.trace.len() > 100, "seed {seed}: the trace has at most 100 lines");
        },
    );
}

#[test]
fn every_promise_is_kept_on_every_seed() {
    let (first, count) = first_and_count();
    let traced = std::env::var_os("TENURE_SIM_TRACE").is_some();
    let stops_at = std::env::var("TENURE_SIM_STOP").unwrap_or_default();
    let mut summary = Summary::new(first);
    let history = std::env::var_os("TENURE_SIM_HISTORY");
    let mut file = history.as_ref().map(|path| File::create(path).expect("TENURE_SIM_HISTORY names a writable file"));
    let exported = file.is_some();
    run_seeds(
        first,
        count,
        |seed| run(Plan { traced, exported, ..plan(seed) }),
        |seed, verdict| {
            print_problems(seed, &verdict, "seeds::every_promise_is_kept_on");
            if let Some(file) = &mut file {
                file.write_all(&verdict.history).expect("TENURE_SIM_HISTORY names a writable file");
            }
            let stops = verdict.violations.iter().any(|found| is_named(found.promise, &stops_at));
            summary.add(seed, verdict);
            if stops {
                // A failed assertion would let the test runner continue with the other tests.
                println!("\n{summary}");
                std::process::exit(1);
            }
        },
    );
    let text = summary.to_string();
    println!("\n{text}");
    if let Some(file) = std::env::var_os("TENURE_SIM_REPORT") {
        std::fs::write(&file, text)
            .unwrap_or_else(|error| panic!("cannot write TENURE_SIM_REPORT={}: {error}", file.display()));
    }
    assert!(summary.failed.is_empty(), "seeds that broke a promise: {:?}", summary.failed);
    assert_eq!(summary.undecided, 0, "the linearizability search could not decide these histories");
    // Without a kind of fault, the run proves nothing about it.
    if count >= COMPLETE_SEEDS {
        let kinds = KINDS.iter().map(|(kind, _)| kind).chain(&DISK_KINDS);
        let missing: Vec<_> = kinds.filter(|kind| !summary.faults.contains_key(*kind)).collect();
        assert!(missing.is_empty(), "kinds of faults that never occurred: {missing:?}");
        let undone: Vec<_> = WORK.iter().filter(|work| !summary.work.contains_key(**work)).collect();
        assert!(undone.is_empty(), "client work that never occurred: {undone:?}");
        assert_judged(&summary, &JUDGED);
    }
}

fn assert_judged(summary: &Summary, figures: &[&str]) {
    let none: Vec<_> = figures.iter().filter(|figure| summary.figures.get(**figure).is_none_or(|n| *n == 0)).collect();
    assert!(none.is_empty(), "nothing was judged: {none:?}");
}

/// Runs a tenth of the seeds, and at least one: each run has two clusters.
#[test]
fn every_promise_is_kept_after_a_restore() {
    let (first, count) = first_and_count();
    let traced = std::env::var_os("TENURE_SIM_TRACE").is_some();
    let mut summary = Summary::new(first);
    run_seeds(
        first,
        count.div_ceil(10),
        |seed| restore::run(Plan { traced, ..plan(seed) }),
        |seed, verdict| {
            print_problems(seed, &verdict, "seeds::every_promise_is_kept_after");
            summary.add(seed, verdict);
        },
    );
    println!("\nafter a restore\n{summary}");
    assert!(summary.failed.is_empty(), "seeds that broke a promise: {:?}", summary.failed);
    assert_eq!(summary.undecided, 0, "the linearizability search could not decide these histories");
    if count >= COMPLETE_SEEDS {
        assert_judged(&summary, &RESTORED);
    }
    let (waiters, seeds) = RESTORED_WAITERS;
    if count >= seeds {
        assert_judged(&summary, &waiters);
    }
}

/// Whether a list of promises has this one. The list is "any", or names with commas.
fn is_named(promise: &str, list: &str) -> bool {
    list == "any" || list.split(',').any(|name| name == promise)
}

fn print_problems(seed: u64, verdict: &Verdict, test: &str) {
    verdict.trace.iter().for_each(|line| println!("{line}"));
    verdict.violations.iter().for_each(|violation| println!("seed {seed}: {violation}"));
    verdict.undecided.iter().for_each(|lease| println!("seed {seed}: the history of {lease} is too hard to decide"));
    if !verdict.violations.is_empty() || !verdict.undecided.is_empty() {
        println!("replay: TENURE_SIM_TRACE=1 scripts/simulate 1 {seed} {test}");
    }
}
