//! What a member is, and how it is written into a lease.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{Lease, LeaseState, Timestamp};
use crate::client::LeaseOptions;
use crate::token::FencingToken;
use crate::types::{InvalidValue, Metadata, OWN_KEYS};

/// Most members of a group: what one page of a list holds, so that a list is one consistent read. Joining is refused
/// beyond it.
pub const MAX_MEMBERS: usize = 1_000;

/// The key in a member's metadata that has its weight, in decimal. A lease under the prefix without it is no member.
pub const WEIGHT_KEY: &str = "tenure.weight";
/// The key in a member's metadata that says whether it is ready: `true` or `false`.
pub const READY_KEY: &str = "tenure.ready";

/// A member of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub id: String,
    /// Its share of what is placed, beside the others'. 0: it is there, and nothing is placed on it.
    pub weight: u32,
    pub is_ready: bool,
    /// What it says of itself.
    pub metadata: BTreeMap<String, String>,
    /// Of its membership. It is another one after it left, or was lost, and came back.
    pub token: FencingToken,
    /// Who holds its membership.
    pub holder: String,
    /// When it joined, by a wall clock: for people.
    pub since: Timestamp,
}

impl Member {
    /// The member that a lease is; `None` if it is another lease.
    pub(super) fn of(mut lease: Lease, prefix: &str) -> Option<Member> {
        let id = lease.name.strip_prefix(prefix)?.to_owned();
        let weight = lease.metadata.get(WEIGHT_KEY)?.parse().ok()?;
        let is_ready = lease.metadata.get(READY_KEY).is_some_and(|ready| ready == "true");
        lease.metadata.retain(|key, _| !key.starts_with(OWN_KEYS));
        (lease.state == LeaseState::Active).then_some(Member {
            id,
            weight,
            is_ready,
            metadata: lease.metadata,
            token: lease.token,
            holder: lease.holder,
            since: lease.granted_at,
        })
    }
}

/// How a process is a member. What is not said has the default that its method names.
///
/// ```
/// use std::time::Duration;
/// use tenure::group::MemberOptions;
///
/// // In the region that only stands by: there, and never picked.
/// let gated = MemberOptions::new("eu-2-host-7").weight(0).ttl(Duration::from_secs(15));
/// # let _ = gated;
/// ```
#[derive(Clone, Debug)]
pub struct MemberOptions {
    pub(super) id: String,
    pub(super) weight: u32,
    pub(super) is_ready: bool,
    metadata: Metadata,
    lease: LeaseOptions,
    pub(super) refresh: Duration,
}

impl MemberOptions {
    /// A member with this id, which no other member may have: `[A-Za-z0-9._:-]+`, short enough that the group's name, a
    /// colon and it are a lease's name.
    pub fn new(id: impl Into<String>) -> MemberOptions {
        MemberOptions {
            id: id.into(),
            weight: 1,
            is_ready: true,
            metadata: Metadata::default(),
            lease: LeaseOptions::new(),
            refresh: Duration::from_secs(1),
        }
    }

    /// Its share of what is placed, beside the others'. 0 keeps it in the group and places nothing on it. 1.
    pub fn weight(self, weight: u32) -> MemberOptions {
        MemberOptions { weight, ..self }
    }

    /// Whether it is ready as soon as it has joined. True; if not, [`Membership::set_ready`](super::Membership::set_ready)
    /// says when.
    pub fn ready(self, is_ready: bool) -> MemberOptions {
        MemberOptions { is_ready, ..self }
    }

    /// What the others see of it: its address, for instance. Keys that start with `tenure.` are refused. None if not
    /// said.
    pub fn metadata(self, metadata: Metadata) -> MemberOptions {
        MemberOptions { metadata, ..self }
    }

    /// How long the others count it in after it died ([`LeaseOptions::ttl`]). The cluster's default if not said.
    pub fn ttl(self, ttl: Duration) -> MemberOptions {
        MemberOptions { lease: self.lease.ttl(ttl), ..self }
    }

    /// The list of members is read at least so often, also if nobody came or went: so late is seen what is not that, and
    /// so old is a list at most while the cluster can be asked. 1 s; at least 10 ms.
    pub fn refresh(self, refresh: Duration) -> MemberOptions {
        MemberOptions { refresh: refresh.max(Duration::from_millis(10)), ..self }
    }

    /// What is written beside the membership's lease.
    pub(super) fn own_metadata(&self, is_ready: bool) -> Result<Metadata, InvalidValue> {
        self.metadata.with_own([(WEIGHT_KEY, self.weight.to_string()), (READY_KEY, is_ready.to_string())])
    }

    pub(super) fn lease_options(&self, is_ready: bool) -> Result<LeaseOptions, InvalidValue> {
        Ok(self.lease.clone().metadata(self.own_metadata(is_ready)?))
    }
}
