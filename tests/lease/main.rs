//! Random histories of the lease machine, checked against a simple model and against the promises of
//! [`judge`]. Faulty machines and the histories of [`judge_tests`] test the promise checks.
#![cfg(feature = "server")]

mod broken;
#[expect(dead_code, reason = "the simulation and tests/faults use the rest of it")]
#[path = "../judge/mod.rs"]
mod judge;
#[path = "../judge/tests/mod.rs"]
mod judge_tests;
mod kept;
mod model;
mod replicas;
mod requests;
mod same_as_model;
mod stored_form;
