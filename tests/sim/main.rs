//! Whole clusters in virtual time, each in one thread and chosen by one seed: see `scripts/simulate`.
//!
//! Nodes, Raft, their time-keepers and the lease managers are the product's; the network and the disks are twins in memory.
//! A run has four parts: nodes start on empty disks and form a cluster, with faults; faults and clients (safety);
//! everything works again (liveness); all clients die at once (every lease expires, and all replicas end up alike).
//!
//! | file | noun |
//! |---|---|
//! | `plan`, `world`, `run` | what the seed decides, what a run is made of, and its parts |
//! | `bootstrap` | the first starts of all nodes, with their faults |
//! | `faults`, `voters`, `stale_reads`, `rollout` | the faults: of processes, network and disks; of the membership; those that stale reads come from; changes of configuration |
//! | `client`, `recording_client`, `watcher`, `register` | the workload, its way to whichever node is there, and a resource that knows tokens only |
//! | `ledger`, `history` | what replicas applied, and what clients asked, were told and believed |
//! | `linear` | the search for an order of calls that one lease could have had |
//! | `promises` | what must hold, one promise a file: of the log at every entry, of histories when the run is over |
//! | `seeds`, `parallel`, `summary` | many seeds, on every core, and what they came to |
//! | `planted`, `bugs`, `fault_injector`, `checker_self_test` | bugs that must be caught, how they get into a node, and promises that must fail |
//!
//! Time: each node has a clock and timers of its own rate, openraft's included, inside the configured drift in most runs
//! and from half to double in the others. There the promises about time are not checked, and nobody reads by a leadership
//! lease; all others hold, and fenced registers take no stale write. A node that is stopped runs nothing at all, and finds
//! its timers late when it goes on. A machine that is suspended does not count the time in which it was, but for the clock
//! that leases are measured by, whose rate is another one meanwhile. Machines of clients are suspended, too: nothing of a
//! holder runs meanwhile, and its lease manager counts the time all the same.
//!
//! Nodes start as the program does, on a disk that loses what was not synced: the promise of the last life and the
//! quarantine, the identity of the disk and the handshake between nodes are the product's.
//!
//! It does not cover: sockets, files and sled, which have tests of their own; timeouts inside a node that are tokio's and
//! guard no promise (they run at true rate); an old disk; members that were never there before (voters lose and
//! regain their vote, and nodes are lost for good); a log whose end is cut behind what was synced, which no store can tell
//! from a shorter log.
//!
//! Without `--cfg tokio_unstable` tokio's choices cannot be seeded, nothing repeats, and there is nothing here.
#![cfg(tokio_unstable)]

mod bootstrap;
mod bugs;
mod checker_self_test;
mod client;
mod clock;
mod fault_injector;
mod faults;
#[path = "../support/history.rs"]
mod history;
#[path = "../support/history_file.rs"]
mod history_file;
mod ledger;
#[path = "../support/linear.rs"]
mod linear;
mod parallel;
mod plan;
mod planted;
mod promises;
mod recording_client;
mod register;
mod rollout;
mod run;
mod seeds;
mod stale_reads;
mod summary;
mod verdict;
mod voters;
mod watcher;
mod world;
