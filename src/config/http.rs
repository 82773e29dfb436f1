//! `[http]`: how much the public listener takes at once.

use super::number::{self, Number};
use super::reader::Reader;

/// What a node's listener has in hand at once, at most. One more of each is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Open connections.
    pub max_connections: usize,
    /// Claims, revokes and reads. A quarter of them is carried out at a time; the others wait for their turn, for
    /// 250 ms at most. Renewals, releases and hand-overs do not count: who has a lease gets in when others do not.
    pub max_requests: usize,
    /// Claims that wait in a queue.
    pub max_waits: usize,
    /// Open watches.
    pub max_watches: usize,
    /// MiB of memory for the bodies of all requests. A quarter is for claims, the rest for what keeps or frees a lease.
    pub body_budget_mib: usize,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            max_connections: 25_000,
            max_requests: 1_024,
            max_waits: 10_000,
            max_watches: 10_000,
            body_budget_mib: 64,
        }
    }
}

const MOST: u64 = 1_000_000;

const NUMBERS: [Number<HttpLimits>; 5] = [
    Number {
        key: "max_connections",
        min: 16,
        max: MOST,
        get: |limits| limits.max_connections as u64,
        set: |limits, value| limits.max_connections = value as usize,
    },
    Number {
        key: "max_requests",
        min: 16,
        // All of them may be on their way to the leader on one connection.
        max: 16_384,
        get: |limits| limits.max_requests as u64,
        set: |limits, value| limits.max_requests = value as usize,
    },
    Number {
        key: "max_waits",
        min: 0,
        // So may these.
        max: 16_384,
        get: |limits| limits.max_waits as u64,
        set: |limits, value| limits.max_waits = value as usize,
    },
    Number {
        key: "max_watches",
        min: 0,
        max: MOST,
        get: |limits| limits.max_watches as u64,
        set: |limits, value| limits.max_watches = value as usize,
    },
    Number {
        key: "body_budget_mib",
        // The largest body fits into the share for it.
        min: 4,
        max: 16_384,
        get: |limits| limits.body_budget_mib as u64,
        set: |limits, value| limits.body_budget_mib = value as usize,
    },
];

pub(super) fn read(http: &mut Reader) -> HttpLimits {
    let mut limits = HttpLimits::default();
    number::read(&NUMBERS, http, &mut limits);
    limits
}
