//! The state of one name.

use super::ended::{Ended, EndedGrants};
use super::history::NameHistory;
use super::holders::{Grant, Holders};
use super::owners::Owners;
use super::queue::WaitQueue;
use super::{HolderLease, LeaseState, Lost, LostReason, MAX_RETAINED_NAME_BYTES};
use crate::token::FencingToken;
use crate::types::{AccessName, ClusterMs, HolderId, LeaseName};

#[derive(Clone, Debug)]
pub(super) struct NameRecord {
    /// Most holders. All holders and waiters share it; it can change while the name has neither.
    pub limit: u32,
    /// Token of the last grant, in its integer form. One entry grants a name once.
    pub last_grant: u64,
    /// The last millisecond of the lock delay.
    pub delay_until: Option<ClusterMs>,
    pub holders: Holders,
    pub owners: Owners,
    pub queue: WaitQueue,
    pub ended: EndedGrants,
    pub history: NameHistory,
    /// Whether `Machine::live` counts this record. Derived.
    pub counted_live: bool,
}

impl NameRecord {
    pub fn new(limit: u32) -> NameRecord {
        NameRecord {
            limit,
            last_grant: 0,
            delay_until: None,
            holders: Holders::Empty,
            owners: Owners::default(),
            queue: WaitQueue::default(),
            ended: EndedGrants::default(),
            history: NameHistory::Empty,
            counted_live: false,
        }
    }

    /// Whether the name has a holder or a waiter. Then its limit is fixed.
    pub fn is_in_use(&self) -> bool {
        !self.holders.is_empty() || !self.queue.is_empty()
    }

    /// Whether the name has a holder, a waiter or a lock delay. Then it counts against `Limits::max_leases`.
    pub fn is_live(&self) -> bool {
        self.is_in_use() || self.delay_until.is_some()
    }

    /// Retained bytes of holders and waiters, bounded by [`MAX_RETAINED_NAME_BYTES`](super::MAX_RETAINED_NAME_BYTES).
    pub fn in_use_bytes(&self) -> u64 {
        self.holders.bytes() + self.queue.bytes()
    }

    /// Whether ended grants must be forgotten: the name retains more than `MAX_RETAINED_NAME_BYTES`.
    pub fn retains_too_much(&self) -> bool {
        self.in_use_bytes() + self.ended.bytes() > MAX_RETAINED_NAME_BYTES
    }

    /// Whether this holder or waiter belongs to another principal.
    pub fn belongs_to_other(&self, holder: &HolderId, principal: &AccessName) -> bool {
        self.owners.of(holder).is_some_and(|owner| owner != principal)
    }

    /// Whether this holder has a grant or waits for one.
    pub fn has(&self, holder: &HolderId) -> bool {
        self.holders.of(holder).is_some() || self.queue.ticket_of(holder).is_some()
    }

    pub fn has_free_slot(&self) -> bool {
        self.holders.len() < self.limit as usize
    }

    /// Whether a waiter could get a slot. The rule of one grant per entry can still forbid it.
    pub fn can_promote(&self) -> bool {
        self.has_free_slot() && self.delay_until.is_none() && !self.queue.is_empty()
    }

    /// The holder's grant, if it has this token.
    pub fn grant(&self, holder: &HolderId, token: FencingToken) -> Option<&Grant> {
        self.holders.with_token(token.as_u64()).filter(|grant| grant.holder == *holder)
    }

    /// Why this holder does not have the grant with this token.
    pub fn lost(&self, holder: &HolderId, token: FencingToken) -> Lost {
        let token = token.as_u64();
        let remembered = self.ended.with_token(token).filter(|ended| ended.grant.holder == *holder);
        let state = remembered.map(|ended| ended.state).or_else(|| self.history.end_of(holder, token));
        let cause = state.map_or(LostReason::Unknown, LostReason::of);
        Lost { cause, holder: self.holders.soonest().map(|now| now.holder.clone()) }
    }

    pub fn lease(&self, name: &LeaseName, grant: &Grant) -> HolderLease {
        self.describe(name, grant, LeaseState::Active, self.limit, grant.deadline)
    }

    pub fn ended_lease(&self, name: &LeaseName, ended: &Ended) -> HolderLease {
        self.describe(name, &ended.grant, ended.state, ended.limit, None)
    }

    fn describe(
        &self,
        name: &LeaseName,
        grant: &Grant,
        state: LeaseState,
        limit: u32,
        deadline: Option<ClusterMs>,
    ) -> HolderLease {
        HolderLease {
            name: name.clone(),
            holder: grant.holder.clone(),
            token: grant.token,
            ttl: grant.ttl,
            deadline,
            state,
            granted_at: grant.granted_at,
            granted_wall_ms: grant.granted_wall_ms,
            renewed_at: grant.renewed_at,
            renewed_wall_ms: grant.renewed_wall_ms,
            renewals: grant.renewals,
            metadata: grant.metadata.clone(),
            limit,
            lock_delay_ms: grant.lock_delay_ms,
            waiters: self.queue.len() as u32,
            metadata_version: grant.metadata_version,
        }
    }
}

impl LostReason {
    fn of(state: LeaseState) -> LostReason {
        match state {
            LeaseState::Active | LeaseState::Other => LostReason::Unknown,
            LeaseState::Expired => LostReason::Expired,
            LeaseState::Released => LostReason::Released,
            LeaseState::Revoked => LostReason::Revoked,
            LeaseState::HandedOver => LostReason::HandedOver,
            LeaseState::Restored => LostReason::Restored,
        }
    }
}
