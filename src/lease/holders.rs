//! The holders of one name: none, one, or several of a counted lease.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::retained;
use crate::token::FencingToken;
use crate::types::{ClusterMs, HolderId, Metadata, Ttl};

/// One holder's grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub holder: HolderId,
    pub token: FencingToken,
    pub ttl: Ttl,
    /// The last millisecond before expiry; `None` for an infinite ttl.
    pub deadline: Option<ClusterMs>,
    pub granted_at: ClusterMs,
    pub granted_wall_ms: u64,
    pub renewed_at: ClusterMs,
    pub renewed_wall_ms: u64,
    pub renewals: u64,
    pub lock_delay_ms: u64,
    pub metadata: Metadata,
    /// Number of metadata updates.
    pub metadata_version: u64,
}

impl Grant {
    /// Retained bytes, held or ended.
    pub fn bytes(&self) -> u64 {
        retained::retained_bytes(&self.holder, &self.metadata)
    }

    /// Moves the deadline to `now + ttl` unless that is earlier. Requests can arrive late or twice, and must not take
    /// away acknowledged time.
    pub fn extend(&mut self, ttl: Ttl, now: ClusterMs) {
        let asked = ttl.deadline(now);
        if deadline_key(asked) >= deadline_key(self.deadline) {
            self.ttl = ttl;
            self.deadline = asked;
        }
    }
}

/// The holders of one name, by token. A single holder needs no allocation, because most leases have one.
#[derive(Clone, Debug, Default)]
pub(super) enum Holders {
    #[default]
    Empty,
    One(Grant),
    Many(Box<HolderSet>),
}

/// Several holders, with indexes that make every operation logarithmic.
#[derive(Clone, Debug, Default)]
pub(super) struct HolderSet {
    by_token: OrdMap<u64, Arc<Grant>>,
    by_holder: OrdMap<HolderId, u64>,
    by_deadline: OrdSet<(ClusterMs, u64)>,
    bytes: u64,
}

impl Holders {
    pub fn len(&self) -> usize {
        match self {
            Holders::Empty => 0,
            Holders::One(_) => 1,
            Holders::Many(set) => set.by_token.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Retained bytes, bounded by [`MAX_RETAINED_NAME_BYTES`](super::MAX_RETAINED_NAME_BYTES).
    pub fn bytes(&self) -> u64 {
        match self {
            Holders::Empty => 0,
            Holders::One(grant) => grant.bytes(),
            Holders::Many(set) => set.bytes,
        }
    }

    pub fn with_token(&self, token: u64) -> Option<&Grant> {
        match self {
            Holders::Empty => None,
            Holders::One(grant) => Some(grant).filter(|grant| grant.token.as_u64() == token),
            Holders::Many(set) => set.by_token.get(&token).map(Arc::as_ref),
        }
    }

    pub fn of(&self, holder: &HolderId) -> Option<&Grant> {
        match self {
            Holders::Empty => None,
            Holders::One(grant) => Some(grant).filter(|grant| grant.holder == *holder),
            Holders::Many(set) => self.with_token(*set.by_holder.get(holder)?),
        }
    }

    /// The grant with the earliest deadline.
    pub fn soonest(&self) -> Option<&Grant> {
        match self {
            Holders::Empty => None,
            Holders::One(grant) => Some(grant),
            Holders::Many(set) => self.with_token(set.by_deadline.get_min()?.1),
        }
    }

    /// Grants with the token `from` or a higher one, in token order.
    pub fn from(&self, from: u64) -> impl Iterator<Item = &Grant> {
        let (one, many) = match self {
            Holders::Empty => (None, None),
            Holders::One(grant) => (Some(grant).filter(|grant| grant.token.as_u64() >= from), None),
            Holders::Many(set) => (None, Some(set.by_token.range(from..).map(|(_, grant)| grant.as_ref()))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Grant> {
        self.from(0)
    }

    pub fn insert(&mut self, grant: Grant) {
        match self {
            Holders::Empty => *self = Holders::One(grant),
            Holders::Many(set) => set.insert(grant),
            Holders::One(_) => {
                let mut set = HolderSet::default();
                if let Holders::One(first) = std::mem::take(self) {
                    set.insert(first);
                }
                set.insert(grant);
                *self = Holders::Many(Box::new(set));
            }
        }
    }

    /// Changes a grant. `change` must not change the token or the holder: they are index keys.
    pub fn update(&mut self, token: u64, change: impl FnOnce(&mut Grant)) {
        match self {
            Holders::Empty => {}
            Holders::One(grant) => change(grant),
            Holders::Many(set) => {
                if let Some(mut grant) = set.remove(token) {
                    change(&mut grant);
                    set.insert(grant);
                }
            }
        }
    }

    pub fn remove(&mut self, token: u64) -> Option<Grant> {
        self.with_token(token)?;
        match self {
            Holders::Many(set) if set.by_token.len() > 1 => set.remove(token),
            Holders::Many(set) => {
                let last = set.remove(token);
                *self = Holders::Empty;
                last
            }
            _ => match std::mem::take(self) {
                Holders::One(grant) => Some(grant),
                _ => None,
            },
        }
    }
}

impl HolderSet {
    fn insert(&mut self, grant: Grant) {
        let token = grant.token.as_u64();
        self.by_holder.insert(grant.holder.clone(), token);
        self.by_deadline.insert((deadline_key(grant.deadline), token));
        self.bytes += grant.bytes();
        if let Some(before) = self.by_token.insert(token, Arc::new(grant)) {
            self.bytes -= before.bytes();
        }
    }

    fn remove(&mut self, token: u64) -> Option<Grant> {
        let grant = Arc::unwrap_or_clone(self.by_token.remove(&token)?);
        self.bytes -= grant.bytes();
        self.by_holder.remove(&grant.holder);
        self.by_deadline.remove(&(deadline_key(grant.deadline), token));
        Some(grant)
    }
}

/// An infinite ttl sorts after every deadline.
fn deadline_key(deadline: Option<ClusterMs>) -> ClusterMs {
    deadline.unwrap_or(ClusterMs::MAX)
}
