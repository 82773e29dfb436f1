//! Leases with fencing tokens over Raft.

pub mod api;
#[cfg(feature = "client")]
mod chance;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "client")]
pub mod election;
#[cfg(feature = "fence")]
pub mod fence;
#[cfg(feature = "client")]
pub mod group;
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
pub mod semaphore;
#[cfg(feature = "server")]
pub mod storage;
#[cfg(feature = "cli")]
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod token;
pub mod types;
