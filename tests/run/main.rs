//! `tenure run` with real clusters, real commands and real signals: what becomes of the command, and when.
//!
//! Commands write down when they run and what they are sent. What counts is read from that: whether the last trace of
//! a command is older than the next holder's grant.
#![cfg(target_os = "linux")]

// Shared with the tests of whole clusters, which use all of it.
#[allow(dead_code)]
#[path = "../processes/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "../processes/cluster.rs"]
mod cluster;
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
