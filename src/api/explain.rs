//! Why things are as they are with one lease.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Event, GrantCause, Lease, Waiter};

/// Who holds a lease, who is next, and how one holder stands with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    pub name: String,
    /// The same in words, for people.
    pub summary: String,
    /// How many hold it.
    pub holders: u32,
    /// The present holders in the order of their tokens: at most 1,000 of them and about 1 MiB.
    pub held: Vec<Lease>,
    /// Nobody gets it for this long, after an expiry or a revoke. `null`: there is no such delay.
    pub lock_delay_left_ms: Option<u64>,
    /// Who gets it next.
    pub next: Option<Waiter>,
    pub waiters: u32,
    /// How the holder that was asked about stands with it; absent if none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
}

/// How one holder stands with one lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Standing {
    Holds {
        lease: Box<Lease>,
        /// How it got it; `null` when that is forgotten.
        cause: Option<GrantCause>,
    },
    Waits {
        waiter: Waiter,
    },
    /// Held it; this event ended that.
    Ended {
        event: Event,
    },
    /// Neither holds nor waits, and no grant of it is remembered.
    Unknown,
}
