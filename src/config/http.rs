//! `[http]`: the limits of the public listener.

use serde::{Deserialize, Serialize};

use super::reader::within;

/// Upper bound of the limits that count sockets.
const MAX_SOCKETS: u64 = 1_000_000;

/// The limits of a node's listener. Above a limit, the node rejects further requests or connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[non_exhaustive]
pub struct HttpLimits {
    /// Maximum number of open connections.
    #[serde(deserialize_with = "within::<_, _, 16, MAX_SOCKETS>")]
    pub max_connections: usize,
    /// Maximum number of claims, revokes and reads in progress. A quarter of them runs at a time; the others wait for
    /// up to 250 ms. Renewals, releases and handovers do not count: overload must not cost a holder its lease.
    // A follower may forward all of them to the leader on one connection.
    #[serde(deserialize_with = "within::<_, _, 16, 16_384>")]
    pub max_requests: usize,
    /// Maximum number of claims that wait in a queue.
    // As for `max_requests`.
    #[serde(deserialize_with = "within::<_, _, 0, 16_384>")]
    pub max_waits: usize,
    /// Maximum number of open watches.
    #[serde(deserialize_with = "within::<_, _, 0, MAX_SOCKETS>")]
    pub max_watches: usize,
    /// Memory for the bodies of all requests, in MiB. Claims get a quarter; renewals, releases and handovers get the
    /// rest.
    // With less than 4 MiB, the largest body would not fit into its share.
    #[serde(deserialize_with = "within::<_, _, 4, 16_384>")]
    pub body_budget_mib: usize,
    /// With access control: whether `/metrics` needs no credential.
    pub public_metrics: bool,
    /// Whether the listener also serves `/api/leases`, with the feature `compat-leases`.
    #[cfg(feature = "compat-leases")]
    pub compat_leases: bool,
}

/// The smallest `lease.history` with `http.compat_leases`. With less, the ids of two ended leases could be equal.
#[cfg(feature = "compat-leases")]
pub(super) const COMPAT_MIN_HISTORY: u32 = 2;

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            max_connections: 25_000,
            max_requests: 1_024,
            max_waits: 10_000,
            max_watches: 10_000,
            body_budget_mib: 64,
            public_metrics: false,
            #[cfg(feature = "compat-leases")]
            compat_leases: false,
        }
    }
}
