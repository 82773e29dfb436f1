//! The explanation of one lease.

use serde::{Deserialize, Serialize};

use super::{Event, GrantCause, LeaseInfo, Waiter};

/// The holders of a lease, its first waiter, and the standing of one holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Explanation {
    /// The name of the lease.
    pub name: String,
    /// The explanation as text, for people.
    pub summary: String,
    /// Number of holders.
    pub holders: u32,
    /// Current holders in token order: at most 1,000, and about 1 MiB.
    pub held: Vec<LeaseInfo>,
    /// How long claims still get `lock_delay` (expiry, revoke, restore, change of leader), or `null`.
    pub lock_delay_left_ms: Option<u64>,
    /// The first waiter.
    pub next: Option<Waiter>,
    /// Number of waiters.
    pub waiters: u32,
    /// The standing of the `holder` in the request; absent if the request names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
}

/// The relation of one holder to one lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Standing {
    /// The holder has the lease.
    Holds {
        /// The lease.
        lease: Box<LeaseInfo>,
        /// The cause of its grant; `null` if the history has forgotten it.
        cause: Option<GrantCause>,
    },
    /// The holder waits in the queue.
    Waits {
        /// Its position in the queue.
        waiter: Waiter,
    },
    /// The holder had the lease; this event ended the last grant.
    Ended {
        /// The end of the grant.
        event: Event,
    },
    /// The holder neither has the lease nor waits, and the cluster remembers no end of its grants.
    Unknown,
    /// A status that this version does not know, from a newer server.
    #[serde(other)]
    Other,
}
