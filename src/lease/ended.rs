//! Grants of one name that are over and still remembered.

use std::collections::VecDeque;
use std::sync::Arc;

use super::LeaseState;
use super::holders::Grant;
use crate::types::ClusterMs;

/// A grant that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub grant: Grant,
    pub limit: u32,
    pub state: LeaseState,
    pub at: ClusterMs,
    /// The transition that ended it.
    pub index: u64,
    pub part: u32,
}

/// In token order: for a plain lease also the order in which they ended, so both ends are cheap. All names together
/// have at most [`Limits::ended_keep`](super::Limits::ended_keep) of them.
#[derive(Clone, Debug, Default)]
#[expect(clippy::box_collection, reason = "one word in every record, and nearly all have none")]
pub(super) struct EndedGrants(Option<Box<VecDeque<Arc<Ended>>>>);

impl EndedGrants {
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |grants| grants.len())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub fn with_token(&self, token: u64) -> Option<&Ended> {
        let grants = self.0.as_ref()?;
        grants.binary_search_by_key(&token, |ended| ended.token()).ok().map(|at| grants[at].as_ref())
    }

    /// In token order, from the token `from` on.
    pub fn from(&self, from: u64) -> impl Iterator<Item = &Ended> {
        let grants = self.0.iter().flat_map(move |grants| {
            let at = grants.partition_point(|ended| ended.token() < from);
            grants.range(at..)
        });
        grants.map(Arc::as_ref)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Ended> {
        self.from(0)
    }

    pub fn insert(&mut self, ended: Ended) {
        let grants = self.0.get_or_insert_default();
        let at = grants.partition_point(|other| other.token() < ended.token());
        if grants.len() == grants.capacity() {
            // Most names have one: grow by doubling, but from one and not from four.
            grants.reserve_exact(grants.len().max(1));
        }
        grants.insert(at, Arc::new(ended));
    }

    pub fn remove(&mut self, token: u64) {
        let Some(grants) = &mut self.0 else { return };
        if let Ok(at) = grants.binary_search_by_key(&token, |ended| ended.token()) {
            grants.remove(at);
        }
        if grants.is_empty() {
            self.0 = None;
        }
    }
}

impl Ended {
    fn token(&self) -> u64 {
        self.grant.token.as_u64()
    }
}
