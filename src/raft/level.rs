//! The feature level of a cluster: what all its members understand.
//!
//! A release that adds something to logs, snapshots or messages between nodes has a higher level than the one before.
//! The level of a cluster is replicated. The leader raises it when all members support more, and it never falls. So a
//! cluster with members of two releases uses only what both understand.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::log::Content;
use crate::lease::Command;

/// A number for all that a release understands. A level includes all lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FeatureLevel(pub u32);

impl FeatureLevel {
    /// The level of a new cluster: leases, members and backups.
    pub const FIRST: FeatureLevel = FeatureLevel(1);
    /// Access control, and leases that belong to principals.
    pub const ACCESS_CONTROL: FeatureLevel = FeatureLevel(2);
    /// Forwarded requests with the span of the caller.
    pub const TRACES: FeatureLevel = FeatureLevel(3);
    /// Forwarded requests with the term of the leader.
    pub const REQUEST_TERMS: FeatureLevel = FeatureLevel(4);
    /// Access tokens that expire.
    pub const TOKEN_EXPIRY: FeatureLevel = FeatureLevel(5);
    /// Appends that tell a follower how old they are.
    pub const DATED_APPENDS: FeatureLevel = FeatureLevel(6);
    /// The highest level that this build understands.
    pub const SUPPORTED: FeatureLevel = FeatureLevel::DATED_APPENDS;

    /// The lowest level at which a cluster can have this entry.
    pub fn of(content: &Content) -> FeatureLevel {
        match content {
            Content::Leases(batch) if batch.commands.iter().any(|command| matches!(command, Command::As { .. })) => {
                FeatureLevel::ACCESS_CONTROL
            }
            Content::Leases(_) | Content::Joined(_) => FeatureLevel::FIRST,
            Content::Access(change) if change.has_expiry() => FeatureLevel::TOKEN_EXPIRY,
            Content::Access(_) => FeatureLevel::ACCESS_CONTROL,
            Content::Level(level) => *level,
        }
    }

    /// # Errors
    ///
    /// This level is above `supported`.
    pub fn check(self, supported: FeatureLevel) -> Result<(), NewerLevel> {
        if self > supported { Err(NewerLevel { level: self, supported }) } else { Ok(()) }
    }
}

impl Default for FeatureLevel {
    fn default() -> FeatureLevel {
        FeatureLevel::FIRST
    }
}

impl fmt::Display for FeatureLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The cluster uses more than this build understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster has feature level {level}; this program supports levels up to {supported}: run the newer version again"
)]
pub struct NewerLevel {
    level: FeatureLevel,
    supported: FeatureLevel,
}
