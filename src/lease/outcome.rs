//! Results of commands, and effects of log entries.

use serde::{Deserialize, Serialize};

use crate::token::FencingToken;
use crate::types::{ClusterMs, GrantCause, HolderId, LeaseName, LeaseState, LostReason, Metadata, Ttl};

/// The result of one [`Command`](super::Command). Refusals are values, not errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The holder has the lease. `fresh`: this command granted it.
    Held {
        lease: HolderLease,
        fresh: bool,
    },
    /// The holder waits; `place` is the number of waiters before it.
    Queued {
        place: u32,
    },
    /// One result for each renewal, in the order of the request.
    Renewed(Vec<Result<HolderLease, Lost>>),
    /// `false`: the holder did not have the lease with that token, and nothing changed.
    Released(bool),
    /// How many holders lost the lease.
    Revoked(u32),
    /// The lease of the new holder.
    HandedOver(HolderLease),
    /// How many of the named waiters were in a queue.
    Waiting(u32),
    /// The command succeeded and has no result.
    Done,
    Refused(Refusal),
}

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Another holder has the lease, or a counted lease has as many holders as its limit.
    Held {
        holder: HolderId,
        token: FencingToken,
        granted_wall_ms: u64,
        /// Milliseconds until the lease can expire; `None` for an infinite ttl.
        retry_after_ms: Option<u64>,
        waiters: u32,
    },
    /// The lease has no holder, but the machine grants it only after this time.
    LockDelay { retry_after_ms: u64 },
    /// The queue has `max_waiters` waiters.
    QueueFull { max_waiters: u32 },
    /// The machine has `max_leases` live names.
    TooManyLeases { max_leases: u64 },
    /// The holders or waiters of the lease have another limit.
    LimitDiffers { limit: u32 },
    /// The holder does not have the lease with this token.
    Lost(Lost),
    /// The named recipient of a hand-over does not wait, or the queue has no confirmed waiter.
    NoSuchWaiter,
    /// This log entry granted the name already, and one entry grants a name once. The leader proposes the claim again.
    GrantedInThisEntry,
    /// With this request the holders and waiters of the lease would retain more than `max_bytes`.
    LeaseFull { max_bytes: u64 },
    /// The metadata has this version, not the one in the request.
    MetadataChanged { version: u64 },
    /// The cluster was restored from a backup, and holders of the lost cluster may still be active.
    Restored { retry_after_ms: u64 },
    /// Another principal holds the lease or waits for it with the same holder id.
    HolderInUse,
}

/// Why a holder does not have a lease with a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub cause: LostReason,
    /// The current holder. A counted lease shows the one whose deadline is first.
    pub holder: Option<HolderId>,
}

/// One holder's lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderLease {
    pub name: LeaseName,
    pub holder: HolderId,
    pub token: FencingToken,
    pub ttl: Ttl,
    /// The last millisecond of cluster time before expiry; `None` for an infinite ttl or an ended lease.
    pub deadline: Option<ClusterMs>,
    pub state: LeaseState,
    pub granted_at: ClusterMs,
    pub granted_wall_ms: u64,
    pub renewed_at: ClusterMs,
    pub renewed_wall_ms: u64,
    pub renewals: u64,
    pub metadata: Metadata,
    pub limit: u32,
    pub lock_delay_ms: u64,
    pub waiters: u32,
    /// Number of metadata updates during this grant.
    pub metadata_version: u64,
}

/// The grant or the end of a lease. The watch delivers each transition once, in the order of (`index`, `part`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Index of the log entry that caused it.
    pub index: u64,
    /// Position among the transitions of that entry, from 0.
    pub part: u32,
    pub name: LeaseName,
    pub holder: HolderId,
    pub token: FencingToken,
    pub change: Change,
    pub at: ClusterMs,
    pub wall_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Granted(GrantCause),
    Expired,
    Released,
    Revoked {
        reason: String,
    },
    HandedOver {
        to: HolderId,
    },
    /// The cluster was restored from a backup.
    Restored,
}

impl Change {
    /// The text in it that a caller wrote.
    pub(super) fn text(&self) -> &str {
        match self {
            Change::Granted(_) | Change::Expired | Change::Released | Change::Restored => "",
            Change::Revoked { reason } => reason,
            Change::HandedOver { to } => to.as_str(),
        }
    }
}

/// A waiter in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    pub holder: HolderId,
    /// Cluster time at which it joined.
    pub since: ClusterMs,
    pub since_wall_ms: u64,
    /// The last millisecond of cluster time of its wait.
    pub until: ClusterMs,
}

/// Effects of an applied entry for watches and waiting requests. They are not part of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    pub transitions: Vec<Transition>,
    /// Waiters that left a queue without a grant.
    pub dropped: Vec<DroppedWaiter>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedWaiter {
    pub waiter: super::WaiterId,
    pub cause: DropCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// Its longest wait is over.
    WaitTimeout,
    /// No node had a request for it during [`Limits::waiter_timeout_ms`](super::Limits::waiter_timeout_ms), or no
    /// request confirmed it to a new leader in time.
    Abandoned,
    /// Its client left the queue.
    Left,
}
