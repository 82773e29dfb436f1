//! The lease machine's promises on random histories, against a naive model and against invariants of their own; and
//! the invariants against machines that are broken on purpose.
#![cfg(feature = "server")]

mod broken;
mod kept;
mod model;
mod promises;
mod replicas;
mod requests;
mod same_as_model;
mod stored_form;
