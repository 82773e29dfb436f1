//! Simulation of whole clusters: each run has one thread, virtual time and one seed. `scripts/simulate` starts runs.
//!
//! Nodes, Raft, timers and lease managers are production code. The network and the disks are in memory.
//!
//! A run has four phases:
//!
//! - Nodes start on empty disks and form a cluster, with faults.
//! - Clients work while faults are injected (safety).
//! - All faults end (liveness).
//! - All clients die at once. Each lease expires, and all replicas converge.
//!
//! | file | content |
//! |---|---|
//! | `plan`, `world`, `run` | the choices of the seed, the shared state of a run, and its phases |
//! | `bootstrap` | the first starts of all nodes, with faults |
//! | `faults` | faults of processes, network and disks |
//! | `principals` | clients with access tokens, and the promises of access control |
//! | `members`, `rollout` | changes of the members and of the configuration |
//! | `restore` | a cluster that loses all nodes, and a new one from its backup |
//! | `stale_reads` | faults that can cause stale reads |
//! | `client`, `recording_client`, `watcher` | the workload, and its connection to a node |
//! | `register` | a resource that checks only fencing tokens |
//! | `clock` | clocks with their own rate |
//! | `ledger`, `evidence` | the entries that replicas applied; the requests, the answers and the beliefs of clients |
//! | `judge` | one promise per file, checked at each log entry or on the histories after the run |
//! | `invariants` | one invariant of the implementation per file |
//! | `seeds`, `parallel`, `summary`, `verdict` | runs of many seeds on all cores, and their results |
//! | `planted`, `bugs` | planted bugs of disks, clocks, clients and resources, which the invariants must catch |
//! | `checker_self_test` | recorded logs with an error that the invariants must catch |
//!
//! Clocks: each node has its own clock rate, which its timers and openraft's follow. In most runs the rates stay inside
//! the configured drift. In the others they range from half to double speed. Those runs skip the invariants about time,
//! and their clients read without a leadership lease. All other invariants hold, and fenced registers accept no stale
//! write.
//!
//! Stop and suspend: a stopped node runs nothing, and its timers fire late when it resumes. A suspended machine does
//! not count the suspended time, except on the clock that measures leases. That clock has another rate during a
//! suspend. Client machines are suspended, too: the holder runs nothing, but its lease manager counts the time.
//!
//! Nodes start with production code, on a disk that loses unsynced data. This includes the stored leadership promise,
//! the quarantine, the disk identity and the handshake between nodes.
//!
//! The simulation does not cover:
//!
//! - Sockets, files and sled. They have their own tests.
//! - tokio timeouts inside a node that guard no invariant. They run at the true rate.
//! - A disk that is replaced by an old copy of it.
//! - A log that loses synced entries at its end. No store can distinguish it from a shorter log.
//!
//! Without `--cfg tokio_unstable` tokio's choices cannot be seeded and runs are not reproducible. This crate is then
//! empty.
#![cfg(tokio_unstable)]

mod bootstrap;
mod bugs;
mod checker_self_test;
mod client;
mod clock;
mod evidence;
mod faults;
mod invariants;
#[expect(dead_code, reason = "the lease machine and tests/faults use the rest of it")]
#[path = "../judge/mod.rs"]
mod judge;
mod ledger;
mod members;
mod parallel;
mod plan;
mod planted;
mod principals;
mod recording_client;
mod register;
mod restore;
mod rollout;
mod run;
mod seeds;
mod stale_reads;
mod summary;
mod verdict;

mod watcher;
mod world;
