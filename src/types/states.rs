//! States and causes. They have one form in the log, between nodes and in JSON.
//!
//! The log and the messages between nodes hold the position of a variant, so a new variant goes at the end.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    Active,
    Expired,
    Released,
    Revoked,
    HandedOver,
}

/// Why a holder does not have a lease with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LostReason {
    Expired,
    Released,
    Revoked,
    HandedOver,
    /// The cluster never granted this token to this holder, or has forgotten the grant.
    Unknown,
}

/// The cause of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GrantCause {
    /// A claim for a free lease.
    Asked,
    /// The holder was the first confirmed waiter in the queue.
    Queue,
    /// The previous holder handed the lease over.
    HandOver,
}

/// Selects leases of a list by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StateFilter {
    Active,
    /// Active, and renewed at least once.
    Renewed,
    Expired,
    Released,
    Revoked,
    HandedOver,
}

/// The consistency of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// The leader answers from memory while its leadership lease is valid, otherwise like `linearizable`.
    #[default]
    Leader,
    /// The leader confirms its leadership with a round trip to a majority.
    Linearizable,
    /// The node that receives the request answers from memory; `X-Tenure-Stale-Ms` is its maximum age in milliseconds.
    Stale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Leader,
    Follower,
    Learner,
}
