//! Leases with fencing tokens over Raft.
//!
//! A *lease* is a named, cluster-wide, time-bounded exclusive claim: at any log position at most one holder has it, and
//! it ends by itself when its holder does not renew it. Three or more nodes, as processes of their own or inside a Rust
//! program, replicate the leases through Raft and need no other service. Every grant carries a *fencing token* that is
//! higher than all before it, so that the resource behind the lease can refuse a holder that was overtaken.
//!
//! # Holding a lease
//!
//! ```no_run
//! use tenure::LeaseManager;
//! # async fn build_report(fence: Option<tenure::FencingToken>) -> u32 { 7 }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = LeaseManager::connect("http://10.0.0.1:7101,http://10.0.0.2:7101,http://10.0.0.3:7101")?;
//! // Acquires, renews, drops the work at a loss, and releases at the end.
//! let pages = manager.with("nightly-report", |lease| async move { build_report(lease.token()).await }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The same against [`testing::FakeCluster`], where a test says what happens (feature `testing`):
//!
//! ```
//! # #[cfg(not(feature = "testing"))] fn main() {}
//! # #[cfg(feature = "testing")]
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use tenure::testing::FakeCluster;
//! use tenure::WithError;
//!
//! let cluster = FakeCluster::new();
//! let manager = cluster.manager();
//! assert_eq!(manager.with("nightly-report", |lease| async move { lease.is_held() }).await, Ok(true));
//!
//! cluster.mark_held_elsewhere("nightly-report");
//! let refused = manager.with("nightly-report", |_| async {}).await;
//! assert!(matches!(refused, Err(WithError::NotAcquired(_))));
//! # }
//! ```
//!
//! [`LeaseManager::lease`] gives a handle to acquire, wait, watch and hand over with; the guide is `docs/library.md`.
//!
//! # A node in your program
//!
//! ```no_run
//! # use tenure::node::Node;
//! # async fn example() -> Result<(), tenure::node::StartError> {
//! let node = Node::builder("orders").id(1).data("/var/lib/orders/tenure");
//! let node = node.member(1, "127.0.0.1:8001", "127.0.0.1:9001");
//! let node = node.member(2, "127.0.0.1:8002", "127.0.0.1:9002");
//! let node = node.member(3, "127.0.0.1:8003", "127.0.0.1:9003").start().await?;
//! let manager = node.leases();
//! # Ok(())
//! # }
//! ```
//!
//! More in [`node`] and `docs/embedding.md`.
//!
//! # Fencing
//!
//! ```
//! # use tenure::fence::{Gate, Refused};
//! # async fn example(token: tenure::FencingToken) -> Result<(), Refused> {
//! let printer = Gate::in_memory();
//! // Runs the write only if no higher token was seen; a higher one waits until it is done.
//! printer.admit("printer", token, || async { /* write */ }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! For PostgreSQL it is one statement, for an HTTP service a layer: [`fence`] and `docs/fencing.md`.
//!
//! # Modules and features
//!
//! | module | feature | |
//! |---|---|---|
//! | [`client`] | `client` (default) | holding leases: the manager, leases, guards, and the ways to a cluster |
//! | [`election`], [`group`], [`semaphore`] | `client` | one leader, members and placement, at most so many: built on leases |
//! | [`node`], [`http`], [`config`] | `server` (default) | a node, its API over HTTP, and its settings |
//! | [`lease`], [`raft`], [`storage`], [`peer`] | `server` | what a node is made of: public for tests and tools, and not meant to be built on |
//! | [`cli`], [`telemetry`] | `cli` (default) | the commands of the binary |
//! | [`fence`] | `fence`, in `client` | the rule at the resource; alone it builds without any network |
//! | [`fence::http`] | `fence-http` | that rule as a tower layer |
//! | [`testing`] | `testing` | a cluster that a test plays, a way to it that can be cut, a cluster in one process |
//! | [`api`], [`types`], [`token`], [`clock`] | always | what travels over HTTP, names and quantities, the token, the clock |
//!
//! A holder over the network needs `default-features = false, features = ["client"]`: no storage, no Raft, no listener.
//! Rust 1.95 or later. Tested on Linux.
//!
//! The library installs no signal handler, no `tracing` subscriber and no metrics recorder. Its tasks run on the runtime of
//! the caller, and each has an owner that ends it.
//!
//! # What is not promised
//!
//! That a paused process does not act late. A holder can be stopped between its last look at the clock and its next
//! write, for longer than its lease lasts; no lease service can prevent that. What makes the late write harmless is a
//! resource that checks the token. `docs/guarantees.md` names each promise, the tests that carry its name, and where it
//! ends; `docs/what-a-lease-cannot-do.md` has the rest.

/// What `tenure serve` logs: a filter for `tracing-subscriber`'s `EnvFilter`, to be used by programs that embed a node.
///
/// openraft logs several lines a second for each node that cannot be reached. Tenure itself logs one line when a node
/// becomes unreachable, and one when it is reached again.
pub const LOG_FILTER: &str = "info,openraft=error,sled=warn";

pub mod api;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "fence")]
pub mod fence;
#[cfg(all(doctest, feature = "testing", feature = "fence-http"))]
mod guides;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
pub mod lease;
#[cfg(feature = "server")]
pub mod node;
#[cfg(feature = "server")]
pub mod peer;
#[cfg(feature = "server")]
pub mod raft;
#[cfg(feature = "client")]
mod recipes;
#[cfg(feature = "client")]
mod rng;
#[cfg(feature = "server")]
mod service;
#[cfg(feature = "testing")]
mod sim;
#[cfg(feature = "server")]
pub mod storage;
#[cfg(feature = "cli")]
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "client")]
mod time;
pub mod token;
pub mod types;

#[cfg(feature = "client")]
pub use client::{
    AcquireOptions, CallError, HoldState, Lease, LeaseGuard, LeaseManager, LeaseOptions, Loss, ManagerOptions, Wait,
    WithError,
};
#[cfg(feature = "client")]
pub use recipes::{election, group, semaphore};
pub use token::FencingToken;
pub use types::{HolderId, LeaseName};
