//! States and causes. They have one form in the log, between nodes and in JSON.
//!
//! The log and the messages between nodes hold the position of a variant, so a new variant goes at the end.

use serde::{Deserialize, Serialize};

use super::open_enum::open_enum;

open_enum! {
    /// The state of one holder's lease.
    LeaseState {
        /// The holder has the lease.
        Active = "active",
        /// The ttl ended without a renewal.
        Expired = "expired",
        /// The holder released the lease.
        Released = "released",
        /// An operator revoked the lease.
        Revoked = "revoked",
        /// The holder handed the lease over to a waiter.
        HandedOver = "handed_over",
        /// The cluster was restored from a backup.
        Restored = "restored",
    }
}

open_enum! {
    /// Why a holder does not have a lease with a token.
    LostReason {
        /// The ttl ended without a renewal.
        Expired = "expired",
        /// The holder released the lease.
        Released = "released",
        /// An operator revoked the lease.
        Revoked = "revoked",
        /// The holder handed the lease over to a waiter.
        HandedOver = "handed_over",
        /// The cluster never granted this token to this holder, or has forgotten the grant.
        Unknown = "unknown",
        /// The cluster was restored from a backup.
        Restored = "restored",
    }
}

open_enum! {
    /// The cause of a grant.
    GrantCause {
        /// A claim for a free lease.
        Asked = "asked",
        /// The holder was the first confirmed waiter in the queue.
        Queue = "queue",
        /// The previous holder handed the lease over.
        HandOver = "hand_over",
    }
}

/// A right of a role. Logs and snapshots hold the position of a variant: append new ones at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Right {
    /// To read, list and watch leases.
    Read,
    /// To acquire, renew, release and hand over leases, and to read them.
    Hold,
    /// To revoke leases, and to read them.
    Operate,
    /// Everything: all other rights on all names, members, backups and access control.
    Admin,
}

impl Right {
    /// The right in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Hold => "hold",
            Right::Operate => "operate",
            Right::Admin => "admin",
        }
    }

    /// Whether a principal with this right has the other one, too.
    #[cfg(feature = "server")]
    pub(crate) fn includes(self, other: Right) -> bool {
        self == other || self == Right::Admin || other == Right::Read
    }

    /// What a principal without this right may not do with a lease.
    #[cfg(feature = "server")]
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Hold => "hold",
            Right::Operate => "revoke",
            Right::Admin => "manage",
        }
    }
}

/// Selects leases of a list by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StateFilter {
    /// A holder has the lease.
    Active,
    /// Active, and renewed at least once.
    Renewed,
    /// The ttl ended without a renewal.
    Expired,
    /// The holder released the lease.
    Released,
    /// An operator revoked the lease.
    Revoked,
    /// The holder handed the lease over to a waiter.
    HandedOver,
    /// The cluster was restored from a backup.
    Restored,
}

/// The consistency of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Consistency {
    /// The leader answers from memory while its leadership lease is valid, otherwise like `linearizable`.
    #[default]
    Leader,
    /// The leader confirms its leadership with a round trip to a majority.
    Linearizable,
    /// The node that receives the request answers from memory; `X-Tenure-Stale-Ms` is its maximum age in milliseconds.
    Stale,
}

open_enum! {
    /// Whether a member of the cluster takes part in it.
    MemberState {
        /// It answers, and has most of the log.
        Ok = "ok",
        /// It answers, and lacks 1,000 log entries or more.
        Lagging = "lagging",
        /// It does not answer.
        Unreachable = "unreachable",
    }
}

open_enum! {
    /// Whether the disk of a member works.
    DiskState {
        /// It has finished its writes, or the oldest one began less than 2 s ago.
        Ok = "ok",
        /// It has not finished a write for 2 s or more. A leader has transferred its leadership, and after 30 s the node
        /// fails.
        Stalled = "stalled",
    }
}

impl Consistency {
    /// The name in JSON and in queries.
    pub fn as_str(self) -> &'static str {
        match self {
            Consistency::Leader => "leader",
            Consistency::Linearizable => "linearizable",
            Consistency::Stale => "stale",
        }
    }
}

open_enum! {
    /// The Raft role of a node.
    Role {
        /// It leads the cluster.
        Leader = "leader",
        /// It votes, and follows the leader.
        Follower = "follower",
        /// It receives the log and does not vote.
        Learner = "learner",
    }
}
