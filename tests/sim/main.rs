//! A whole cluster in one thread and virtual time, chosen by one seed: see `scripts/simulate`.
//!
//! | file | noun |
//! |---|---|
//! | `plan`, `world`, `run` | what the seed decides, what a run is made of, and its phases: faults, healing, the end of all leases |
//! | `nemesis`, `promise` | the faults |
//! | `client`, `door`, `watcher` | the workload, and its way to whichever node is there |
//! | `ledger`, `history` | what replicas applied, and what clients asked, were told and believed |
//! | `linear` | the search for an order of calls that one lease could have had |
//! | `promises` | what must hold, one promise a file |
//! | `seeds`, `planted` | many seeds, and bugs that must be caught |
//!
//! It does not cover: sockets and files, which have tests of their own; timers that run at another rate than true time
//! (nodes and clients *read* clocks of their own rates, tokio's timers and openraft's are true); the inside of a process
//! that is stopped (nothing reaches or leaves it and its disk finishes nothing, but its timers run); membership change.
//!
//! Without `--cfg tokio_unstable` tokio's choices cannot be seeded, nothing repeats, and there is nothing here.
#![cfg(tokio_unstable)]

mod bug;
mod client;
mod doctored;
mod door;
#[path = "../support/history.rs"]
mod history;
mod ledger;
#[path = "../support/linear.rs"]
mod linear;
mod many;
mod meddler;
mod nemesis;
mod plan;
mod planted;
mod promise;
mod promises;
mod register;
mod run;
mod seeds;
mod skew;
mod tally;
mod verdict;
mod voters;
mod watcher;
mod world;
