//! Random histories of the lease machine, checked against a simple model and against the promises. Faulty machines test
//! the promise checks.
#![cfg(feature = "server")]

mod broken;
mod kept;
mod model;
mod promises;
mod replicas;
mod requests;
mod same_as_model;
mod stored_form;
