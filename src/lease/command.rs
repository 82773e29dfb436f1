//! Timer can be asked of the lease machine. These types are stored in logs: fields of a variant are frozen, and a
//! new variant goes at the end.

use serde::{Deserialize, Serialize};

use crate::token::FencingToken;
use crate::types::{ClusterMs, HolderId, LeaseName, Metadata, Ttl};

/// One log entry: commands that are applied together, at one position and one time, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub stamp: Stamp,
    pub commands: Vec<Command>,
}

/// When the leader proposed an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Cluster time. Apply uses the larger of this and the state's own.
    pub now: ClusterMs,
    /// Wall clock, milliseconds since the Unix epoch: shown to people, decides nothing.
    pub wall_ms: u64,
}

/// One request to the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Claim a lease, or join its queue. By its holder: the same token, never less time than before, nothing else new.
    Acquire(Acquire),
    /// Extend leases of one holder, each answered on its own.
    Renew { holder: HolderId, leases: Vec<Renewal> },
    /// Give a lease back.
    Release { name: LeaseName, holder: HolderId, token: FencingToken },
    /// An operator's release of every holder of a lease. Waiters keep their places.
    Revoke { name: LeaseName, reason: String },
    /// Give a lease to a waiter: the named one, or the first.
    HandOver { name: LeaseName, holder: HolderId, token: FencingToken, to: Option<HolderId> },
    /// Waiters that somebody still waits with: their patience starts again.
    KeepWaiting { waiters: Vec<WaiterId> },
    /// A waiter gives up its place; answered with how many did, 0 or 1.
    LeaveQueue { waiter: WaiterId },
    /// Let time pass.
    Tick,
    /// Bounds that apply reads; replicated, so that replicas with other configuration files still agree.
    SetLimits(Limits),
    /// Replace the metadata of a held lease, if `version` is the version that it has.
    UpdateMetadata { name: LeaseName, holder: HolderId, token: FencingToken, version: u64, metadata: Metadata },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    pub name: LeaseName,
    pub holder: HolderId,
    pub ttl: Ttl,
    /// Join the queue for at most this many milliseconds when the lease is held; `None` refuses at once.
    pub wait_ms: Option<u64>,
    /// After an expiry or a revoke of this grant nobody gets the lease for this many milliseconds.
    pub lock_delay_ms: u64,
    /// How many may hold the lease at once; 1 for a plain lease. The same for all who hold it or wait for it.
    pub limit: u32,
    pub metadata: Metadata,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    pub name: LeaseName,
    pub token: FencingToken,
    /// The ttl to count from now, or `None` for the one of the grant. It never moves the expiry to an earlier moment.
    pub ttl: Option<Ttl>,
}

/// A place in a queue: a holder waits for a name at most once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WaiterId {
    pub name: LeaseName,
    pub holder: HolderId,
}

/// Bounds of the machine. Each refusal they cause is named in [`Refusal`](super::Refusal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Most names that are held, waited for or delayed at once.
    pub max_leases: u64,
    /// Most waiters in one queue.
    pub max_waiters: u32,
    /// Transitions kept for each name.
    pub history: u32,
    /// Ended leases stay listable for this long, in milliseconds.
    pub ended_keep_ms: u64,
    /// Most ended leases that stay listable.
    pub ended_keep: u64,
    /// A waiter that nobody asks for is dropped after this long, in milliseconds.
    pub patience_ms: u64,
}

impl Limits {
    /// Every replica starts with these limits; only [`Command::SetLimits`] and snapshots replace them.
    ///
    /// The values are frozen. Replicas that start with different values diverge.
    pub const INITIAL: Limits = Limits {
        max_leases: 2_000_000,
        max_waiters: 10_000,
        history: 16,
        ended_keep_ms: 10 * 60 * 1000,
        ended_keep: 10_000,
        patience_ms: 10_000,
    };
}

impl Default for Limits {
    /// The limits of a configuration that names none.
    fn default() -> Limits {
        Limits::INITIAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_limits_are_frozen() {
        let Limits { max_leases, max_waiters, history, ended_keep_ms, ended_keep, patience_ms } = Limits::INITIAL;
        assert_eq!((max_leases, max_waiters, history), (2_000_000, 10_000, 16));
        assert_eq!((ended_keep_ms, ended_keep, patience_ms), (600_000, 10_000, 10_000));
    }
}
