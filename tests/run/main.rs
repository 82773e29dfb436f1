//! Tests of `tenure run` and `tenure elect` with real clusters, commands and signals.
//!
//! Commands write marks with the time at which they run and the signals that they receive. The tests compare the last
//! mark of a command with the time of the next holder's grant.
#![cfg(target_os = "linux")]

// Shared with tests/processes, which uses all items.
#[allow(dead_code)]
#[path = "../processes/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "../processes/cluster.rs"]
mod cluster;
#[path = "../support/plain_http.rs"]
mod plain_http;
#[path = "../processes/port.rs"]
mod port;
#[allow(dead_code)]
#[path = "../processes/process.rs"]
mod process;
#[path = "../support/steady.rs"]
mod steady;

mod link;
mod world;

mod draining;
mod electing;
mod ends;
mod guarding;
mod losing;
mod passing;
mod terminal;
