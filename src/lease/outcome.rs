//! Timer the lease machine answers and what it tells the world.

use serde::{Deserialize, Serialize};

use crate::token::FencingToken;
use crate::types::{ClusterMs, HolderId, LeaseName, Metadata, Ttl};

/// The answer to one [`Command`](super::Command). Refusals are values, not errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Acquired now, or held already by this holder (`fresh` tells which).
    Held {
        lease: Lease,
        fresh: bool,
    },
    /// In the queue; `place` 0 is next.
    Queued {
        place: u32,
    },
    /// One answer for each renewal, in the order asked.
    Renewed(Vec<Result<Lease, Lost>>),
    /// `false`: it was not held with that token, and nothing changed.
    Released(bool),
    /// How many holders lost the lease.
    Revoked(u32),
    /// The new holder's lease.
    HandedOver(Lease),
    /// How many of the waiters named were still waiting.
    Waiting(u32),
    /// Done, with nothing to say.
    Done,
    Refused(Refusal),
}

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Somebody else holds it (for a counted lease: as many as may).
    Held {
        holder: HolderId,
        token: FencingToken,
        granted_wall_ms: u64,
        /// Milliseconds until it can expire, `None` when it has an infinite ttl.
        retry_after_ms: Option<u64>,
        waiters: u32,
    },
    /// Free, but not to be granted for this long yet.
    LockDelay { retry_after_ms: u64 },
    /// The queue has as many waiters as it may.
    QueueFull { max_waiters: u32 },
    /// As many leases exist as may.
    TooManyLeases { max_leases: u64 },
    /// The lease is held with another limit.
    LimitDiffers { limit: u32 },
    /// The token is not the current one of this holder.
    Lost(Lost),
    /// The one a hand-over names does not wait, or nobody does.
    NoSuchWaiter,
    /// The name was granted at this very log position already: one entry grants a name once. Propose again.
    GrantedInThisEntry,
    /// The holders and waiters of the lease would keep more bytes than they may.
    LeaseFull { max_bytes: u64 },
    /// The metadata has another version than the request replaces.
    MetadataChanged { version: u64 },
}

/// Why a holder does not have the lease it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub cause: LostCause,
    /// Who holds the lease now, if anybody does.
    pub holder: Option<HolderId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LostCause {
    Expired,
    Released,
    Revoked,
    HandedOver,
    /// The token was never granted to this holder, or so long ago that it is forgotten.
    Unknown,
}

/// One holder's lease as the state has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub name: LeaseName,
    pub holder: HolderId,
    pub token: FencingToken,
    pub ttl: Ttl,
    /// The last millisecond of cluster time in which it is held; `None` for an infinite ttl or an ended lease.
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
    /// How often the metadata was replaced during this grant.
    pub metadata_version: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LeaseState {
    Active,
    Expired,
    Released,
    Revoked,
    HandedOver,
}

/// One change of who holds a lease. The watch delivers each of them once, in the order of (`index`, `part`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Log index of the entry that caused it.
    pub index: u64,
    /// Which of that entry's transitions this is, from 0.
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
    Revoked { reason: String },
    HandedOver { to: HolderId },
}

impl Change {
    /// Timer a caller wrote into it.
    pub(super) fn text(&self) -> &str {
        match self {
            Change::Granted(_) | Change::Expired | Change::Released => "",
            Change::Revoked { reason } => reason,
            Change::HandedOver { to } => to.as_str(),
        }
    }
}

/// How a grant came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrantCause {
    /// Asked for and free.
    Asked,
    /// It was this waiter's turn.
    Queue,
    /// The holder before gave it.
    HandOver,
}

/// A place in a queue, as the state has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    pub holder: HolderId,
    /// Cluster time when it joined.
    pub since: ClusterMs,
    pub since_wall_ms: u64,
    /// The last millisecond of cluster time in which it waits.
    pub until: ClusterMs,
}

/// Timer an applied entry means for those who listen: handed to the watch and to waiting requests, never to state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    pub transitions: Vec<Transition>,
    /// Waiters that left a queue without a grant, and why.
    pub dropped: Vec<DroppedWaiter>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedWaiter {
    pub waiter: super::WaiterId,
    pub cause: DropCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// Its wait ended.
    WaitTimeout,
    /// Nobody asked for it within the patience.
    Abandoned,
    /// It left by itself.
    Left,
}
