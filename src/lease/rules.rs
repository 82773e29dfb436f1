//! The effect of each command, and its refusals.
//!
//! Design decisions:
//!
//! - **Requests carry no order.** They can arrive late or twice. So an acquire by the holder and a renewal never move a
//!   deadline to an earlier time. Only expiry, a release, a revoke and a hand-over end a grant. An acquire by the
//!   holder changes nothing else of the grant. A metadata update names the version that it replaces.
//! - **A name has one limit.** All holders and waiters share it. It can change while the name has neither.
//! - **A waiter keeps its position.** If it acquires without a wait, the machine refuses it like any other holder. If
//!   it acquires with a wait, the new request replaces the old one and the wait starts again.
//! - **Only a confirmed waiter gets a grant.** A queue outlives the leader; the open requests of its waiters do not. After
//!   a leader change a waiter can be dead, and a dead waiter would hold a granted lease for a whole ttl. So a slot goes
//!   only to a waiter that is confirmed in the current term. Its acquire confirms a waiter, and so does the leader that
//!   has its request. For an unconfirmed first waiter the slot stays free until [`CONFIRM_WINDOW_MS`] after the first
//!   entry of the term. Then the machine drops this waiter.
//! - **A lock delay belongs to the name**, also for a counted lease. It starts at the entry that ended the grant. Of
//!   two delays the later end counts. Renewals, releases and hand-overs remain possible during a delay.
//! - **A restore ends each grant, and its time without grants covers all names.** The backup does not have the grants that
//!   the lost cluster made later. A claim can wait: its queue then has a lock delay until the time is over.
//! - **A lease belongs to the principal that acquired it.** Under access control, the identity of a holder is its principal and
//!   its holder id. A grant without an owner belongs to each principal: it is from before access control.
//! - **Late waits end before slots are granted.** If a wait and a lease end before the same entry, the waiter gets no
//!   grant. This holds even if the lease ended first.

use super::machine::{EntryContext, Machine};
use super::queue::{QueueEntry, WaitRequest};
use super::record::NameRecord;
use super::{
    Acquire, Change, Command, DropCause, GrantCause, HolderCommand, HolderLease, Lost, LostReason, Outcome, Refusal,
    Renewal, WaiterId,
};
use super::{MAX_RETAINED_NAME_BYTES, retained};
use crate::token::FencingToken;
use crate::types::{AccessName, ClusterMs, HolderId, LeaseName, Metadata};

/// Time for a waiter to reach a new leader, in milliseconds of cluster time after the first entry of the leader's term.
///
/// Frozen: apply reads it, so replicas of builds with different values diverge.
pub const CONFIRM_WINDOW_MS: u64 = 1_000;

const LEASE_FULL: Outcome = Outcome::Refused(Refusal::LeaseFull { max_bytes: MAX_RETAINED_NAME_BYTES });

/// When a free slot goes to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promotion {
    /// In the next entry: this entry has granted the name already.
    Next,
    /// When a request confirms the first waiter, or after the window.
    Unconfirmed,
}

impl EntryContext<'_> {
    pub fn apply_command(&mut self, command: &Command) -> Outcome {
        match command {
            Command::Acquire(acquire) => self.acquire(acquire),
            Command::Renew { holder, leases } => {
                Outcome::Renewed(leases.iter().map(|renewal| self.renew(holder, renewal)).collect())
            }
            Command::Release { name, holder, token } => Outcome::Released(self.release(name, holder, *token)),
            Command::Revoke { name, reason } => Outcome::Revoked(self.revoke(name, reason)),
            Command::HandOver { name, holder, token, to } => self.hand_over(name, holder, *token, to.as_ref()),
            Command::KeepWaiting { waiters } => {
                Outcome::Waiting(waiters.iter().filter(|waiter| self.keep_waiting(waiter)).count() as u32)
            }
            Command::LeaveQueue { waiter } => Outcome::Waiting(self.leave_queue(waiter) as u32),
            Command::Tick => Outcome::Done,
            Command::SetLimits(limits) => {
                self.machine.limits = *limits;
                Outcome::Done
            }
            Command::UpdateMetadata { name, holder, token, version, metadata } => {
                self.update_metadata(name, holder, *token, *version, metadata)
            }
            Command::As { principal, command } => self.apply_as(principal, command),
        }
    }

    /// Applies a command of a principal. A holder id that belongs to another principal is not its holder.
    fn apply_as(&mut self, principal: &AccessName, command: &HolderCommand) -> Outcome {
        let is_foreign = |entry: &Self, name: &LeaseName, holder: &HolderId| {
            entry.record(name).is_some_and(|record| record.belongs_to_other(holder, principal))
        };
        match command {
            HolderCommand::Acquire(acquire) => {
                let Acquire { name, holder, .. } = acquire;
                if is_foreign(self, name, holder) {
                    return Outcome::Refused(Refusal::HolderInUse);
                }
                let is_new = self.record(name).is_none_or(|record| !record.has(holder));
                let outcome = self.acquire(acquire);
                if is_new && self.record(name).is_some_and(|record| record.has(holder)) {
                    self.set_owner(name, holder, principal);
                }
                outcome
            }
            HolderCommand::Renew { holder, leases } => {
                let renewed = leases.iter().map(|renewal| match is_foreign(self, &renewal.name, holder) {
                    true => Err(self.not_own(&renewal.name)),
                    false => self.renew(holder, renewal),
                });
                Outcome::Renewed(renewed.collect())
            }
            HolderCommand::Release { name, holder, .. } if is_foreign(self, name, holder) => Outcome::Released(false),
            HolderCommand::HandOver { name, holder, .. } | HolderCommand::UpdateMetadata { name, holder, .. }
                if is_foreign(self, name, holder) =>
            {
                Outcome::Refused(Refusal::Lost(self.not_own(name)))
            }
            HolderCommand::Release { name, holder, token } => Outcome::Released(self.release(name, holder, *token)),
            HolderCommand::HandOver { name, holder, token, to } => self.hand_over(name, holder, *token, to.as_ref()),
            HolderCommand::UpdateMetadata { name, holder, token, version, metadata } => {
                self.update_metadata(name, holder, *token, *version, metadata)
            }
        }
    }

    /// The answer about a token that the principal never got.
    fn not_own(&self, name: &LeaseName) -> Lost {
        let soonest = self.record(name).and_then(|record| record.holders.soonest());
        Lost { cause: LostReason::Unknown, holder: soonest.map(|grant| grant.holder.clone()) }
    }

    /// A new holder never overtakes a waiter.
    fn acquire(&mut self, acquire: &Acquire) -> Outcome {
        let Acquire { name, holder, ttl, .. } = acquire;
        // The service refuses 0. If a log has it nevertheless, a panic here would stop every replica.
        let limit = acquire.limit.max(1);
        let record = self.record(name);
        if let Some(in_use) = record.filter(|record| record.is_in_use() && record.limit != limit) {
            return Outcome::Refused(Refusal::LimitDiffers { limit: in_use.limit });
        }
        if record.is_some_and(|record| record.holders.of(holder).is_some()) {
            let lease = self.renew_grant(name, holder, None, |grant, now| grant.extend(*ttl, now));
            return Outcome::Held { lease: lease.expect("the holder has a grant"), fresh: false };
        }
        let max_leases = self.machine.limits.max_leases;
        if !record.is_some_and(NameRecord::is_live) && self.machine.live >= max_leases {
            return Outcome::Refused(Refusal::TooManyLeases { max_leases });
        }
        let refusal = self.restored_refusal().or_else(|| record.and_then(|record| self.grant_refusal(record)));
        let outcome = match (refusal, acquire.wait_ms) {
            (None, _) if !has_room(record, 0, retained::retained_bytes(holder, &acquire.metadata)) => LEASE_FULL,
            (None, _) => {
                let lease = self.grant(name, limit, wait_request(acquire), GrantCause::Asked);
                Outcome::Held { lease, fresh: true }
            }
            (Some(_), Some(wait_ms)) => self.enqueue_claim(acquire, limit, wait_ms),
            // A waiter that acquires without a wait keeps its position.
            (Some(refusal), None) => Outcome::Refused(refusal),
        };
        self.promote_waiter(name);
        // This request confirms the waiter. If a slot was reserved for it, `promote_waiter` has granted it.
        if !matches!(outcome, Outcome::Queued { .. }) {
            return outcome;
        }
        let own = self.record(name);
        let granted = own.and_then(|record| Some(record.lease(name, record.holders.of(holder)?)));
        granted.map_or(outcome, |lease| Outcome::Held { lease, fresh: true })
    }

    /// The refusal of every claim while holders of the lost cluster may still be active.
    fn restored_refusal(&self) -> Option<Refusal> {
        let until = self.machine.no_grants_until?;
        Some(Refusal::Restored { retry_after_ms: (until - self.now).saturating_add(1) })
    }

    /// Why a new holder cannot get this name now.
    fn grant_refusal(&self, record: &NameRecord) -> Option<Refusal> {
        if !record.has_free_slot() {
            return record.held_refusal(self.now);
        }
        if let Some(until) = record.delay_until {
            return Some(Refusal::LockDelay { retry_after_ms: until - self.now + 1 });
        }
        if self.machine.promotion(record) == Some(Promotion::Unconfirmed) && !self.is_granted_here(record) {
            return Some(Refusal::LockDelay { retry_after_ms: self.machine.window_end() - self.now + 1 });
        }
        // A free slot and a confirmed waiter exist together only inside the entry that granted the name already.
        (self.is_granted_here(record) || !record.queue.is_empty()).then_some(Refusal::GrantedInThisEntry)
    }

    /// Adds a waiter to the queue. A holder that waits already keeps its position, and this request replaces its last
    /// one.
    fn enqueue_claim(&mut self, acquire: &Acquire, limit: u32, wait_ms: u64) -> Outcome {
        let name = &acquire.name;
        let record = self.record(name);
        let queue = record.map(|record| &record.queue);
        let (length, ticket) = queue.map_or((0, None), |queue| (queue.len(), queue.ticket_of(&acquire.holder)));
        let until = self.now.saturating_add(wait_ms);
        let (confirmed_until, confirmed_term) = (self.confirmed_until(), self.position.term);
        let before = ticket.and_then(|ticket| queue?.get(ticket)).map_or(0, |waiter| waiter.request.bytes());
        let has_room = has_room(record, before, retained::retained_bytes(&acquire.holder, &acquire.metadata));
        if let Some(ticket) = ticket {
            if !has_room {
                return LEASE_FULL;
            }
            let place = queue.map_or(0, |queue| queue.ahead_of(ticket));
            self.update_waiter(name, ticket, |waiter| {
                waiter.request = wait_request(acquire);
                waiter.until = until;
                waiter.confirmed_until = confirmed_until;
                waiter.confirmed_term = confirmed_term;
            });
            return Outcome::Queued { place };
        }
        let max_waiters = self.machine.limits.max_waiters;
        if length >= max_waiters as usize {
            return Outcome::Refused(Refusal::QueueFull { max_waiters });
        }
        if !has_room {
            return LEASE_FULL;
        }
        let (since, since_wall_ms) = (self.now, self.wall_ms);
        let waiter =
            QueueEntry { request: wait_request(acquire), since, since_wall_ms, until, confirmed_until, confirmed_term };
        Outcome::Queued { place: self.enqueue(name, limit, waiter) }
    }

    fn confirmed_until(&self) -> ClusterMs {
        self.now.saturating_add(self.machine.limits.waiter_timeout_ms)
    }

    fn renew(&mut self, holder: &HolderId, renewal: &Renewal) -> Result<HolderLease, Lost> {
        let Renewal { name, token, ttl } = renewal;
        let renewed =
            self.renew_grant(name, holder, Some(*token), |grant, now| grant.extend(ttl.unwrap_or(grant.ttl), now));
        renewed.ok_or_else(|| self.machine.lost(name, holder, *token))
    }

    /// A repeated request finds its own change and succeeds again.
    fn update_metadata(
        &mut self,
        name: &LeaseName,
        holder: &HolderId,
        token: FencingToken,
        version: u64,
        metadata: &Metadata,
    ) -> Outcome {
        let record = self.record(name).and_then(|record| record.grant(holder, token).map(|grant| (record, grant)));
        let Some((record, grant)) = record else {
            return Outcome::Refused(Refusal::Lost(self.machine.lost(name, holder, token)));
        };
        let is_repeated = version.checked_add(1) == Some(grant.metadata_version) && grant.metadata == *metadata;
        if is_repeated {
            return Outcome::Held { lease: record.lease(name, grant), fresh: false };
        }
        if grant.metadata_version != version {
            return Outcome::Refused(Refusal::MetadataChanged { version: grant.metadata_version });
        }
        if !has_room(Some(record), grant.bytes(), retained::retained_bytes(holder, metadata)) {
            return LEASE_FULL;
        }
        let lease = self.replace_metadata(name, token, metadata.clone());
        self.forget_excess(name);
        Outcome::Held { lease, fresh: false }
    }

    /// Returns whether the holder had the grant. Otherwise nothing changes.
    fn release(&mut self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> bool {
        let is_held = self.own_grant(name, holder, token).is_ok();
        if is_held {
            self.end(name, token.as_u64(), Change::Released);
            self.promote_waiter(name);
        }
        is_held
    }

    /// Ends every grant of the name and returns their number. Waiters keep their positions.
    fn revoke(&mut self, name: &LeaseName, reason: &str) -> u32 {
        let Some(record) = self.record(name) else { return 0 };
        let tokens: Vec<u64> = record.holders.iter().map(|grant| grant.token.as_u64()).collect();
        for token in &tokens {
            self.end(name, *token, Change::Revoked { reason: reason.to_string() });
        }
        self.promote_waiter(name);
        tokens.len() as u32
    }

    /// No lock delay applies: the holder itself lets the next holder start.
    fn hand_over(
        &mut self,
        name: &LeaseName,
        holder: &HolderId,
        token: FencingToken,
        to: Option<&HolderId>,
    ) -> Outcome {
        if let Err(lost) = self.own_grant(name, holder, token) {
            return Outcome::Refused(Refusal::Lost(lost));
        }
        let record = self.record(name).expect("the name has a holder");
        let waiter = match to {
            Some(named) => record.queue.ticket_of(named),
            // An unconfirmed waiter can be dead.
            None => record.queue.iter().find(|(_, waiter)| self.machine.is_confirmed(waiter)).map(|(ticket, _)| ticket),
        };
        let Some(ticket) = waiter else { return Outcome::Refused(Refusal::NoSuchWaiter) };
        if self.is_granted_here(record) {
            return Outcome::Refused(Refusal::GrantedInThisEntry);
        }
        let limit = record.limit;
        let recipient = self.take_waiter(name, ticket).request;
        self.end(name, token.as_u64(), Change::HandedOver { to: recipient.holder.clone() });
        let mut lease = self.grant(name, limit, recipient, GrantCause::HandOver);
        self.promote_waiter(name);
        lease.waiters = self.record(name).map_or(0, |record| record.queue.len() as u32);
        Outcome::HandedOver(lease)
    }

    fn keep_waiting(&mut self, waiter: &WaiterId) -> bool {
        let Some(ticket) = self.ticket_of(waiter) else { return false };
        let (confirmed_until, confirmed_term) = (self.confirmed_until(), self.position.term);
        self.update_waiter(&waiter.name, ticket, |waiter| {
            waiter.confirmed_until = confirmed_until;
            waiter.confirmed_term = confirmed_term;
        });
        if self.machine.timers.is_unconfirmed(&waiter.name) {
            self.promote_waiter(&waiter.name);
        }
        true
    }

    fn leave_queue(&mut self, waiter: &WaiterId) -> bool {
        let Some(ticket) = self.ticket_of(waiter) else { return false };
        self.drop_waiter(&waiter.name, ticket, DropCause::Left);
        self.promote_waiter(&waiter.name);
        true
    }

    fn ticket_of(&self, waiter: &WaiterId) -> Option<u64> {
        self.record(&waiter.name)?.queue.ticket_of(&waiter.holder)
    }

    /// Checks that the holder has the grant with this token.
    fn own_grant(&self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> Result<(), Lost> {
        let grant = self.record(name).and_then(|record| record.grant(holder, token));
        grant.map(|_| ()).ok_or_else(|| self.machine.lost(name, holder, token))
    }
}

impl EntryContext<'_> {
    /// Grants a free slot to the first waiter if it is confirmed. After the window, drops the unconfirmed waiters
    /// before the first confirmed one.
    pub(super) fn grant_free_slots(&mut self, name: &LeaseName) {
        while let Some(record) = self.record(name)
            && record.can_promote()
            && !self.is_granted_here(record)
        {
            let (limit, (ticket, first)) = (record.limit, record.queue.first().expect("can_promote implies a waiter"));
            if self.machine.is_confirmed(first) {
                let request = self.take_waiter(name, ticket).request;
                self.grant(name, limit, request, GrantCause::Queue);
            } else if self.machine.window_is_over() {
                self.drop_waiter(name, ticket, DropCause::Abandoned);
            } else {
                return;
            }
        }
    }
}

impl Machine {
    /// The last millisecond in which a free slot stays reserved for an unconfirmed waiter.
    pub(super) fn window_end(&self) -> ClusterMs {
        self.term_began.saturating_add(CONFIRM_WINDOW_MS)
    }

    pub(super) fn window_is_over(&self) -> bool {
        self.window_end() < self.now
    }

    pub(super) fn is_confirmed(&self, waiter: &QueueEntry) -> bool {
        self.applied.is_some_and(|applied| applied.term == waiter.confirmed_term)
    }

    /// When a free slot of this name goes to its first waiter; `None` without a free slot or a waiter.
    pub(super) fn promotion(&self, record: &NameRecord) -> Option<Promotion> {
        let (_, first) = record.queue.first().filter(|_| record.can_promote())?;
        let is_next = self.is_confirmed(first) || self.window_is_over();
        Some(if is_next { Promotion::Next } else { Promotion::Unconfirmed })
    }

    /// Cluster time at which the machine drops unconfirmed waiters, if a free slot is reserved for one.
    pub(super) fn window_due(&self) -> Option<ClusterMs> {
        self.timers.has_unconfirmed().then(|| self.window_end().saturating_add(1))
    }
}

/// Whether a name may retain a holder or waiter of `after` bytes in place of one of `before` bytes.
fn has_room(record: Option<&NameRecord>, before: u64, after: u64) -> bool {
    let in_use = record.map_or(0, NameRecord::in_use_bytes);
    after <= before || in_use - before + after <= MAX_RETAINED_NAME_BYTES
}

fn wait_request(acquire: &Acquire) -> WaitRequest {
    WaitRequest {
        holder: acquire.holder.clone(),
        ttl: acquire.ttl,
        lock_delay_ms: acquire.lock_delay_ms,
        metadata: acquire.metadata.clone(),
    }
}

impl NameRecord {
    /// The refusal of a name without a free slot. It names the holder whose deadline is first.
    pub fn held_refusal(&self, now: ClusterMs) -> Option<Refusal> {
        self.holders.soonest().map(|grant| Refusal::Held {
            holder: grant.holder.clone(),
            token: grant.token,
            granted_wall_ms: grant.granted_wall_ms,
            retry_after_ms: grant.deadline.map(|at| at.saturating_sub(now) + 1),
            waiters: self.queue.len() as u32,
        })
    }
}
