//! Requests to the lease machine.
//!
//! Logs store these types. The fields of a variant are frozen, and a new variant goes at the end.

use serde::{Deserialize, Serialize};

use crate::token::FencingToken;
use crate::types::{AccessName, ClusterMs, HolderId, LeaseName, Metadata, Ttl};

/// One log entry: commands that the machine applies in order, at one position and one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub stamp: Stamp,
    pub commands: Vec<Command>,
}

/// When the leader proposed an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Cluster time. Apply uses the later one of this time and the machine's time.
    pub now: ClusterMs,
    /// Wall clock, milliseconds since the Unix epoch. For display only: no rule reads it.
    pub wall_ms: u64,
}

/// One request to the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Claims a lease, or joins its queue. A claim by the holder keeps the token and can only extend the deadline.
    Acquire(Acquire),
    /// Extends leases of one holder. Each lease has its own result.
    Renew { holder: HolderId, leases: Vec<Renewal> },
    /// Ends the holder's grant.
    Release { name: LeaseName, holder: HolderId, token: FencingToken },
    /// Ends every grant of a name, on behalf of an operator. Waiters keep their positions.
    Revoke { name: LeaseName, reason: String },
    /// Gives a lease to a waiter: to the named one, or to the first confirmed one.
    HandOver { name: LeaseName, holder: HolderId, token: FencingToken, to: Option<HolderId> },
    /// Confirms waiters that have an open request: their timeout starts again.
    KeepWaiting { waiters: Vec<WaiterId> },
    /// Removes a waiter from its queue. The outcome has the number of removed waiters, 0 or 1.
    LeaveQueue { waiter: WaiterId },
    /// Advances cluster time only.
    Tick,
    /// Replaces the bounds that apply reads. Replicated, so that nodes with different configuration files agree.
    SetLimits(Limits),
    /// Replaces the metadata of a held lease if `version` is its current version.
    UpdateMetadata { name: LeaseName, holder: HolderId, token: FencingToken, version: u64, metadata: Metadata },
    /// A command of a principal. It cannot touch the leases of other principals.
    As { principal: AccessName, command: HolderCommand },
}

/// The commands of [`Command`] that name a holder. A type of its own, so that a message cannot nest commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HolderCommand {
    Acquire(Acquire),
    Renew { holder: HolderId, leases: Vec<Renewal> },
    Release { name: LeaseName, holder: HolderId, token: FencingToken },
    HandOver { name: LeaseName, holder: HolderId, token: FencingToken, to: Option<HolderId> },
    UpdateMetadata { name: LeaseName, holder: HolderId, token: FencingToken, version: u64, metadata: Metadata },
}

impl Command {
    /// The command of a principal. A command that names no holder stays as it is.
    pub fn owned_by(self, principal: AccessName) -> Command {
        let command = match self {
            Command::Acquire(acquire) => HolderCommand::Acquire(acquire),
            Command::Renew { holder, leases } => HolderCommand::Renew { holder, leases },
            Command::Release { name, holder, token } => HolderCommand::Release { name, holder, token },
            Command::HandOver { name, holder, token, to } => HolderCommand::HandOver { name, holder, token, to },
            Command::UpdateMetadata { name, holder, token, version, metadata } => {
                HolderCommand::UpdateMetadata { name, holder, token, version, metadata }
            }
            command => return command,
        };
        Command::As { principal, command }
    }
}

impl From<HolderCommand> for Command {
    fn from(command: HolderCommand) -> Command {
        match command {
            HolderCommand::Acquire(acquire) => Command::Acquire(acquire),
            HolderCommand::Renew { holder, leases } => Command::Renew { holder, leases },
            HolderCommand::Release { name, holder, token } => Command::Release { name, holder, token },
            HolderCommand::HandOver { name, holder, token, to } => Command::HandOver { name, holder, token, to },
            HolderCommand::UpdateMetadata { name, holder, token, version, metadata } => {
                Command::UpdateMetadata { name, holder, token, version, metadata }
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    pub name: LeaseName,
    pub holder: HolderId,
    pub ttl: Ttl,
    /// Longest wait in the queue, in milliseconds. With `None` the machine refuses a held lease at once.
    pub wait_ms: Option<u64>,
    /// After an expiry or a revoke of this grant, the machine grants the lease to no one for this many milliseconds.
    pub lock_delay_ms: u64,
    /// Most holders at once; 1 for a plain lease. All holders and waiters of a name have the same limit.
    pub limit: u32,
    pub metadata: Metadata,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    pub name: LeaseName,
    pub token: FencingToken,
    /// The ttl from now on, or `None` for the ttl of the grant. A renewal never moves the deadline to an earlier time.
    pub ttl: Option<Ttl>,
}

/// Identifies a waiter. A holder waits for a name at most once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WaiterId {
    pub name: LeaseName,
    pub holder: HolderId,
}

/// Bounds on the leases of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Limits {
    /// Most names that have a holder, a waiter or a lock delay.
    pub max_leases: u64,
    /// Most waiters in one queue.
    pub max_waiters: u32,
    /// Most transitions in the history of one name.
    pub history: u32,
    /// Time for which lists show an ended lease, in milliseconds.
    pub ended_keep_ms: u64,
    /// Most ended leases in lists.
    pub ended_keep: u64,
    /// Time after which the machine drops a waiter without a request, in milliseconds.
    pub waiter_timeout_ms: u64,
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
        waiter_timeout_ms: 10_000,
    };
}

impl Default for Limits {
    /// The limits of a configuration that sets none.
    fn default() -> Limits {
        Limits::INITIAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{MAX_RETAINED_ENDED_BYTES, MAX_RETAINED_NAME_BYTES};

    #[test]
    fn initial_limits_are_frozen() {
        let Limits { max_leases, max_waiters, history, ended_keep_ms, ended_keep, waiter_timeout_ms } = Limits::INITIAL;
        assert_eq!((max_leases, max_waiters, history), (2_000_000, 10_000, 16));
        assert_eq!((ended_keep_ms, ended_keep, waiter_timeout_ms), (600_000, 10_000, 10_000));
    }

    #[test]
    fn bounds_of_retained_bytes_are_frozen() {
        assert_eq!((MAX_RETAINED_NAME_BYTES, MAX_RETAINED_ENDED_BYTES), (67_108_864, 536_870_912));
    }
}
