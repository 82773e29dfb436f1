//! The conformance of the clients in Rust, Python and TypeScript: the same cases and the same promises for each.
//!
//! Each case starts drivers, which are separate processes: clients/conformance/README.md describes their protocol. The
//! drivers use real nodes, through proxies with faults. `scripts/check clients` sets the drivers up and runs the suite.
//!
//! | file | content |
//! |---|---|
//! | `suite` | the run of all cases for all clients, and the table of its results |
//! | `cases` | the scripts |
//! | `case` | the drivers, the leases and the evidence of one case |
//! | `evidence`, `view` | the promises, judged after each case, and the evidence of one driver |
//! | `language`, `session` | the clients, and a running driver |
//! | `link`, `http` | the proxies between a driver and the nodes |
//! | `cluster` | nodes, and an observer of their leases |
//! | `planted` | bugs in the other clients that the suite must find |
//! | `own_tests` | bugs in the other clients that a test of that client must find |
//! | `driver` | the driver of the Rust client, a program of its own |
//!
//! `TENURE_CLIENTS_ONLY` runs the cases whose names contain its value.

mod case;
mod cases;
#[expect(dead_code, reason = "the tests of processes use the rest of it")]
#[path = "../processes/client.rs"]
mod client;
mod cluster;
mod evidence;
mod http;
#[expect(dead_code, reason = "the lease machine and the simulation use the rest of it")]
#[path = "../judge/mod.rs"]
mod judge;
mod language;
mod link;
mod own_tests;
#[path = "../support/plain_http.rs"]
mod plain_http;
mod planted;
#[path = "../processes/port.rs"]
mod port;
#[expect(dead_code, reason = "the tests of processes use the rest of it")]
#[path = "../processes/process.rs"]
mod process;
mod session;
#[path = "../support/steady.rs"]
mod steady;
mod suite;
mod view;
mod wait;
