//! `[http]`: the limits of the public listener.

use super::number::{self, Number};
use super::reader::Reader;

/// The limits of a node's listener. Above a limit, the node rejects further requests or connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpLimits {
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Maximum number of claims, revokes and reads in progress. A quarter of them runs at a time; the others wait for
    /// up to 250 ms. Renewals, releases and handovers do not count: overload must not cost a holder its lease.
    pub max_requests: usize,
    /// Maximum number of claims that wait in a queue.
    pub max_waits: usize,
    /// Maximum number of open watches.
    pub max_watches: usize,
    /// Memory for the bodies of all requests, in MiB. Claims get a quarter; renewals, releases and handovers get the
    /// rest.
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

/// Upper bound of the limits that count sockets.
const MAX_SOCKETS: u64 = 1_000_000;

const NUMBERS: [Number<HttpLimits>; 5] = [
    Number {
        key: "max_connections",
        min: 16,
        max: MAX_SOCKETS,
        get: |limits| limits.max_connections as u64,
        set: |limits, value| limits.max_connections = value as usize,
    },
    Number {
        key: "max_requests",
        min: 16,
        // A follower may forward all of them to the leader on one connection.
        max: 16_384,
        get: |limits| limits.max_requests as u64,
        set: |limits, value| limits.max_requests = value as usize,
    },
    Number {
        key: "max_waits",
        min: 0,
        // As for `max_requests`.
        max: 16_384,
        get: |limits| limits.max_waits as u64,
        set: |limits, value| limits.max_waits = value as usize,
    },
    Number {
        key: "max_watches",
        min: 0,
        max: MAX_SOCKETS,
        get: |limits| limits.max_watches as u64,
        set: |limits, value| limits.max_watches = value as usize,
    },
    Number {
        key: "body_budget_mib",
        // With less, the largest body would not fit into its share of the budget.
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
