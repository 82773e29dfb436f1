//! Raft consensus through openraft. No other module names openraft.
//!
//! This module replicates log entries to a majority of disks and applies them to a [`Replica`]. The lease machine
//! interprets the entries, the storage module stores them, and the peer module transports them.

mod freshness;
mod handle;
mod level;
pub(crate) mod log;
mod membership;
mod network;
mod quorum;
mod restored;
mod runtime;
mod service;
pub(crate) mod snapshot;
mod state_machine;
mod suspend;
#[cfg(all(test, feature = "testing"))]
mod tests;
mod times;
mod timings;
mod transfer;
pub(crate) mod types;
pub(crate) mod wire;

pub use handle::{CurrentLeader, MemberProgress, RaftHandle, WriteError, run_to_completion};
pub use level::FeatureLevel;
pub use log::{Joined, MAX_ENTRY_BYTES};
pub use membership::{ChangeError, MembershipChange};
pub use restored::{read_restored, write_restored};
pub use state_machine::{AppliedEntry, ApplyObserver, Progress, Replica, State, blocking};
pub use types::{Applied, PeerInfo, Proposal};

pub use transfer::TransferError;
#[cfg(feature = "testing")]
pub use {
    membership::CurrentMembership,
    wire::{Call, Reply},
};

use crate::config::RaftTimings;
