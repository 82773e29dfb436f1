//! A member of a group, and its representation in a lease.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{LeaseInfo, LeaseState, Timestamp};
use crate::client::LeaseOptions;
use crate::token::FencingToken;
use crate::types::{InvalidValue, Metadata, OWN_KEYS};

/// Largest number of members of a group. It is the size of one page of leases, so that a list of members is one
/// consistent read. A join beyond it is refused.
pub const MAX_MEMBERS: usize = 1_000;

/// The metadata key of a member's weight, in decimal. A lease under the prefix without this key is no member.
pub const WEIGHT_KEY: &str = "tenure.weight";
/// The metadata key of a member's readiness: `true` or `false`.
pub const READY_KEY: &str = "tenure.ready";
/// The metadata key of a member's group. The lease `a:b:c` can be the member `b:c` of the group `a`, or the member `c` of
/// the group `a:b`. Members of versions before this key count in both.
pub const GROUP_KEY: &str = "tenure.group";

/// A member of a group.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Member {
    /// The id, unique in the group.
    pub id: String,
    /// The share of names that belong to this member, relative to the other weights. 0: no name belongs to it.
    pub weight: u32,
    /// Whether the placement may use this member.
    pub is_ready: bool,
    /// The metadata of the member ([`MemberOptions::metadata`]).
    pub metadata: BTreeMap<String, String>,
    /// The fencing token of the membership. A member that joins again gets a new token.
    pub token: FencingToken,
    /// The holder of the membership's lease.
    pub holder: String,
    /// The wall-clock time of the join. Use it for display only.
    pub since: Timestamp,
    /// The ttl of the membership. `None`: it is infinite.
    pub ttl: Option<Duration>,
}

impl Member {
    /// Reads a member from its lease. `None` if the lease is not the lease of a member.
    pub(super) fn of(mut lease: LeaseInfo, prefix: &str) -> Option<Member> {
        let id = lease.name.strip_prefix(prefix)?.to_owned();
        if lease.metadata.get(GROUP_KEY).is_some_and(|group| Some(group.as_str()) != prefix.strip_suffix(':')) {
            return None;
        }
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
            ttl: lease.ttl_ms.as_millis().map(Duration::from_millis),
        })
    }
}

/// Options of a member. Each method names the default of its option.
///
/// ```
/// use std::time::Duration;
/// use tenure::group::MemberOptions;
///
/// // A member of the standby region: it is in the group, but no name belongs to it.
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
    /// Options of a member with this id. No other member may have the id.
    ///
    /// An id matches `[A-Za-z0-9._:-]+`. The name of the group, a colon and the id must form a valid lease name.
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

    /// The share of names that belong to this member, relative to the other weights. With 0 the member is in the group,
    /// but no name belongs to it. Default: 1.
    pub fn weight(self, weight: u32) -> MemberOptions {
        MemberOptions { weight, ..self }
    }

    /// Whether the member is ready after the join. Default: `true`. After `false`, call
    /// [`Membership::set_ready`](super::Membership::set_ready) later.
    pub fn ready(self, is_ready: bool) -> MemberOptions {
        MemberOptions { is_ready, ..self }
    }

    /// Key-value pairs that the other members see, for example an address. Keys that start with `tenure.` are refused.
    /// Default: empty.
    pub fn metadata(self, metadata: Metadata) -> MemberOptions {
        MemberOptions { metadata, ..self }
    }

    /// How long the other members still see this member after its death ([`LeaseOptions::ttl`]). Default: the cluster's
    /// default.
    pub fn ttl(self, ttl: Duration) -> MemberOptions {
        MemberOptions { lease: self.lease.ttl(ttl), ..self }
    }

    /// The longest time between two reads of the members. It limits the age of the list while the cluster is available,
    /// and the delay of changes without a transition, such as readiness. From 10 ms to 24 h.
    /// Default: 1 s.
    pub fn refresh(self, refresh: Duration) -> MemberOptions {
        MemberOptions { refresh, ..self }
    }

    /// The metadata of the membership's lease.
    pub(super) fn own_metadata(&self, group: &str, is_ready: bool) -> Result<Metadata, InvalidValue> {
        let (weight, is_ready) = (self.weight.to_string(), is_ready.to_string());
        self.metadata.with_own([(WEIGHT_KEY, weight), (READY_KEY, is_ready), (GROUP_KEY, group.to_owned())])
    }

    pub(super) fn lease_options(&self, group: &str, is_ready: bool) -> Result<LeaseOptions, InvalidValue> {
        Ok(self.lease.clone().metadata(self.own_metadata(group, is_ready)?))
    }
}
