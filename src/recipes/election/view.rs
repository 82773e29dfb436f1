//! The leader in the committed state.

use std::collections::BTreeMap;

use crate::api::{LeaseInfo, LeaseState, Timestamp};
use crate::client::{CallError, Coordinator, RetryBudget};
use crate::token::FencingToken;
use crate::types::{HolderId, InvalidValue, LeaseName, Metadata, OWN_KEYS};

/// The metadata key of an established leader. Its value is the token of the leadership, so that it cannot be read as
/// the mark of another leadership.
pub const ESTABLISHED_KEY: &str = "tenure.established";

/// The token with the longest decimal form. Metadata that fits with it fits with every token.
pub(super) const LONGEST_TOKEN: FencingToken = FencingToken { term: (1 << 15) - 1, index: (1 << 48) - 1 };

/// The leader at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LeaderView {
    /// `None`: there is no leader.
    pub leader: Option<Leader>,
}

/// A leader as other processes see it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Leader {
    /// The holder of the lease.
    pub holder: String,
    /// The fencing token. It is higher than the token of each earlier leader.
    pub token: FencingToken,
    /// Whether the leader has fenced its resources ([`Leadership::establish`](super::Leadership::establish)). Until
    /// then, an earlier leader may still be able to write.
    pub is_established: bool,
    /// The metadata of the leader ([`ElectionOptions::metadata`](super::ElectionOptions::metadata)).
    pub metadata: BTreeMap<String, String>,
    /// The wall-clock time of the election. Use it for display only.
    pub since: Timestamp,
}

/// The metadata of a candidate with the mark of an established leader.
pub(super) fn established(metadata: &Metadata, token: FencingToken) -> Result<Metadata, InvalidValue> {
    metadata.with_own([(ESTABLISHED_KEY, token.to_string())])
}

/// Reads the leader. `holder` is the holder that sends the request.
pub(super) async fn read_leader(
    coordinator: &dyn Coordinator,
    name: &LeaseName,
    holder: &HolderId,
    budget: RetryBudget,
) -> Result<LeaderView, CallError> {
    let explained = coordinator.explain(name.clone(), holder.clone(), budget).await?;
    let held = explained.held.into_iter().find(|lease| lease.state == LeaseState::Active);
    Ok(LeaderView { leader: held.map(Leader::from) })
}

impl From<LeaseInfo> for Leader {
    fn from(mut lease: LeaseInfo) -> Leader {
        let mark = lease.metadata.get(ESTABLISHED_KEY).and_then(|token| token.parse::<FencingToken>().ok());
        let is_established = mark.is_some_and(|token| token.as_u64() == lease.token.as_u64());
        lease.metadata.retain(|key, _| !key.starts_with(OWN_KEYS));
        Leader {
            holder: lease.holder,
            token: lease.token,
            is_established,
            metadata: lease.metadata,
            since: lease.granted_at,
        }
    }
}
