//! The gates pass the conformance test. `broken.rs` checks the conformance test with planted bugs.

use tenure::fence::Gate;
use tenure::fence::conformance::{self, Effort, Rule};

use crate::shelf::{Shelf, Values};

/// The names of all rules, in the order of their checks.
const NAMES: [&str; 9] = [
    "equal_is_accepted",
    "higher_is_accepted",
    "lower_is_refused",
    "refused_leaves_no_trace",
    "extremes_are_ordered",
    "items_are_apart",
    "first_uses_may_race",
    "no_lower_after_higher",
    "survives_restart",
];

/// Marks in memory must live as long as the values: here both outlive the shelf.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_in_memory_conforms() {
    let (gate, values) = (Gate::in_memory(), Values::default());
    let open = async || Ok(Shelf { gate: gate.clone(), values: values.clone() });
    let report = conformance::check(open, Effort::default()).await.unwrap_or_else(|error| panic!("{error}"));
    println!("{report}");
    assert_eq!(report.checked.len(), 9);
    // 100 races with 4 writers. Each writer has 1 write or 4 writes, and each race ends with a late write.
    assert_eq!(report.checked[6..8], [(Rule::FirstUsesMayRace, 500), (Rule::NoLowerAfterHigher, 1_700)]);
    let text = report.to_string();
    let first_words: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first_words, NAMES);
    assert_eq!(report.checked.iter().map(|(rule, _)| rule.to_string()).collect::<Vec<_>>(), NAMES);
    assert_eq!(report.checked.last().map(|(rule, _)| *rule), Some(Rule::SurvivesRestart));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_with_journal_conforms() {
    let folder = tempfile::tempdir().expect("create a directory");
    let values = Values::default();
    let open = async || Ok(Shelf::open(&folder.path().join("marks"), &values));
    let report = conformance::check(open, Effort::default()).await.unwrap_or_else(|error| panic!("{error}"));
    println!("{report}");
}
