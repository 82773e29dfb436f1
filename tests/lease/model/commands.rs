//! The effect of each command.

use tenure::lease::{
    Acquire, Change, Command, DropCause, DroppedWaiter, GrantCause, HolderCommand, HolderLease, Lost, LostReason,
    Outcome, Refusal, Renewal, Waiter, WaiterId,
};
use tenure::token::FencingToken;
use tenure::types::{AccessName, ClusterMs, HolderId, LeaseName, Metadata};

use super::{Model, ModelWaiter};

impl Model {
    pub(super) fn apply_command(&mut self, command: &Command) -> Outcome {
        match command {
            Command::Acquire(acquire) => self.acquire(acquire),
            Command::Renew { holder, leases } => {
                Outcome::Renewed(leases.iter().map(|renewal| self.renew(holder, renewal)).collect())
            }
            Command::Release { name, holder, token } => {
                let is_held = self.own(name, holder, *token).is_some();
                if is_held {
                    self.end(name, *token, Change::Released);
                }
                Outcome::Released(is_held)
            }
            Command::Revoke { name, reason } => {
                let tokens: Vec<FencingToken> = self.held(name).map(|lease| lease.token).collect();
                for token in &tokens {
                    self.end(name, *token, Change::Revoked { reason: reason.clone() });
                }
                Outcome::Revoked(tokens.len() as u32)
            }
            Command::HandOver { name, holder, token, to } => self.hand_over(name, holder, *token, to.as_ref()),
            Command::KeepWaiting { waiters } => {
                let confirmed_until = self.now + self.limits.waiter_timeout_ms;
                let mut kept = 0;
                for waiter in waiters {
                    let Some(at) = self.place(waiter) else { continue };
                    self.waiters[at].confirmed_until = confirmed_until;
                    self.waiters[at].confirmed_term = self.position.term();
                    self.promote_waiters(Some(&waiter.name));
                    kept += 1;
                }
                Outcome::Waiting(kept)
            }
            Command::LeaveQueue { waiter } => {
                let Some(at) = self.place(waiter) else { return Outcome::Waiting(0) };
                self.waiters.remove(at);
                self.effects.dropped.push(DroppedWaiter { waiter: waiter.clone(), cause: DropCause::Left });
                Outcome::Waiting(1)
            }
            Command::Tick => Outcome::Done,
            Command::SetLimits(limits) => {
                self.limits = *limits;
                Outcome::Done
            }
            Command::UpdateMetadata { name, holder, token, version, metadata } => {
                self.update_metadata(name, holder, *token, *version, metadata)
            }
            Command::As { principal, command } => self.apply_as(principal, command),
        }
    }

    /// The command, unless its holder belongs to another principal. Then the principal has nothing.
    fn apply_as(&mut self, principal: &AccessName, command: &HolderCommand) -> Outcome {
        let is_other = |model: &Model, name: &LeaseName, holder: &HolderId| {
            model.owners.get(&(name.clone(), holder.clone())).is_some_and(|owner| owner != principal)
        };
        let unknown = |model: &Model, name: &LeaseName| {
            let forever = ClusterMs::MAX;
            let first = model.held(name).min_by_key(|lease| (lease.deadline.unwrap_or(forever), lease.token));
            Lost { cause: LostReason::Unknown, holder: first.map(|lease| lease.holder.clone()) }
        };
        match command.clone() {
            HolderCommand::Renew { holder, leases } => {
                let one = |renewal: &Renewal| {
                    if is_other(self, &renewal.name, &holder) {
                        return Err(unknown(self, &renewal.name));
                    }
                    self.renew(&holder, renewal)
                };
                Outcome::Renewed(leases.iter().map(one).collect())
            }
            HolderCommand::Acquire(acquire) => {
                let key = (acquire.name.clone(), acquire.holder.clone());
                if is_other(self, &key.0, &key.1) {
                    return Outcome::Refused(Refusal::HolderInUse);
                }
                let is_in_use = self.is_in_use(&key.0, &key.1);
                let outcome = self.acquire(&acquire);
                if !is_in_use && matches!(outcome, Outcome::Held { .. } | Outcome::Queued { .. }) {
                    self.owners.insert(key, principal.clone());
                }
                outcome
            }
            HolderCommand::Release { name, holder, .. } if is_other(self, &name, &holder) => Outcome::Released(false),
            HolderCommand::HandOver { name, holder, .. } | HolderCommand::UpdateMetadata { name, holder, .. }
                if is_other(self, &name, &holder) =>
            {
                Outcome::Refused(Refusal::Lost(unknown(self, &name)))
            }
            own => self.apply_command(&own.into()),
        }
    }

    fn is_in_use(&self, name: &LeaseName, holder: &HolderId) -> bool {
        let waiter = WaiterId { name: name.clone(), holder: holder.clone() };
        self.token_of(name, holder).is_some() || self.place(&waiter).is_some()
    }

    /// Forgets the owners of holders that neither hold nor wait.
    pub(super) fn forget_owners(&mut self) {
        let owners = std::mem::take(&mut self.owners);
        self.owners = owners.into_iter().filter(|((name, holder), _)| self.is_in_use(name, holder)).collect();
    }

    fn acquire(&mut self, acquire: &Acquire) -> Outcome {
        let Acquire { name, holder, ttl, .. } = acquire;
        if let Some(limit) = self.limit(name).filter(|limit| *limit != acquire.limit) {
            return Outcome::Refused(Refusal::LimitDiffers { limit });
        }
        if let Some(token) = self.token_of(name, holder) {
            let (now, wall_ms) = (self.now, self.wall_ms);
            let own = self.lease_mut(name, token);
            let is_longer = ttl.deadline(now).is_none_or(|asked| own.deadline.is_some_and(|had| asked >= had));
            if is_longer {
                own.ttl = *ttl;
                own.deadline = ttl.deadline(now);
            }
            own.renewals += 1;
            own.renewed_at = now;
            own.renewed_wall_ms = wall_ms;
            return Outcome::Held { lease: self.shown(name, token), fresh: false };
        }
        if !self.live_names().contains(name) && self.live_names().len() as u64 >= self.limits.max_leases {
            return Outcome::Refused(Refusal::TooManyLeases { max_leases: self.limits.max_leases });
        }
        let Some(refusal) = self.grant_refusal(acquire) else {
            return Outcome::Held { lease: self.grant(acquire, GrantCause::Asked), fresh: true };
        };
        acquire.wait_ms.map_or(Outcome::Refused(refusal), |wait_ms| self.enqueue_claim(acquire, wait_ms))
    }

    fn grant_refusal(&self, acquire: &Acquire) -> Option<Refusal> {
        let name = &acquire.name;
        if self.held(name).count() >= acquire.limit as usize {
            let forever = ClusterMs::MAX;
            let first = self.held(name).min_by_key(|lease| (lease.deadline.unwrap_or(forever), lease.token))?;
            return Some(Refusal::Held {
                holder: first.holder.clone(),
                token: first.token,
                granted_wall_ms: first.granted_wall_ms,
                retry_after_ms: first.deadline.map(|at| at - self.now + 1),
                waiters: self.waiting(name).count() as u32,
            });
        }
        if let Some(until) = self.delays.get(name) {
            return Some(Refusal::LockDelay { retry_after_ms: until - self.now + 1 });
        }
        if self.waits_for_confirmation(name) && !self.granted_here.contains(name) {
            return Some(Refusal::LockDelay { retry_after_ms: self.window_end() - self.now + 1 });
        }
        let is_granted = self.granted_here.contains(name) || self.waiting(name).count() > 0;
        is_granted.then_some(Refusal::GrantedInThisEntry)
    }

    fn enqueue_claim(&mut self, acquire: &Acquire, wait_ms: u64) -> Outcome {
        let (now, name) = (self.now, &acquire.name);
        let (confirmed_until, confirmed_term) = (now + self.limits.waiter_timeout_ms, self.position.term());
        let me = WaiterId { name: name.clone(), holder: acquire.holder.clone() };
        if let Some(at) = self.place(&me) {
            let waiting = &mut self.waiters[at];
            waiting.acquire = acquire.clone();
            waiting.shown.until = now + wait_ms;
            waiting.confirmed_until = confirmed_until;
            waiting.confirmed_term = confirmed_term;
            self.promote_waiters(Some(name));
            if let Some(token) = self.token_of(name, &acquire.holder) {
                return Outcome::Held { lease: self.shown(name, token), fresh: true };
            }
            let ahead = self.waiters[..at].iter().filter(|waiting| waiting.acquire.name == *name).count();
            return Outcome::Queued { place: ahead as u32 };
        }
        let place = self.waiting(name).count() as u32;
        if place >= self.limits.max_waiters {
            return Outcome::Refused(Refusal::QueueFull { max_waiters: self.limits.max_waiters });
        }
        let holder = acquire.holder.clone();
        let shown = Waiter { holder, since: now, since_wall_ms: self.wall_ms, until: now + wait_ms };
        self.waiters.push(ModelWaiter { acquire: acquire.clone(), shown, confirmed_until, confirmed_term });
        Outcome::Queued { place }
    }

    fn renew(&mut self, holder: &HolderId, renewal: &Renewal) -> Result<HolderLease, Lost> {
        let (now, wall_ms) = (self.now, self.wall_ms);
        let Some(token) = self.own(&renewal.name, holder, renewal.token) else {
            return Err(self.lost(&renewal.name, holder, renewal.token));
        };
        let own = self.lease_mut(&renewal.name, token);
        let ttl = renewal.ttl.unwrap_or(own.ttl);
        if ttl.deadline(now).is_none_or(|asked| own.deadline.is_some_and(|had| asked >= had)) {
            own.ttl = ttl;
            own.deadline = ttl.deadline(now);
        }
        own.renewals += 1;
        own.renewed_at = now;
        own.renewed_wall_ms = wall_ms;
        Ok(self.shown(&renewal.name, token))
    }

    fn update_metadata(
        &mut self,
        name: &LeaseName,
        holder: &HolderId,
        token: FencingToken,
        version: u64,
        metadata: &Metadata,
    ) -> Outcome {
        let Some(token) = self.own(name, holder, token) else {
            return Outcome::Refused(Refusal::Lost(self.lost(name, holder, token)));
        };
        let own = self.lease_mut(name, token);
        if own.metadata_version == version {
            own.metadata = metadata.clone();
            own.metadata_version += 1;
        } else if own.metadata_version != version + 1 || own.metadata != *metadata {
            return Outcome::Refused(Refusal::MetadataChanged { version: own.metadata_version });
        }
        Outcome::Held { lease: self.shown(name, token), fresh: false }
    }

    fn hand_over(
        &mut self,
        name: &LeaseName,
        holder: &HolderId,
        token: FencingToken,
        to: Option<&HolderId>,
    ) -> Outcome {
        let Some(token) = self.own(name, holder, token) else {
            return Outcome::Refused(Refusal::Lost(self.lost(name, holder, token)));
        };
        let term = self.position.term();
        let is_recipient = |waiting: &ModelWaiter| {
            let is_meant = to.map_or(waiting.confirmed_term == term, |named| waiting.acquire.holder == *named);
            waiting.acquire.name == *name && is_meant
        };
        let Some(at) = self.waiters.iter().position(is_recipient) else {
            return Outcome::Refused(Refusal::NoSuchWaiter);
        };
        if self.granted_here.contains(name) {
            return Outcome::Refused(Refusal::GrantedInThisEntry);
        }
        let recipient = self.waiters.remove(at).acquire;
        self.end(name, token, Change::HandedOver { to: recipient.holder.clone() });
        Outcome::HandedOver(self.grant(&recipient, GrantCause::HandOver))
    }
}
