//! `[lease]`: what may be asked for, and the bounds of the lease machine.

use super::reader::Reader;
use crate::lease::Limits;
use crate::types::{MAX_TTL_MS, MIN_TTL_MS, Ttl};

/// Ttl of a request that names none, in milliseconds.
const DEFAULT_TTL_MS: u64 = 30_000;
/// Longest time between two ticks while anything has a deadline, in milliseconds.
const DEFAULT_TICK_MS: u64 = 1_000;

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

pub(super) fn read(lease: &mut Reader) -> (LeaseSettings, TtlPolicy) {
    let ttl = read_ttl(lease);
    (LeaseSettings { limits: read_limits(lease), tick_ms: read_tick(lease) }, ttl)
}

fn read_ttl(lease: &mut Reader) -> TtlPolicy {
    let base = TtlPolicy::default();
    let ttl = TtlPolicy {
        default_ms: lease.number("default_ttl_ms", base.default_ms, MIN_TTL_MS, MAX_TTL_MS),
        min_ms: lease.number("min_ttl_ms", base.min_ms, MIN_TTL_MS, MAX_TTL_MS),
        max_ms: lease.number("max_ttl_ms", base.max_ms, MIN_TTL_MS, MAX_TTL_MS),
        infinite: lease.flag("allow_infinite_ttl", base.infinite),
    };
    if ttl.min_ms > ttl.max_ms {
        lease.problem(format!("min_ttl_ms: {} must not be above max_ttl_ms, {}", ttl.min_ms, ttl.max_ms));
    } else if !(ttl.min_ms..=ttl.max_ms).contains(&ttl.default_ms) {
        lease.problem(format!(
            "default_ttl_ms: {} must be from min_ttl_ms, {}, to max_ttl_ms, {}",
            ttl.default_ms, ttl.min_ms, ttl.max_ms
        ));
    }
    ttl
}

fn read_limits(lease: &mut Reader) -> Limits {
    let base = Limits::default();
    let narrow = |number: u64| u32::try_from(number).expect("the range that was read with ends below 2^32");
    Limits {
        max_leases: lease.number("max_leases", base.max_leases, 1, 10_000_000),
        max_waiters: narrow(lease.number("max_waiters", base.max_waiters.into(), 0, 1_000_000)),
        history: narrow(lease.number("history", base.history.into(), 1, 1_000)),
        ended_keep_ms: lease.number("ended_keep_ms", base.ended_keep_ms, 0, 7 * 24 * 60 * 60 * 1000),
        ended_keep: lease.number("ended_keep", base.ended_keep, 0, 1_000_000),
        patience_ms: lease.number("patience_ms", base.patience_ms, 1_000, 10 * 60 * 1000),
    }
}

fn read_tick(lease: &mut Reader) -> u64 {
    lease.number("tick_ms", DEFAULT_TICK_MS, 50, 60_000)
}
