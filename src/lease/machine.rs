//! The state of the machine: a stored part and derived indexes. [`Machine::apply`] alone changes it.
//!
//! An [`EntryContext`] is one log entry while the machine applies it. Each change of state updates the record, the indexes and
//! the effects. [`rules`](super::rules) decides which changes to make.

use std::sync::Arc;

use imbl::OrdMap;

use super::MAX_RETAINED_ENDED_BYTES;
use super::ended::Ended;
use super::history::Event;
use super::holders::Grant;
use super::queue::{QueueEntry, WaitRequest};
use super::record::NameRecord;
use super::timers::{Timer, TimerQueue};
use super::{
    Batch, Change, DropCause, DroppedWaiter, Effects, GrantCause, HolderLease, Limits, Outcome, Stamp, WaiterId,
};
use crate::token::FencingToken;
use crate::types::{AccessName, ClusterMs, HolderId, LeaseName, Metadata};

/// The replicated lease state.
///
/// Replicas that applied the same entries hold the same state, because [`apply`](Machine::apply) reads only its
/// arguments. A clone is O(1) and shares the records. Later applies do not change it, so a clone serves as a snapshot.
///
/// An operation costs O(log n) in the number of leases, holders and waiters. Counting the waiters before one of them, in a
/// repeated claim or an explanation, costs their number.
#[derive(Clone, Debug)]
pub struct Machine {
    // Stored in snapshots.
    pub(super) now: ClusterMs,
    pub(super) applied: Option<FencingToken>,
    pub(super) limits: Limits,
    /// Cluster time of the first entry of the current term.
    pub(super) term_began: ClusterMs,
    /// After a restore: the last millisecond in which the machine grants nothing, because holders of the lost cluster
    /// may still be active.
    pub(super) no_grants_until: Option<ClusterMs>,
    pub(super) records: OrdMap<LeaseName, Arc<NameRecord>>,
    // Derived from the fields above: `Rebuild` computes them again.
    pub(super) timers: TimerQueue,
    pub(super) tombstones: OrdMap<EndedAt, Tombstone>,
    pub(super) counts: Counts,
    /// Retained bytes of all ended grants, bounded by [`MAX_RETAINED_ENDED_BYTES`](super::MAX_RETAINED_ENDED_BYTES).
    pub(super) ended_bytes: u64,
    /// Names with a holder, a waiter or a lock delay.
    pub(super) live: u64,
}

/// The transition that ended a lease: index and part. The machine forgets ended leases in this order.
pub(super) type EndedAt = (u64, u32);

/// An ended lease that lists still show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tombstone {
    pub at: ClusterMs,
    pub name: LeaseName,
    pub token: u64,
}

/// Sizes of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Held grants. A counted lease counts once for each holder.
    pub held: u64,
    /// Waiters in all queues.
    pub waiting: u64,
    /// Names under a lock delay.
    pub delayed: u64,
    /// Ended leases that lists still show.
    pub ended: u64,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}

impl Machine {
    /// The state before the first entry. It has no parameters, so it is the same on every node.
    pub fn new() -> Machine {
        Machine {
            now: 0,
            applied: None,
            limits: Limits::INITIAL,
            term_began: 0,
            no_grants_until: None,
            records: OrdMap::new(),
            timers: TimerQueue::default(),
            tombstones: OrdMap::new(),
            counts: Counts::default(),
            ended_bytes: 0,
            live: 0,
        }
    }

    /// Applies one log entry and returns one outcome per command, in order.
    ///
    /// `position` is the entry's term and index, and the token of every grant that the entry makes. Timers that are due
    /// at the entry's time fire before its first command.
    ///
    /// # Panics
    ///
    /// If `position` is not above the position of the previous entry. A replica that continued would grant a token
    /// twice.
    pub fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects) {
        assert!(
            self.applied.is_none_or(|last| last.index < position.index && last.as_u64() < position.as_u64()),
            "entry {position:?} applied after {:?}: expected a higher position",
            self.applied
        );
        let mut entry = EntryContext::begin(self, position, batch.stamp);
        entry.expire_due();
        let outcomes: Vec<Outcome> = batch.commands.iter().map(|command| entry.apply_command(command)).collect();
        let effects = entry.finish();
        debug_assert_eq!(outcomes.len(), batch.commands.len(), "one outcome per command");
        (outcomes, effects)
    }

    /// Cluster time of the last entry. Never decreases.
    pub fn now(&self) -> ClusterMs {
        self.now
    }

    /// Position of the last entry.
    pub fn applied(&self) -> Option<FencingToken> {
        self.applied
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The earliest cluster time at which a tick changes the state:
    ///
    /// - an expiry,
    /// - the end of a waiter's longest wait or confirmation,
    /// - the end of a lock delay,
    /// - the end of the confirm window,
    /// - the end of the time without grants after a restore,
    /// - a grant that waits for the next entry: due now.
    ///
    /// A timer fires one millisecond after its deadline, because stamps are rounded down.
    ///
    /// An ended lease that is too old is not due: the next entry forgets it, and no promise needs it earlier.
    pub fn next_due(&self) -> Option<ClusterMs> {
        let grants_begin = self.no_grants_until.map(|until| until.saturating_add(1));
        self.timers.first().into_iter().chain(self.window_due()).chain(grants_begin).min()
    }

    /// Whether a timer is set. Then the leader must commit cluster time regularly, because the next leader starts from
    /// it.
    pub fn has_deadlines(&self) -> bool {
        self.next_due().is_some()
    }
}

pub(super) struct EntryContext<'m> {
    pub machine: &'m mut Machine,
    pub position: FencingToken,
    pub now: ClusterMs,
    pub wall_ms: u64,
    effects: Effects,
}

impl<'m> EntryContext<'m> {
    pub fn begin(machine: &'m mut Machine, position: FencingToken, stamp: Stamp) -> EntryContext<'m> {
        // A new leader can start from an older time. Cluster time then stands still until the leader catches up.
        machine.now = machine.now.max(stamp.now);
        if machine.applied.is_none_or(|last| last.term < position.term) {
            machine.term_began = machine.now;
        }
        machine.applied = Some(position);
        let now = machine.now;
        machine.no_grants_until = machine.no_grants_until.filter(|until| *until >= now);
        EntryContext { machine, position, now, wall_ms: stamp.wall_ms, effects: Effects::default() }
    }

    /// Fires all due timers, then grants free slots. In this order no slot goes to a waiter whose wait is over.
    pub fn expire_due(&mut self) {
        let mut touched = Vec::new();
        while let Some(fired) = self.machine.timers.pop(self.now) {
            match fired.timer {
                Timer::Expiry(token) => self.end(&fired.name, token, Change::Expired),
                Timer::WaitEnds(ticket) => self.drop_late_waiter(&fired.name, ticket),
                Timer::DelayEnds => self.set_delay(&fired.name, None),
                Timer::Promote => {}
            }
            touched.push(fired.name);
        }
        if self.machine.window_is_over() {
            touched.extend(self.machine.timers.take_unconfirmed());
        }
        for name in &touched {
            self.promote_waiter(name);
        }
    }

    /// Forgets ended leases that are too old or too many. This runs after the last command: until then the record must
    /// remember a grant at this position, because one entry grants a name once.
    pub fn finish(mut self) -> Effects {
        while let Some((&at, oldest)) = self.machine.tombstones.get_min().map(|(at, oldest)| (at, oldest)) {
            let limits = &self.machine.limits;
            let is_old = oldest.at.saturating_add(limits.ended_keep_ms) <= self.now;
            let are_many = self.machine.tombstones.len() as u64 > limits.ended_keep;
            if !is_old && !are_many && self.machine.ended_bytes <= MAX_RETAINED_ENDED_BYTES {
                break;
            }
            let name = oldest.name.clone();
            self.forget(at);
            self.promote_waiter(&name);
        }
        std::mem::take(&mut self.effects)
    }

    /// Forgets the grant that ended with this transition.
    fn forget(&mut self, at: EndedAt) {
        let Tombstone { name, token, .. } =
            self.machine.tombstones.remove(&at).expect("the caller read this tombstone");
        let record = existing(&mut self.machine.records, &name);
        let ended = record.ended.with_token(token).expect("each tombstone has an ended grant");
        self.machine.ended_bytes -= ended.grant.bytes();
        self.machine.counts.ended -= 1;
        record.ended.remove(token);
    }

    /// Forgets ended grants of a name, oldest first, while the name retains more than [`MAX_RETAINED_NAME_BYTES`].
    pub fn forget_excess(&mut self, name: &LeaseName) {
        while let Some(record) = self.record(name)
            && record.retains_too_much()
            && let Some(oldest) = record.ended.oldest()
        {
            let at = oldest.ended_at();
            self.forget(at);
        }
    }

    pub fn record(&self, name: &LeaseName) -> Option<&NameRecord> {
        self.machine.records.get(name).map(Arc::as_ref)
    }

    /// Whether this entry granted the name. A token is a log position, so one entry grants a name once.
    pub fn is_granted_here(&self, record: &NameRecord) -> bool {
        record.last_grant == self.position.as_u64()
    }

    fn record_mut(&mut self, name: &LeaseName) -> &mut NameRecord {
        existing(&mut self.machine.records, name)
    }

    /// Sets the principal that a new holder or waiter belongs to.
    pub fn set_owner(&mut self, name: &LeaseName, holder: &HolderId, owner: &AccessName) {
        self.record_mut(name).owners.insert(holder.clone(), owner.clone());
    }

    pub fn grant(&mut self, name: &LeaseName, limit: u32, request: WaitRequest, cause: GrantCause) -> HolderLease {
        let (position, now, wall_ms) = (self.position, self.now, self.wall_ms);
        let deadline = request.ttl.deadline(now);
        let grant = Grant {
            holder: request.holder,
            token: position,
            ttl: request.ttl,
            deadline,
            granted_at: now,
            granted_wall_ms: wall_ms,
            renewed_at: now,
            renewed_wall_ms: wall_ms,
            renewals: 0,
            lock_delay_ms: request.lock_delay_ms,
            metadata: request.metadata,
            metadata_version: 0,
        };
        let event = transition(&mut self.effects, (position, now, wall_ms), name, &grant, Change::Granted(cause));
        let keep = self.machine.limits.history as usize;
        let record = get_or_create(&mut self.machine.records, name, limit);
        assert!(record.last_grant < position.as_u64(), "{name} granted twice at {position:?}");
        assert!(record.has_free_slot() && record.holders.of(&grant.holder).is_none(), "{name} granted while held");
        record.last_grant = position.as_u64();
        record.holders.insert(grant.clone());
        record.history.push(event, &grant, &record.holders, keep);
        count_live(&mut self.machine.live, record);
        let lease = record.lease(name, &grant);
        if let Some(at) = deadline {
            self.machine.timers.add(at, name, Timer::Expiry(position.as_u64()));
        }
        self.machine.counts.held += 1;
        lease
    }

    /// Applies `change` to the holder's grant and counts a renewal. Returns `None` if the holder has no grant, or not
    /// the one with `token`. It looks up the name once, because most commands are renewals.
    pub fn renew_grant(
        &mut self,
        name: &LeaseName,
        holder: &HolderId,
        token: Option<FencingToken>,
        change: impl FnOnce(&mut Grant, ClusterMs),
    ) -> Option<HolderLease> {
        let (now, wall_ms) = (self.now, self.wall_ms);
        let record = Arc::make_mut(self.machine.records.get_mut(name)?);
        let grant = record.holders.of(holder)?;
        let (own, before) = (grant.token.as_u64(), grant.deadline);
        if token.is_some_and(|token| token.as_u64() != own) {
            return None;
        }
        record.holders.update(own, |grant| {
            change(grant, now);
            grant.renewals += 1;
            grant.renewed_at = now;
            grant.renewed_wall_ms = wall_ms;
        });
        let grant = record.holders.with_token(own).expect("an update keeps the grant");
        let lease = record.lease(name, grant);
        if before != grant.deadline {
            let timers = &mut self.machine.timers;
            before.into_iter().for_each(|at| timers.remove(at, name, Timer::Expiry(own)));
            grant.deadline.into_iter().for_each(|at| timers.add(at, name, Timer::Expiry(own)));
        }
        Some(lease)
    }

    /// Replaces the metadata of a held grant.
    pub fn replace_metadata(&mut self, name: &LeaseName, token: FencingToken, metadata: Metadata) -> HolderLease {
        let token = token.as_u64();
        let record = self.record_mut(name);
        record.holders.update(token, |grant| {
            grant.metadata = metadata;
            grant.metadata_version += 1;
        });
        let grant = record.holders.with_token(token).expect("the caller found this grant");
        record.lease(name, grant)
    }

    /// Ends a grant. Its slot stays free until [`promote_waiter`](Entry::promote_waiter).
    pub fn end(&mut self, name: &LeaseName, token: u64, change: Change) {
        let (now, index) = (self.now, self.position.index);
        let state = change.ended_as().expect("the change ends a grant");
        let calls_for_delay = matches!(change, Change::Expired | Change::Revoked { .. });
        let keep = self.machine.limits.history as usize;
        // One lookup of the name: a release is one of the most frequent commands.
        let record = existing(&mut self.machine.records, name);
        let grant = record.holders.with_token(token).expect("the grant is held").clone();
        let stamp = (self.position, now, self.wall_ms);
        let event = transition(&mut self.effects, stamp, name, &grant, change);
        let part = event.part;
        record.holders.remove(token);
        record.history.push(event, &grant, &record.holders, keep);
        record.owners.remove(&grant.holder);
        let ended = Ended { grant: grant.clone(), limit: record.limit, state, at: now, index, part };
        record.ended.insert(ended);
        count_live(&mut self.machine.live, record);
        let delay_until = record.delay_until.max(Some(now.saturating_add(grant.lock_delay_ms)));
        if let Some(at) = grant.deadline {
            self.machine.timers.remove(at, name, Timer::Expiry(token));
        }
        self.machine.tombstones.insert((index, part), Tombstone { at: now, name: name.clone(), token });
        self.machine.counts.held -= 1;
        self.machine.counts.ended += 1;
        self.machine.ended_bytes += grant.bytes();
        if calls_for_delay && grant.lock_delay_ms > 0 {
            self.set_delay(name, delay_until);
        }
    }

    fn set_delay(&mut self, name: &LeaseName, until: Option<ClusterMs>) {
        let record = existing(&mut self.machine.records, name);
        if let Some(at) = record.delay_until.take() {
            self.machine.timers.remove(at, name, Timer::DelayEnds);
            self.machine.counts.delayed -= 1;
        }
        if let Some(at) = until {
            record.delay_until = Some(at);
            self.machine.timers.add(at, name, Timer::DelayEnds);
            self.machine.counts.delayed += 1;
        }
    }

    pub fn enqueue(&mut self, name: &LeaseName, limit: u32, waiter: QueueEntry) -> u32 {
        let deadline = waiter.deadline();
        let queue = &mut get_or_create(&mut self.machine.records, name, limit).queue;
        let ahead = queue.len() as u32;
        let ticket = queue.push(waiter);
        self.machine.timers.add(deadline, name, Timer::WaitEnds(ticket));
        self.machine.counts.waiting += 1;
        if let Some(until) = self.machine.no_grants_until {
            // The timer of the lock delay grants the lease when the time without grants is over.
            let delay_until = self.record(name).and_then(|record| record.delay_until);
            self.set_delay(name, delay_until.max(Some(until)));
        }
        ahead
    }

    /// Changes the request or the deadline of a waiter. Its position stays.
    pub fn update_waiter(&mut self, name: &LeaseName, ticket: u64, change: impl FnOnce(&mut QueueEntry)) {
        let record = existing(&mut self.machine.records, name);
        let before = record.queue.get(ticket).expect("the caller found this waiter").deadline();
        let after = record.queue.update(ticket, change).expect("the waiter exists: see above").deadline();
        self.machine.timers.remove(before, name, Timer::WaitEnds(ticket));
        self.machine.timers.add(after, name, Timer::WaitEnds(ticket));
    }

    /// Removes a waiter from its queue, before its grant or drop.
    pub fn take_waiter(&mut self, name: &LeaseName, ticket: u64) -> QueueEntry {
        let waiter = self.record_mut(name).queue.remove(ticket).expect("the caller found this waiter");
        self.machine.timers.remove(waiter.deadline(), name, Timer::WaitEnds(ticket));
        self.machine.counts.waiting -= 1;
        waiter
    }

    pub fn drop_waiter(&mut self, name: &LeaseName, ticket: u64, cause: DropCause) {
        let holder = self.take_waiter(name, ticket).request.holder;
        self.record_mut(name).owners.remove(&holder);
        self.effects.dropped.push(DroppedWaiter { waiter: WaiterId { name: name.clone(), holder }, cause });
    }

    fn drop_late_waiter(&mut self, name: &LeaseName, ticket: u64) {
        let waiter = self.record(name).and_then(|record| record.queue.get(ticket));
        let until = waiter.expect("a timer of a wait refers to a waiter").until;
        let cause = if until < self.now { DropCause::WaitTimeout } else { DropCause::Abandoned };
        self.drop_waiter(name, ticket, cause);
    }

    /// Runs after each change of a name. Grants a free slot to the first waiter, defers a second grant to the next
    /// entry, and removes a record that has no more use.
    pub fn promote_waiter(&mut self, name: &LeaseName) {
        let mut found = self.machine.records.get(name);
        if found.is_some_and(|record| record.retains_too_much() || record.can_promote()) {
            self.forget_excess(name);
            self.grant_free_slots(name);
            found = self.machine.records.get(name);
        }
        let Some(record) = found else { return };
        let promotion = self.machine.promotion(record);
        let (is_live, counted_live) = (record.is_live(), record.counted_live);
        // A grant at this position is still held or among the ended grants, so `is_granted_here` stays correct.
        let is_useless = !is_live && record.ended.is_empty();
        self.machine.timers.set_promotion(self.now, name, promotion);
        if is_live != counted_live {
            count_live(&mut self.machine.live, existing(&mut self.machine.records, name));
        }
        if is_useless {
            self.machine.records.remove(name);
        }
    }
}

/// Adds a transition to the effects. The caller adds the returned event to the history of the name. Not a method, for the
/// same reason as [`existing`].
fn transition(
    effects: &mut Effects,
    (position, now, wall_ms): (FencingToken, ClusterMs, u64),
    name: &LeaseName,
    grant: &Grant,
    change: Change,
) -> Event {
    let event = Event {
        index: position.index,
        part: effects.transitions.len() as u32,
        holder: grant.holder.clone(),
        token: grant.token,
        change,
        at: now,
        wall_ms,
    };
    effects.transitions.push(event.transition(name));
    event
}

/// Counts a name that became live, or no longer is. Where the record is at hand, this saves
/// [`promote_waiter`](EntryContext::promote_waiter) a lookup.
fn count_live(live: &mut u64, record: &mut NameRecord) {
    let is_live = record.is_live();
    match (std::mem::replace(&mut record.counted_live, is_live), is_live) {
        (false, true) => *live += 1,
        (true, false) => *live -= 1,
        _ => {}
    }
}

/// The record for a new grant or waiter. A name without holders and waiters takes this limit.
fn get_or_create<'r>(
    records: &'r mut OrdMap<LeaseName, Arc<NameRecord>>,
    name: &LeaseName,
    limit: u32,
) -> &'r mut NameRecord {
    let record = records.entry(name.clone()).or_insert_with(|| Arc::new(NameRecord::new(limit)));
    let record = Arc::make_mut(record);
    if !record.is_in_use() {
        record.limit = limit;
    }
    record
}

/// The record of a name that exists. Not a method, so that callers can borrow the indexes at the same time.
fn existing<'r>(records: &'r mut OrdMap<LeaseName, Arc<NameRecord>>, name: &LeaseName) -> &'r mut NameRecord {
    Arc::make_mut(records.get_mut(name).expect("a record exists while anything refers to it"))
}
