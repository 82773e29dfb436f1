//! Who leads, by the committed state.

use std::collections::BTreeMap;

use crate::api::{Lease, LeaseState, Timestamp};
use crate::client::{CallError, Coordinator, RetryBudget};
use crate::token::FencingToken;
use crate::types::{HolderId, InvalidValue, LeaseName, Metadata, OWN_KEYS};

/// The key in the lease's metadata that says that its leader is established. The value is the token of the leadership
/// that it is about, so that it is never another's.
pub const ESTABLISHED_KEY: &str = "tenure.established";

/// The token whose decimal form is longest: what fits with it, fits with every token.
pub(super) const LONGEST_TOKEN: FencingToken = FencingToken { term: (1 << 15) - 1, index: (1 << 48) - 1 };

/// Who leads at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaderView {
    /// `None`: nobody does.
    pub leader: Option<Leader>,
}

/// A leader as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leader {
    pub holder: String,
    /// Above that of every leader before.
    pub token: FencingToken,
    /// Whether it has fenced its resources ([`Leadership::establish`](super::Leadership::establish)). One that has not
    /// was elected, and an earlier leader may still be able to write.
    pub is_established: bool,
    /// What the leader says of itself ([`ElectionOptions::metadata`](super::ElectionOptions::metadata)).
    pub metadata: BTreeMap<String, String>,
    /// When it was elected, by a wall clock: for people.
    pub since: Timestamp,
}

/// A candidate's own metadata with the mark of an established leader.
pub(super) fn established(metadata: &Metadata, token: FencingToken) -> Result<Metadata, InvalidValue> {
    metadata.with_own([(ESTABLISHED_KEY, token.to_string())])
}

/// Reads who leads. `holder` is whoever asks.
pub(super) async fn look(
    coordinator: &dyn Coordinator,
    name: &LeaseName,
    holder: &HolderId,
    budget: RetryBudget,
) -> Result<LeaderView, CallError> {
    let explained = coordinator.explain(name.clone(), holder.clone(), budget).await?;
    let held = explained.held.into_iter().find(|lease| lease.state == LeaseState::Active);
    Ok(LeaderView { leader: held.map(Leader::from) })
}

impl From<Lease> for Leader {
    fn from(mut lease: Lease) -> Leader {
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
