//! `[lease]`: the valid ttls, and the limits of the lease machine.

use super::number::{self, Number};
use super::reader::Reader;
use crate::lease::Limits;
use crate::types::{MAX_TTL_MS, MIN_TTL_MS, Ttl};

/// The ttl of a request without one, in milliseconds.
const DEFAULT_TTL_MS: u64 = 30_000;
/// Maximum time between two ticks while the lease machine has a deadline, in milliseconds.
const DEFAULT_TICK_MS: u64 = 1_000;

/// Upper bound of `max_waiters`. This many waiters without metadata need less memory than
/// [`MAX_NAME_BYTES_KEPT`](crate::lease::MAX_NAME_BYTES_KEPT).
const MAX_WAITERS: u64 = 100_000;

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
    /// The ttl of a request without one.
    pub fn default_ttl(&self) -> Ttl {
        Ttl::Finite(self.default_ms)
    }

    /// Returns the ttl if this cluster allows it.
    ///
    /// # Errors
    ///
    /// The ttl is outside the bounds. The error has the bounds.
    pub fn check(&self, ttl: Ttl) -> Result<Ttl, TtlRefused> {
        match ttl {
            Ttl::Infinite if !self.infinite => Err(TtlRefused::Infinite { max: self.max_ms }),
            Ttl::Finite(ms) if !(self.min_ms..=self.max_ms).contains(&ms) => {
                Err(TtlRefused::Outside { ms, min: self.min_ms, max: self.max_ms })
            }
            ttl => Ok(ttl),
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

const TTL_NUMBERS: [Number<TtlPolicy>; 3] = [
    Number {
        key: "default_ttl_ms",
        min: MIN_TTL_MS,
        max: MAX_TTL_MS,
        get: |settings| settings.default_ms,
        set: |settings, value| settings.default_ms = value,
    },
    Number {
        key: "min_ttl_ms",
        min: MIN_TTL_MS,
        max: MAX_TTL_MS,
        get: |settings| settings.min_ms,
        set: |settings, value| settings.min_ms = value,
    },
    Number {
        key: "max_ttl_ms",
        min: MIN_TTL_MS,
        max: MAX_TTL_MS,
        get: |settings| settings.max_ms,
        set: |settings, value| settings.max_ms = value,
    },
];

const NUMBERS: [Number<LeaseSettings>; 7] = [
    Number {
        key: "max_leases",
        min: 1,
        max: 10_000_000,
        get: |settings| settings.limits.max_leases,
        set: |settings, value| settings.limits.max_leases = value,
    },
    Number {
        key: "max_waiters",
        min: 0,
        max: MAX_WAITERS,
        get: |settings| settings.limits.max_waiters.into(),
        set: |settings, value| settings.limits.max_waiters = to_u32(value),
    },
    Number {
        key: "history",
        min: 1,
        max: 1_000,
        get: |settings| settings.limits.history.into(),
        set: |settings, value| settings.limits.history = to_u32(value),
    },
    Number {
        key: "ended_keep_ms",
        min: 0,
        max: 7 * 24 * 60 * 60 * 1000,
        get: |settings| settings.limits.ended_keep_ms,
        set: |settings, value| settings.limits.ended_keep_ms = value,
    },
    Number {
        key: "ended_keep",
        min: 0,
        max: 1_000_000,
        get: |settings| settings.limits.ended_keep,
        set: |settings, value| settings.limits.ended_keep = value,
    },
    Number {
        key: "patience_ms",
        min: 1_000,
        max: 10 * 60 * 1000,
        get: |settings| settings.limits.patience_ms,
        set: |settings, value| settings.limits.patience_ms = value,
    },
    Number {
        key: "tick_ms",
        min: 50,
        max: 60_000,
        get: |settings| settings.tick_ms,
        set: |settings, value| settings.tick_ms = value,
    },
];

pub(super) fn read(lease: &mut Reader) -> (LeaseSettings, TtlPolicy) {
    let mut ttl = TtlPolicy::default();
    number::read(&TTL_NUMBERS, lease, &mut ttl);
    ttl.infinite = lease.flag("allow_infinite_ttl", ttl.infinite);
    if let Some(conflict) = conflict(&ttl) {
        lease.problem(conflict);
    }
    let mut settings = LeaseSettings::default();
    number::read(&NUMBERS, lease, &mut settings);
    (settings, ttl)
}

/// All problems of settings that a program made.
pub(super) fn problems(settings: &LeaseSettings, ttl: &TtlPolicy) -> Vec<String> {
    let mut problems = number::check(&TTL_NUMBERS, ttl);
    problems.extend(conflict(ttl));
    problems.extend(number::check(&NUMBERS, settings));
    problems
}

/// The first pair of settings that conflict.
fn conflict(ttl: &TtlPolicy) -> Option<String> {
    if ttl.min_ms > ttl.max_ms {
        Some(format!("min_ttl_ms: {} must not be above max_ttl_ms, {}", ttl.min_ms, ttl.max_ms))
    } else if !(ttl.min_ms..=ttl.max_ms).contains(&ttl.default_ms) {
        Some(format!(
            "default_ttl_ms: {} must be from min_ttl_ms, {}, to max_ttl_ms, {}",
            ttl.default_ms, ttl.min_ms, ttl.max_ms
        ))
    } else {
        None
    }
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).expect("the upper bounds of u32 settings are below 2^32")
}
