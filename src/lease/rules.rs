//! The rules: what each command does, and when it is refused.
//!
//! Where two readings were possible, these were taken:
//!
//! - **Requests carry no order.** They can arrive late or twice. So an acquire by the holder and a renewal never move an
//!   expiry to an earlier moment: only a release, a revoke, a hand-over and time itself end a grant. An acquire by the
//!   holder changes nothing else of the grant, and a change of metadata names the version that it replaces.
//! - **A name has one limit** for all who hold it or wait for it. It can change when nobody does.
//! - **Who waits, waits in line.** A waiter that asks without a wait is refused like anybody and keeps its place; one
//!   that asks with a wait keeps its place too, with what it asked for last and a new end of its wait.
//! - **A waiter is granted only if it is there.** See [`turn`](super::turn): after a change of leader it has to be confirmed.
//! - **A lock delay is the name's**, also for a counted lease; it starts at the entry that ended the grant, and of two
//!   the later end counts. Renewals, releases and hand-overs go on under it.
//! - **Nothing due is overlooked.** A place that became free goes to a waiter only if that is still in time at the
//!   entry's own time, even if the place had been due before the wait was.

use super::entry::Entry;
use super::queue::{QueueEntry, WaitRequest};
use super::record::Record;
use super::turn::Turn;
use super::{Acquire, Change, Command, DropCause, GrantCause, Lease, Lost, Outcome, Refusal, Renewal, WaiterId};
use super::{MAX_NAME_BYTES_KEPT, kept};
use crate::token::FencingToken;
use crate::types::{ClusterMs, HolderId, LeaseName, Metadata};

const LEASE_FULL: Outcome = Outcome::Refused(Refusal::LeaseFull { max_bytes: MAX_NAME_BYTES_KEPT });

impl Entry<'_> {
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
        }
    }

    /// A lease has one limit for all who hold it or wait for it. A direct acquire never overtakes a waiter.
    fn acquire(&mut self, acquire: &Acquire) -> Outcome {
        let Acquire { name, holder, ttl, .. } = acquire;
        // The edge refuses 0; a log that has it all the same must not stop every replica.
        let limit = acquire.limit.max(1);
        let record = self.record(name);
        if let Some(in_use) = record.filter(|record| record.is_in_use() && record.limit != limit) {
            return Outcome::Refused(Refusal::LimitDiffers { limit: in_use.limit });
        }
        if record.is_some_and(|record| record.holders.of(holder).is_some()) {
            let lease = self.renew_grant(name, holder, None, |grant, now| grant.extend(*ttl, now));
            return Outcome::Held { lease: lease.expect("it holds the lease"), fresh: false };
        }
        let max_leases = self.machine.limits.max_leases;
        if !record.is_some_and(Record::is_live) && self.machine.live >= max_leases {
            return Outcome::Refused(Refusal::TooManyLeases { max_leases });
        }
        let outcome = match (record.and_then(|record| self.grant_refusal(record)), acquire.wait_ms) {
            (None, _) if !has_room(record, 0, kept::retained_bytes(holder, &acquire.metadata)) => LEASE_FULL,
            (None, _) => {
                let lease = self.grant(name, limit, wait_request(acquire), GrantCause::Asked);
                Outcome::Held { lease, fresh: true }
            }
            (Some(_), Some(wait_ms)) => self.enqueue_claim(acquire, limit, wait_ms),
            // Somebody who waits and asks without a wait is refused like anybody, and keeps its place.
            (Some(refusal), None) => Outcome::Refused(refusal),
        };
        self.promote_waiter(name);
        // A waiter that the place was kept for is confirmed by this request, and granted.
        let own = self.record(name).filter(|_| matches!(outcome, Outcome::Queued { .. }));
        let granted = own.and_then(|record| Some(record.lease(name, record.holders.of(holder)?)));
        granted.map_or(outcome, |lease| Outcome::Held { lease, fresh: true })
    }

    /// Timer keeps this name from being granted to a newcomer.
    fn grant_refusal(&self, record: &Record) -> Option<Refusal> {
        if !record.has_free_slot() {
            return record.held_refusal(self.now);
        }
        if let Some(until) = record.delay_until {
            return Some(Refusal::LockDelay { retry_after_ms: until - self.now + 1 });
        }
        if self.machine.turn(record) == Some(Turn::Unconfirmed) && !self.is_granted_here(record) {
            return Some(Refusal::LockDelay { retry_after_ms: self.machine.window_end() - self.now + 1 });
        }
        // A free place with a confirmed waiter exists only within the entry that granted the name already.
        (self.is_granted_here(record) || !record.queue.is_empty()).then_some(Refusal::GrantedInThisEntry)
    }

    /// Joins the queue; who is in it already keeps the place and waits with what it asked for last.
    fn enqueue_claim(&mut self, acquire: &Acquire, limit: u32, wait_ms: u64) -> Outcome {
        let name = &acquire.name;
        let record = self.record(name);
        let queue = record.map(|record| &record.queue);
        let (length, ticket) = queue.map_or((0, None), |queue| (queue.len(), queue.ticket_of(&acquire.holder)));
        let until = self.now.saturating_add(wait_ms);
        let (patience_until, confirmed_term) = (self.patience_until(), self.position.term);
        let before = ticket.and_then(|ticket| queue?.get(ticket)).map_or(0, |waiter| waiter.request.bytes());
        let has_room = has_room(record, before, kept::retained_bytes(&acquire.holder, &acquire.metadata));
        if let Some(ticket) = ticket {
            if !has_room {
                return LEASE_FULL;
            }
            let place = queue.map_or(0, |queue| queue.ahead_of(ticket));
            self.update_waiter(name, ticket, |waiter| {
                waiter.request = wait_request(acquire);
                waiter.until = until;
                waiter.patience_until = patience_until;
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
            QueueEntry { request: wait_request(acquire), since, since_wall_ms, until, patience_until, confirmed_term };
        Outcome::Queued { place: self.enqueue(name, limit, waiter) }
    }

    fn patience_until(&self) -> ClusterMs {
        self.now.saturating_add(self.machine.limits.patience_ms)
    }

    fn renew(&mut self, holder: &HolderId, renewal: &Renewal) -> Result<Lease, Lost> {
        let Renewal { name, token, ttl } = renewal;
        let renewed =
            self.renew_grant(name, holder, Some(*token), |grant, now| grant.extend(ttl.unwrap_or(grant.ttl), now));
        renewed.ok_or_else(|| self.machine.lost(name, holder, *token))
    }

    /// A request that arrives twice finds its own change and is answered as done.
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
        if !has_room(Some(record), grant.bytes(), kept::retained_bytes(holder, metadata)) {
            return LEASE_FULL;
        }
        let lease = self.replace_metadata(name, token, metadata.clone());
        self.forget_excess(name);
        Outcome::Held { lease, fresh: false }
    }

    /// Whether it was held: releasing what one does not hold changes nothing.
    fn release(&mut self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> bool {
        let is_held = self.own_grant(name, holder, token).is_ok();
        if is_held {
            self.end(name, token.as_u64(), Change::Released);
            self.promote_waiter(name);
        }
        is_held
    }

    /// Ends every grant of the name. Waiters keep their places.
    fn revoke(&mut self, name: &LeaseName, reason: &str) -> u32 {
        let Some(record) = self.record(name) else { return 0 };
        let tokens: Vec<u64> = record.holders.iter().map(|grant| grant.token.as_u64()).collect();
        for token in &tokens {
            self.end(name, *token, Change::Revoked { reason: reason.to_string() });
        }
        self.promote_waiter(name);
        tokens.len() as u32
    }

    /// No lock delay applies: the holder itself says that the next one may start.
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
        let record = self.record(name).expect("it has a holder");
        let waiter = match to {
            Some(named) => record.queue.ticket_of(named),
            // A waiter that is not confirmed may be dead.
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
        let (patience_until, confirmed_term) = (self.patience_until(), self.position.term);
        self.update_waiter(&waiter.name, ticket, |waiter| {
            waiter.patience_until = patience_until;
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

    /// Only the current token of its holder will do.
    fn own_grant(&self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> Result<(), Lost> {
        let grant = self.record(name).and_then(|record| record.grant(holder, token));
        grant.map(|_| ()).ok_or_else(|| self.machine.lost(name, holder, token))
    }
}

/// Whether a name may keep a holder or waiter that counts `after` bytes, in place of one that counts `before`.
fn has_room(record: Option<&Record>, before: u64, after: u64) -> bool {
    let in_use = record.map_or(0, Record::in_use_bytes);
    after <= before || in_use - before + after <= MAX_NAME_BYTES_KEPT
}

fn wait_request(acquire: &Acquire) -> WaitRequest {
    WaitRequest {
        holder: acquire.holder.clone(),
        ttl: acquire.ttl,
        lock_delay_ms: acquire.lock_delay_ms,
        metadata: acquire.metadata.clone(),
    }
}

impl Record {
    /// The refusal of a name that is held by as many as may, naming the one whose time runs out first.
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
