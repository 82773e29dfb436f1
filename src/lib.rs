//! Leases with fencing tokens over Raft.
//!
//! A *lease* is a named, exclusive claim with a time limit. At each position of the replicated log, at most one holder
//! has it. It expires when its holder does not renew it. Each grant has a *fencing token* that is higher than all
//! earlier ones, so a resource can refuse the late write of an earlier holder.
//!
//! A cluster has three or more nodes, which replicate the leases with Raft. A node is a separate process or a part of
//! your Rust program. A cluster needs no other service.
//!
//! # Hold a lease
//!
//! ```no_run
//! use tenure::LeaseManager;
//! # async fn build_report(fence: Option<tenure::FencingToken>) -> u32 { 7 }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = LeaseManager::connect_lazy("http://10.0.0.1:7101,http://10.0.0.2:7101,http://10.0.0.3:7101")?;
//! // Acquires and renews the lease, drops the future if the lease is lost, and releases the lease at the end.
//! let pages = manager.with("nightly-report", |lease| async move { build_report(lease.token()).await }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! In a test, [`testing::FakeCluster`] replaces the cluster (feature `testing`):
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
//! [`LeaseManager::lease`] returns a handle to acquire, wait for, watch and hand over a lease. See the guide
//! `docs/library.md`.
//!
//! # Run a node in your program
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
//! See [`node`] and `docs/embedding.md`.
//!
//! # Check fencing tokens
//!
//! ```
//! # use tenure::fence::{Gate, Refused};
//! # async fn example(token: tenure::FencingToken) -> Result<(), Refused> {
//! let printer = Gate::in_memory();
//! // Runs the write only if the gate has seen no higher token. A higher token waits for the end of the write.
//! printer.admit("printer", token, || async { /* write */ }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`fence`] also has a check for PostgreSQL and a layer for HTTP services. See `docs/fencing.md`.
//!
//! # Modules and features
//!
//! | module | feature | contents |
//! |---|---|---|
//! | [`client`] | `client`; `client-http` (default) for a cluster over HTTP | the lease manager, leases and guards |
//! | [`election`], [`group`], [`semaphore`] | `client` | leader election, group membership with placement, and semaphores, built on leases |
//! | [`node`], [`http`], [`config`], [`backup`] | `server` | a node, its HTTP API, its settings, and its backups |
//! | [`access`] | `server` or `client-http` | access tokens and rights of access control |
//! | [`tls`] | `server` or `tls` | TLS of nodes and of the HTTP client |
//! | [`fence`] | `fence` (default) | the fencing check at the resource; on its own it has no network dependencies |
//! | [`fence::http`] | `fence-http` | the fencing check as a tower layer |
//! | [`testing`] | `testing` | a fake cluster, a connection that a test can cut, and a clock that a test moves |
//! | [`api`], [`types`], [`token`], [`clock`] | always | the JSON types, names and other value types, the fencing token, the clock |
//!
//! The feature `otel` adds the spans of clients and nodes to the OpenTelemetry traces of the program.
//!
//! The default features build no storage, no Raft and no listener. An embedded node needs `server`, and then no HTTP
//! client. The command is the package `tenure-cli`. Tenure needs Rust 1.95 or later, and is tested on Linux.
//!
//! The library installs no signal handler, no `tracing` subscriber and no metrics recorder. Its tasks run on the
//! caller's tokio runtime, and each task has an owner that ends it.
//!
//! # Limits
//!
//! A lease cannot stop a paused process. A holder can be paused between its last check of the lease and its next write,
//! for longer than the lease lasts. No lease service can prevent this late write. A resource that checks fencing tokens
//! refuses it.
//!
//! `docs/guarantees.md` lists all promises with their tests and limits. `docs/what-a-lease-cannot-do.md` explains the
//! limits of leases.

#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// The default log filter of `tenure serve`, for the `EnvFilter` of programs that embed a node.
///
/// It hides most messages of openraft, which logs several lines per second for each unreachable node. Tenure itself logs
/// one line when a node becomes unreachable, and one line when it is reachable again.
pub const LOG_FILTER: &str = "info,openraft=error,sled=warn,opentelemetry=warn";

#[cfg(feature = "server")]
mod accept;
#[cfg(any(feature = "server", feature = "client-http"))]
pub mod access;
pub mod api;
#[cfg(feature = "server")]
pub mod backup;
#[cfg(feature = "cli")]
#[doc(hidden)]
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
pub mod node;
#[cfg(feature = "client")]
mod recipes;
#[cfg(feature = "client")]
mod rng;
#[cfg(feature = "server")]
mod service;
#[cfg(feature = "testing")]
#[allow(missing_docs, reason = "public for tests only")]
mod sim;
#[cfg(feature = "cli")]
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "client")]
mod time;
#[cfg(any(feature = "server", feature = "tls"))]
pub mod tls;
pub mod token;
#[cfg(feature = "client")]
#[cfg_attr(
    not(all(feature = "server", feature = "client-http")),
    allow(dead_code, unused_imports, reason = "clients and nodes use different parts")
)]
mod trace;
#[cfg(all(test, feature = "testing"))]
#[path = "../tests/golden/transcripts.rs"]
mod transcripts;
pub mod types;

// The parts of a node. They are public only for the tests of this repository, which use the feature `testing`. They are
// declared twice, because rustfmt does not find modules that a macro declares.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod lease;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod peer;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod raft;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod storage;

#[cfg(all(feature = "server", not(feature = "testing")))]
mod lease;
#[cfg(all(feature = "server", not(feature = "testing")))]
mod peer;
#[cfg(all(feature = "server", not(feature = "testing")))]
mod raft;
#[cfg(all(feature = "server", not(feature = "testing")))]
mod storage;

#[cfg(feature = "client")]
pub use client::{
    AcquireOptions, CallError, HoldState, Lease, LeaseGuard, LeaseManager, LeaseOptions, Loss, ManagerOptions, Wait,
    WithError,
};
#[cfg(feature = "client")]
pub use recipes::{election, group, semaphore};
pub use token::FencingToken;
pub use types::{HolderId, LeaseName};
