//! A whole cluster in one thread and virtual time, chosen by one seed: see `scripts/simulate`.
//!
//! Without `--cfg tokio_unstable` tokio's choices cannot be seeded, nothing repeats, and there is nothing here.
#![cfg(tokio_unstable)]

mod client;
mod door;
mod history;
mod ledger;
mod nemesis;
mod plan;
mod planted;
mod promise;
mod promises;
mod run;
mod seeds;
mod skew;
mod verdict;
mod watcher;
mod world;
