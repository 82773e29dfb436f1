//! `[lease]`: what may be asked for, and the bounds of the lease machine.

use super::number::{self, Number};
use super::reader::Reader;
use crate::lease::Limits;
use crate::types::{MAX_TTL_MS, MIN_TTL_MS, Ttl};

/// Ttl of a request that names none, in milliseconds.
const DEFAULT_TTL_MS: u64 = 30_000;
/// Longest time between two ticks while anything has a deadline, in milliseconds.
const DEFAULT_TICK_MS: u64 = 1_000;

/// Highest `max_waiters`: so many waiters without metadata are below [`MAX_NAME_BYTES_KEPT`](crate::lease::MAX_NAME_BYTES_KEPT).
const MOST_WAITERS: u64 = 100_000;

/// The lease machine's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    pub limits: Limits,
    /// Cluster time reaches the log at least this often, in milliseconds, while anything has a deadline. After a
    /// leader's end leases live longer by the outage and at most one such interval.
    pub tick_ms: u64,
}

impl Default for LeaseSettings {
    fn default() -> LeaseSettings {
        LeaseSettings { limits: Limits::default(), tick_ms: DEFAULT_TICK_MS }
    }
}

/// Which ttls this cluster's clients may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlPolicy {
    /// For a request that names none, in milliseconds.
    pub default_ms: u64,
    /// Shortest, in milliseconds.
    pub min_ms: u64,
    /// Longest finite one, in milliseconds.
    pub max_ms: u64,
    /// Whether a lease may be held until it is released or revoked.
    pub infinite: bool,
}

impl Default for TtlPolicy {
    fn default() -> TtlPolicy {
        TtlPolicy { default_ms: DEFAULT_TTL_MS, min_ms: MIN_TTL_MS, max_ms: MAX_TTL_MS, infinite: true }
    }
}

impl TtlPolicy {
    /// The ttl for a request that names none.
    pub fn default_ttl(&self) -> Ttl {
        Ttl::Finite(self.default_ms)
    }

    /// Passes a ttl that this cluster allows.
    ///
    /// # Errors
    ///
    /// It is outside the bounds, which are in the error.
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
pub enum TtlRefused {
    #[error("ttl_ms {ms} is outside {min} to {max}, which this cluster allows")]
    Outside { ms: u64, min: u64, max: u64 },
    #[error("this cluster allows no infinite ttl; the longest is {max} ms")]
    Infinite { max: u64 },
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
        max: MOST_WAITERS,
        get: |settings| settings.limits.max_waiters.into(),
        set: |settings, value| settings.limits.max_waiters = narrow(value),
    },
    Number {
        key: "history",
        min: 1,
        max: 1_000,
        get: |settings| settings.limits.history.into(),
        set: |settings, value| settings.limits.history = narrow(value),
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
    if let Some(clash) = clash(&ttl) {
        lease.problem(clash);
    }
    let mut settings = LeaseSettings::default();
    number::read(&NUMBERS, lease, &mut settings);
    (settings, ttl)
}

/// Everything that is wrong with settings that a program made.
pub(super) fn problems(settings: &LeaseSettings, ttl: &TtlPolicy) -> Vec<String> {
    let mut problems = number::check(&TTL_NUMBERS, ttl);
    problems.extend(clash(ttl));
    problems.extend(number::check(&NUMBERS, settings));
    problems
}

/// What does not fit together.
fn clash(ttl: &TtlPolicy) -> Option<String> {
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

fn narrow(number: u64) -> u32 {
    u32::try_from(number).expect("the bounds of the numbers that it is used for end below 2^32")
}
