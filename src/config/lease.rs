//! `[lease]`: the valid ttls, and the limits of the lease machine.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::reader::{Found, within};
use crate::api::TtlMs;
use crate::lease::Limits;
use crate::types::{MAX_TTL_MS, MIN_TTL_MS, Ttl};

/// The ttl of a request without one, in milliseconds.
const DEFAULT_TTL_MS: u64 = 30_000;
/// Maximum time between two ticks while the lease machine has a deadline, in milliseconds.
const DEFAULT_TICK_MS: u64 = 1_000;

/// Upper bound of `max_waiters`. This many waiters without metadata need less memory than
/// [`MAX_RETAINED_NAME_BYTES`](crate::lease::MAX_RETAINED_NAME_BYTES).
const MAX_WAITERS: u64 = 100_000;
/// Upper bound of `ended_keep_ms`: a week.
const MAX_ENDED_KEEP_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Upper bound of `waiter_timeout_ms`: 10 minutes.
const MAX_WAITER_TIMEOUT_MS: u64 = 10 * 60 * 1000;

/// The lease machine's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseSettings {
    /// The bounds on leases, waiters and history.
    pub limits: Limits,
    /// Maximum interval between two log entries with the cluster time, in milliseconds, while a lease or a waiter has
    /// a deadline. After the failure of a leader, leases last longer by the outage and at most one such interval.
    pub tick_ms: u64,
}

impl Default for LeaseSettings {
    fn default() -> LeaseSettings {
        LeaseSettings { limits: Limits::default(), tick_ms: DEFAULT_TICK_MS }
    }
}

/// The ttls that clients of this cluster may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TtlPolicy {
    /// The ttl of a request without one, in milliseconds.
    pub default_ms: u64,
    /// The shortest ttl, in milliseconds.
    pub min_ms: u64,
    /// The longest finite ttl, in milliseconds.
    pub max_ms: u64,
    /// Whether a client may request an infinite ttl: such a lease ends only by a release or a revoke.
    pub infinite: bool,
}

impl Default for TtlPolicy {
    fn default() -> TtlPolicy {
        TtlPolicy { default_ms: DEFAULT_TTL_MS, min_ms: MIN_TTL_MS, max_ms: MAX_TTL_MS, infinite: true }
    }
}

impl TtlPolicy {
    /// Returns the requested ttl if this cluster allows it.
    ///
    /// # Errors
    ///
    /// The ttl is outside the bounds. The error has the bounds.
    pub fn check(&self, requested: TtlMs) -> Result<Ttl, TtlRefused> {
        let TtlPolicy { min_ms: min, max_ms: max, .. } = *self;
        match requested {
            TtlMs::Infinite if self.infinite => Ok(Ttl::INFINITE),
            TtlMs::Infinite => Err(TtlRefused::Infinite { max }),
            TtlMs::Millis(ms) => {
                let ttl = Ttl::millis(ms).ok().filter(|_| (min..=max).contains(&ms));
                ttl.ok_or(TtlRefused::Outside { ms, min, max })
            }
        }
    }
}

/// A ttl that the cluster's settings do not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TtlRefused {
    /// The ttl is outside the bounds.
    #[error("ttl_ms {ms} is outside {min} to {max}, the bounds of this cluster")]
    Outside {
        /// The ttl in milliseconds.
        ms: u64,
        /// The shortest ttl in milliseconds.
        min: u64,
        /// The longest ttl in milliseconds.
        max: u64,
    },
    /// The cluster allows no infinite ttl.
    #[error("this cluster allows no infinite ttl: request at most {max} ms")]
    Infinite {
        /// The longest ttl in milliseconds.
        max: u64,
    },
}

/// `[lease]`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct LeaseSection {
    #[serde(deserialize_with = "within::<_, _, MIN_TTL_MS, MAX_TTL_MS>")]
    default_ttl_ms: u64,
    #[serde(deserialize_with = "within::<_, _, MIN_TTL_MS, MAX_TTL_MS>")]
    min_ttl_ms: u64,
    #[serde(deserialize_with = "within::<_, _, MIN_TTL_MS, MAX_TTL_MS>")]
    max_ttl_ms: u64,
    allow_infinite_ttl: bool,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000_000>")]
    max_leases: u64,
    #[serde(deserialize_with = "within::<_, _, 0, MAX_WAITERS>")]
    max_waiters: u32,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000>")]
    history: u32,
    #[serde(deserialize_with = "within::<_, _, 0, MAX_ENDED_KEEP_MS>")]
    ended_keep_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 0, 1_000_000>")]
    ended_keep: u64,
    #[serde(deserialize_with = "within::<_, _, 1_000, MAX_WAITER_TIMEOUT_MS>")]
    waiter_timeout_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 50, 60_000>")]
    tick_ms: u64,
}

impl LeaseSection {
    pub fn new(settings: &LeaseSettings, ttl: &TtlPolicy) -> LeaseSection {
        let LeaseSettings { limits, tick_ms } = *settings;
        let Limits { max_leases, max_waiters, history, ended_keep_ms, ended_keep, waiter_timeout_ms } = limits;
        LeaseSection {
            default_ttl_ms: ttl.default_ms,
            min_ttl_ms: ttl.min_ms,
            max_ttl_ms: ttl.max_ms,
            allow_infinite_ttl: ttl.infinite,
            max_leases,
            max_waiters,
            history,
            ended_keep_ms,
            ended_keep,
            waiter_timeout_ms,
            tick_ms,
        }
    }

    pub fn settings(&self) -> LeaseSettings {
        let limits = Limits {
            max_leases: self.max_leases,
            max_waiters: self.max_waiters,
            history: self.history,
            ended_keep_ms: self.ended_keep_ms,
            ended_keep: self.ended_keep,
            waiter_timeout_ms: self.waiter_timeout_ms,
        };
        LeaseSettings { limits, tick_ms: self.tick_ms }
    }

    pub fn ttl(&self) -> TtlPolicy {
        TtlPolicy {
            default_ms: self.default_ttl_ms,
            min_ms: self.min_ttl_ms,
            max_ms: self.max_ttl_ms,
            infinite: self.allow_infinite_ttl,
        }
    }
}

/// Accepts `patience_ms`, the former name of `waiter_timeout_ms`. With a serde alias, the default under the new name
/// would be a duplicate. Returns whether the file uses it.
pub(super) fn accept_former_key(values: &mut Value, found: &mut Found) -> bool {
    let Some(Value::Object(lease)) = values.get_mut("lease") else { return false };
    let Some(former) = lease.remove("patience_ms") else { return false };
    if lease.contains_key("waiter_timeout_ms") {
        found.add("lease.patience_ms", "is the former name of waiter_timeout_ms: remove one of them");
        return false;
    }
    lease.insert("waiter_timeout_ms".to_owned(), former);
    true
}

/// Gives the problems of `waiter_timeout_ms` the former name, which the file uses.
pub(super) fn name_former_key(found: &mut Found) {
    for problem in found.0.iter_mut().filter(|problem| problem.path == "lease.waiter_timeout_ms") {
        problem.path = "lease.patience_ms".to_owned();
    }
}

/// Adds the first pair of settings that conflict.
pub(super) fn validate(ttl: &TtlPolicy, found: &mut Found) {
    let TtlPolicy { default_ms, min_ms, max_ms, .. } = *ttl;
    if min_ms > max_ms {
        found.add_first("lease.min_ttl_ms", format!("{min_ms} must not be above max_ttl_ms, {max_ms}"));
    } else if !(min_ms..=max_ms).contains(&default_ms) {
        let text = format!("{default_ms} must be from min_ttl_ms, {min_ms}, to max_ttl_ms, {max_ms}");
        found.add_first("lease.default_ttl_ms", text);
    }
}
