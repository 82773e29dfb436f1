//! A second implementation of the rules: slow and simple, with flat lists and no index. It follows the rules, not the
//! machine's code, so that both are unlikely to have the same bug.

mod commands;
mod reads;

use std::collections::{BTreeMap, BTreeSet};

use tenure::lease::{
    Acquire, Batch, CONFIRM_WINDOW_MS, Change, DropCause, DroppedWaiter, Effects, GrantCause, HolderLease, LeaseState,
    Limits, Lost, LostReason, Outcome, Transition, Waiter, WaiterId,
};
use tenure::token::FencingToken;
use tenure::types::{AccessName, ClusterMs, HolderId, LeaseName};

pub struct Model {
    pub now: ClusterMs,
    wall_ms: u64,
    position: FencingToken,
    pub limits: Limits,
    term_began: ClusterMs,
    /// Held and ended leases of all names, in the order of their grants.
    leases: Vec<ModelLease>,
    /// Waiters of all names, in the order of arrival.
    waiters: Vec<ModelWaiter>,
    /// The principal of each holder and waiter that has one.
    owners: BTreeMap<(LeaseName, HolderId), AccessName>,
    delays: BTreeMap<LeaseName, ClusterMs>,
    history: BTreeMap<LeaseName, Vec<Transition>>,
    /// The names that the current entry granted.
    granted_here: BTreeSet<LeaseName>,
    /// The effects of the current entry.
    effects: Effects,
}

struct ModelLease {
    lease: HolderLease,
    /// Time, log index and part of its end.
    ended: Option<(ClusterMs, u64, u32)>,
}

struct ModelWaiter {
    acquire: Acquire,
    shown: Waiter,
    confirmed_until: ClusterMs,
    /// Term of the last entry that confirmed it.
    confirmed_term: u64,
}

impl Model {
    pub fn new(limits: Limits) -> Model {
        Model {
            now: 0,
            wall_ms: 0,
            position: FencingToken::new(0, 0),
            limits,
            term_began: 0,
            leases: Vec::new(),
            waiters: Vec::new(),
            owners: BTreeMap::new(),
            delays: BTreeMap::new(),
            history: BTreeMap::new(),
            granted_here: BTreeSet::new(),
            effects: Effects::default(),
        }
    }

    pub fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects) {
        let mut deferred = self.deferred();
        deferred.retain(|name| !self.waits_for_confirmation(name));
        let deferred: Vec<_> = deferred.into_iter().map(|name| (self.now, name, 3)).collect();
        self.now = self.now.max(batch.stamp.now);
        if self.position.term() < position.term() {
            self.term_began = self.now;
        }
        self.position = position;
        self.wall_ms = batch.stamp.wall_ms;
        self.granted_here.clear();
        self.expire_due(deferred);
        let mut outcomes = Vec::new();
        for command in &batch.commands {
            self.forget_owners();
            outcomes.push(self.apply_command(command));
            self.promote_waiters(None);
            self.forget_histories();
        }
        self.forget();
        (outcomes, std::mem::take(&mut self.effects))
    }

    /// `deferred`: the grants that the previous entry deferred.
    fn expire_due(&mut self, deferred: Vec<(ClusterMs, LeaseName, u8)>) {
        let now = self.now;
        let mut due: Vec<(ClusterMs, LeaseName, FencingToken)> = Vec::new();
        for held in self.leases.iter().filter(|held| held.ended.is_none()) {
            if let Some(at) = held.lease.deadline.filter(|at| *at < now) {
                due.push((at + 1, held.lease.name.clone(), held.lease.token));
            }
        }
        due.sort();
        let mut events = deferred;
        events.extend(due.iter().map(|(at, name, _)| (*at, name.clone(), 0)));
        let mut late: Vec<(ClusterMs, LeaseName, usize)> = Vec::new();
        for (at, waiting) in self.waiters.iter().enumerate() {
            let ends = waiting.shown.until.min(waiting.confirmed_until);
            if ends < now {
                late.push((ends + 1, waiting.acquire.name.clone(), at));
            }
        }
        late.sort();
        events.extend(late.iter().map(|(at, name, _)| (*at, name.clone(), 1)));
        events.extend(self.delays.iter().filter(|(_, at)| **at < now).map(|(name, at)| (*at + 1, name.clone(), 2)));
        self.delays.retain(|_, until| *until >= now);
        for (_, name, token) in due {
            self.end(&name, token, Change::Expired);
        }
        for (_, name, at) in &late {
            let waiting = &self.waiters[*at];
            let cause = if waiting.shown.until < now { DropCause::WaitTimeout } else { DropCause::Abandoned };
            let waiter = WaiterId { name: name.clone(), holder: waiting.acquire.holder.clone() };
            self.effects.dropped.push(DroppedWaiter { waiter, cause });
        }
        let gone: BTreeSet<usize> = late.iter().map(|(.., at)| *at).collect();
        let mut at = 0;
        self.waiters.retain(|_| {
            at += 1;
            !gone.contains(&(at - 1))
        });
        // Slots go to waiters in the order in which the timers of the names fire.
        events.sort();
        for (_, name, _) in events {
            self.promote_waiters(Some(&name));
        }
        self.promote_waiters(None);
        self.forget_histories();
    }

    /// Names with a free slot and a waiter.
    fn deferred(&self) -> Vec<LeaseName> {
        let names: BTreeSet<&LeaseName> = self.waiters.iter().map(|waiting| &waiting.acquire.name).collect();
        names.into_iter().filter(|name| self.promotable(name).is_some()).cloned().collect()
    }

    fn promote_waiters(&mut self, only: Option<&LeaseName>) {
        for name in self.deferred() {
            if only.is_some_and(|only| *only != name) {
                continue;
            }
            while let Some(at) = self.promotable(&name).filter(|_| !self.granted_here.contains(&name)) {
                if self.is_confirmed(at) {
                    let waiting = self.waiters.remove(at);
                    self.grant(&waiting.acquire, GrantCause::Queue);
                } else if self.window_end() < self.now {
                    let holder = self.waiters.remove(at).acquire.holder;
                    let waiter = WaiterId { name: name.clone(), holder };
                    self.effects.dropped.push(DroppedWaiter { waiter, cause: DropCause::Abandoned });
                } else {
                    break;
                }
            }
        }
    }

    fn is_confirmed(&self, at: usize) -> bool {
        self.waiters[at].confirmed_term == self.position.term()
    }

    /// The last millisecond in which a free slot stays reserved for a waiter of an earlier term.
    fn window_end(&self) -> ClusterMs {
        self.term_began + CONFIRM_WINDOW_MS
    }

    /// Whether a free slot is reserved for an unconfirmed first waiter.
    fn waits_for_confirmation(&self, name: &LeaseName) -> bool {
        self.promotable(name).is_some_and(|at| !self.is_confirmed(at)) && self.now <= self.window_end()
    }

    fn promotable(&self, name: &LeaseName) -> Option<usize> {
        let first = self.waiters.iter().position(|waiting| waiting.acquire.name == *name)?;
        let limit = self.waiters[first].acquire.limit as usize;
        (self.held(name).count() < limit && !self.delays.contains_key(name)).then_some(first)
    }

    fn grant(&mut self, acquire: &Acquire, cause: GrantCause) -> HolderLease {
        let (now, wall_ms, token) = (self.now, self.wall_ms, self.position);
        let lease = HolderLease {
            name: acquire.name.clone(),
            holder: acquire.holder.clone(),
            token,
            ttl: acquire.ttl,
            deadline: acquire.ttl.deadline(now),
            state: LeaseState::Active,
            granted_at: now,
            granted_wall_ms: wall_ms,
            renewed_at: now,
            renewed_wall_ms: wall_ms,
            renewals: 0,
            metadata: acquire.metadata.clone(),
            limit: acquire.limit,
            lock_delay_ms: acquire.lock_delay_ms,
            waiters: 0,
            metadata_version: 0,
        };
        self.record_transition(&lease, Change::Granted(cause));
        self.leases.push(ModelLease { lease, ended: None });
        self.granted_here.insert(acquire.name.clone());
        self.shown(&acquire.name, token)
    }

    fn end(&mut self, name: &LeaseName, token: FencingToken, change: Change) {
        let (state, has_delay) = match &change {
            Change::Expired => (LeaseState::Expired, true),
            Change::Revoked { .. } => (LeaseState::Revoked, true),
            Change::Released => (LeaseState::Released, false),
            Change::HandedOver { .. } => (LeaseState::HandedOver, false),
            Change::Granted(_) | Change::Restored => panic!("no command ends a lease this way"),
        };
        let end = (self.now, self.position.index(), self.effects.transitions.len() as u32);
        let held = |held: &&mut ModelLease| held.lease.name == *name && held.lease.token == token;
        let ending = self.leases.iter_mut().find(held).expect("the lease is held");
        ending.ended = Some(end);
        ending.lease.state = state;
        ending.lease.deadline = None;
        let lease = ending.lease.clone();
        if has_delay && lease.lock_delay_ms > 0 {
            let until = self.delays.entry(name.clone()).or_insert(0);
            *until = (*until).max(self.now + lease.lock_delay_ms);
        }
        self.record_transition(&lease, change);
    }

    fn record_transition(&mut self, lease: &HolderLease, change: Change) {
        let transition = Transition {
            index: self.position.index(),
            part: self.effects.transitions.len() as u32,
            name: lease.name.clone(),
            holder: lease.holder.clone(),
            token: lease.token,
            change,
            at: self.now,
            wall_ms: self.wall_ms,
        };
        self.effects.transitions.push(transition.clone());
        let history = self.history.entry(lease.name.clone()).or_default();
        history.push(transition);
        let beyond = history.len().saturating_sub(self.limits.history as usize);
        history.drain(..beyond);
    }

    fn forget(&mut self) {
        loop {
            let ended = self.leases.iter().filter_map(|held| held.ended);
            let Some(oldest) = ended.clone().min_by_key(|(_, index, part)| (*index, *part)) else { break };
            let is_old = oldest.0 + self.limits.ended_keep_ms <= self.now;
            if !is_old && ended.count() as u64 <= self.limits.ended_keep {
                break;
            }
            self.leases.retain(|held| held.ended != Some(oldest));
        }
        self.forget_histories();
    }

    /// Removes the histories of names that the model does not remember.
    fn forget_histories(&mut self) {
        let mut known = self.live_names();
        known.extend(self.leases.iter().map(|held| held.lease.name.clone()));
        self.history.retain(|name, _| known.contains(name));
    }

    fn held(&self, name: &LeaseName) -> impl Iterator<Item = &HolderLease> {
        self.leases.iter().filter(|held| held.ended.is_none()).map(|held| &held.lease).filter(move |l| l.name == *name)
    }

    fn waiting(&self, name: &LeaseName) -> impl Iterator<Item = &ModelWaiter> {
        self.waiters.iter().filter(move |waiting| waiting.acquire.name == *name)
    }

    fn place(&self, waiter: &WaiterId) -> Option<usize> {
        let is_it = |at: &ModelWaiter| at.acquire.name == waiter.name && at.acquire.holder == waiter.holder;
        self.waiters.iter().position(is_it)
    }

    fn limit(&self, name: &LeaseName) -> Option<u32> {
        let held = self.held(name).map(|lease| lease.limit).next();
        held.or_else(|| self.waiting(name).map(|waiting| waiting.acquire.limit).next())
    }

    fn live_names(&self) -> BTreeSet<LeaseName> {
        let held = self.leases.iter().filter(|held| held.ended.is_none()).map(|held| &held.lease.name);
        let waiting = self.waiters.iter().map(|waiting| &waiting.acquire.name);
        held.chain(waiting).chain(self.delays.keys()).cloned().collect()
    }

    /// The granted token. A caller can have its integer form only, with a saturated term.
    fn own(&self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> Option<FencingToken> {
        let fits = |lease: &&HolderLease| lease.holder == *holder && lease.token.as_u64() == token.as_u64();
        self.held(name).find(fits).map(|lease| lease.token)
    }

    fn lost(&self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> Lost {
        let was = |of: &HolderId, at: FencingToken| of == holder && at.as_u64() == token.as_u64();
        let ended = self.leases.iter().filter(|held| held.lease.name == *name && held.ended.is_some());
        let state = ended.filter(|held| was(&held.lease.holder, held.lease.token)).map(|held| held.lease.state).next();
        let events = self.history.get(name).into_iter().flatten();
        let in_history = events.filter(|event| was(&event.holder, event.token)).find_map(|event| match event.change {
            Change::Granted(_) | Change::Restored => None,
            Change::Expired => Some(LeaseState::Expired),
            Change::Released => Some(LeaseState::Released),
            Change::Revoked { .. } => Some(LeaseState::Revoked),
            Change::HandedOver { .. } => Some(LeaseState::HandedOver),
        });
        let cause = match state.or(in_history) {
            Some(LeaseState::Expired) => LostReason::Expired,
            Some(LeaseState::Released) => LostReason::Released,
            Some(LeaseState::Revoked) => LostReason::Revoked,
            Some(LeaseState::HandedOver) => LostReason::HandedOver,
            _ => LostReason::Unknown,
        };
        let forever = ClusterMs::MAX;
        let holder = self.held(name).min_by_key(|lease| (lease.deadline.unwrap_or(forever), lease.token));
        Lost { cause, holder: holder.map(|lease| lease.holder.clone()) }
    }

    fn lease_mut(&mut self, name: &LeaseName, token: FencingToken) -> &mut HolderLease {
        let is_it = |held: &&mut ModelLease| held.lease.name == *name && held.lease.token == token;
        &mut self.leases.iter_mut().find(is_it).expect("the lease is held").lease
    }

    fn shown(&self, name: &LeaseName, token: FencingToken) -> HolderLease {
        let held = self.held(name).find(|lease| lease.token == token).expect("the lease is held");
        HolderLease { waiters: self.waiting(name).count() as u32, ..held.clone() }
    }
}
