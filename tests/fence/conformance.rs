//! The gates pass the conformance test. What it catches is in `broken.rs`.

use tenure::fence::Gate;
use tenure::fence::conformance::{self, Effort, Rule};

use crate::shelf::{Shelf, Values};

/// In memory marks and values have to have the same lifetime: here both outlive the shelf.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_in_memory_conforms() {
    let (gate, values) = (Gate::in_memory(), Values::default());
    let open = async || Ok(Shelf { gate: gate.clone(), values: values.clone() });
    let report = conformance::check(open, Effort::default()).await.unwrap_or_else(|error| panic!("{error}"));
    println!("{report}");
    assert_eq!(report.checked.len(), 9);
    assert_eq!(report.checked.last().map(|(rule, _)| *rule), Some(Rule::SurvivesRestart));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_with_a_journal_conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    let values = Values::default();
    let open = async || Ok(Shelf::open(&folder.path().join("marks"), &values));
    let report = conformance::check(open, Effort::default()).await.unwrap_or_else(|error| panic!("{error}"));
    println!("{report}");
}
