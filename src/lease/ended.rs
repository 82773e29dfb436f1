//! Ended grants of one name that the machine remembers.

use std::sync::Arc;

use imbl::OrdMap;

use super::LeaseState;
use super::holders::Grant;
use super::machine::EndedAt;
use crate::types::ClusterMs;

/// An ended grant.
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

/// The ended grants of one name, by token. Most names have none or one, so this takes one word of the record.
#[derive(Clone, Debug, Default)]
pub(super) struct EndedGrants(Option<Box<OneOrMany>>);

#[derive(Clone, Debug)]
enum OneOrMany {
    One(Ended),
    Many(EndedSet),
}

/// Persistent maps, so that copying a record that a clone of the machine shares does not copy the grants.
#[derive(Clone, Debug, Default)]
struct EndedSet {
    by_token: OrdMap<u64, Arc<Ended>>,
    by_end: OrdMap<EndedAt, u64>,
    bytes: u64,
}

impl Ended {
    pub fn ended_at(&self) -> EndedAt {
        (self.index, self.part)
    }

    fn token(&self) -> u64 {
        self.grant.token.as_u64()
    }
}

impl EndedGrants {
    pub fn len(&self) -> usize {
        match self.0.as_deref() {
            None => 0,
            Some(OneOrMany::One(_)) => 1,
            Some(OneOrMany::Many(set)) => set.by_token.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Retained bytes, bounded by [`MAX_RETAINED_NAME_BYTES`](super::MAX_RETAINED_NAME_BYTES).
    pub fn bytes(&self) -> u64 {
        match self.0.as_deref() {
            None => 0,
            Some(OneOrMany::One(ended)) => ended.grant.bytes(),
            Some(OneOrMany::Many(set)) => set.bytes,
        }
    }

    pub fn with_token(&self, token: u64) -> Option<&Ended> {
        match self.0.as_deref()? {
            OneOrMany::One(ended) => Some(ended).filter(|ended| ended.token() == token),
            OneOrMany::Many(set) => set.by_token.get(&token).map(Arc::as_ref),
        }
    }

    /// The grant with the highest token.
    pub fn newest(&self) -> Option<&Ended> {
        match self.0.as_deref()? {
            OneOrMany::One(ended) => Some(ended),
            OneOrMany::Many(set) => set.by_token.get_max().map(|(_, ended)| ended.as_ref()),
        }
    }

    /// The grant that ended first.
    pub fn oldest(&self) -> Option<&Ended> {
        match self.0.as_deref()? {
            OneOrMany::One(ended) => Some(ended),
            OneOrMany::Many(set) => self.with_token(set.by_end.get_min()?.1),
        }
    }

    /// Grants with the token `from` or a higher one, in token order.
    pub fn from(&self, from: u64) -> impl Iterator<Item = &Ended> {
        let (one, many) = match self.0.as_deref() {
            None => (None, None),
            Some(OneOrMany::One(ended)) => (Some(ended).filter(|ended| ended.token() >= from), None),
            Some(OneOrMany::Many(set)) => (None, Some(set.by_token.range(from..).map(|(_, ended)| ended.as_ref()))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Ended> {
        self.from(0)
    }

    pub fn insert(&mut self, ended: Ended) {
        let mut set = match self.0.take().map(|grants| *grants) {
            None => {
                self.0 = Some(Box::new(OneOrMany::One(ended)));
                return;
            }
            Some(OneOrMany::One(first)) => {
                let mut set = EndedSet::default();
                set.insert(first);
                set
            }
            Some(OneOrMany::Many(set)) => set,
        };
        set.insert(ended);
        self.0 = Some(Box::new(OneOrMany::Many(set)));
    }

    pub fn remove(&mut self, token: u64) {
        match self.0.as_deref_mut() {
            Some(OneOrMany::One(ended)) if ended.token() == token => self.0 = None,
            Some(OneOrMany::Many(set)) => {
                set.remove(token);
                if set.by_token.is_empty() {
                    self.0 = None;
                }
            }
            _ => {}
        }
    }
}

impl EndedSet {
    fn insert(&mut self, ended: Ended) {
        self.bytes += ended.grant.bytes();
        self.by_end.insert(ended.ended_at(), ended.token());
        if let Some(before) = self.by_token.insert(ended.token(), Arc::new(ended)) {
            self.bytes -= before.grant.bytes();
        }
    }

    fn remove(&mut self, token: u64) {
        if let Some(ended) = self.by_token.remove(&token) {
            self.bytes -= ended.grant.bytes();
            self.by_end.remove(&ended.ended_at());
        }
    }
}
