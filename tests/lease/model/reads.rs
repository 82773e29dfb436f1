//! The expected results of the machine's reads.

use tenure::lease::{Change, Counts, Explanation, HolderLease, LeaseState, Standing, Transition, Waiter};
use tenure::token::FencingToken;
use tenure::types::{ClusterMs, HolderId, LeaseName};

use super::Model;

impl Model {
    /// Held leases in token order, then ended leases.
    pub fn leases_of(&self, name: &LeaseName) -> Vec<HolderLease> {
        let waiters = self.waiting(name).count() as u32;
        let of_name = self.leases.iter().filter(|held| held.lease.name == *name);
        let mut leases: Vec<HolderLease> = of_name.map(|held| HolderLease { waiters, ..held.lease.clone() }).collect();
        leases.sort_by_key(|lease| (lease.state != LeaseState::Active, lease.token));
        leases
    }

    pub fn queue(&self, name: &LeaseName) -> Vec<Waiter> {
        self.waiting(name).map(|waiting| waiting.shown.clone()).collect()
    }

    pub fn history(&self, name: &LeaseName) -> Vec<Transition> {
        let all = self.history.get(name).cloned().unwrap_or_default();
        let beyond = all.len().saturating_sub(self.limits.history as usize);
        all.into_iter().skip(beyond).collect()
    }

    pub fn explain(&self, name: &LeaseName, holder: &HolderId) -> Explanation {
        let active = |lease: &HolderLease| lease.state == LeaseState::Active;
        let held: Vec<HolderLease> = self.leases_of(name).into_iter().filter(active).collect();
        let reserved_until = self.waits_for_confirmation(name).then(|| self.window_end());
        Explanation {
            delay_until: self.delays.get(name).copied().max(reserved_until),
            next: self.queue(name).into_iter().next(),
            waiters: self.waiting(name).count() as u32,
            standing: Some(self.standing(name, holder, &held)),
            held,
        }
    }

    /// From the newest event backwards: the grant of the current lease, or else the last end of one.
    fn standing(&self, name: &LeaseName, holder: &HolderId, held: &[HolderLease]) -> Standing {
        let remembered = self.history.get(name).into_iter().flatten().rev();
        let mut remembered = remembered.filter(|event| event.holder == *holder);
        if let Some(lease) = held.iter().find(|lease| lease.holder == *holder) {
            let cause = remembered.find_map(|event| match event.change {
                Change::Granted(cause) if event.token == lease.token => Some(cause),
                _ => None,
            });
            return Standing::Holds { lease: lease.clone(), cause };
        }
        if let Some((place, waiter)) = (0..).zip(self.queue(name)).find(|(_, waiter)| waiter.holder == *holder) {
            return Standing::Waits { place, waiter };
        }
        let end = remembered.find(|event| !matches!(event.change, Change::Granted(_)));
        end.cloned().or_else(|| self.forgotten_end(name, holder)).map_or(Standing::Unknown, Standing::Ended)
    }

    /// The end of the last grant that lists still show. The history has forgotten its reason, its receiver and its time.
    fn forgotten_end(&self, name: &LeaseName, holder: &HolderId) -> Option<Transition> {
        let of_holder = self.leases.iter().filter(|held| held.lease.name == *name && held.lease.holder == *holder);
        let last = of_holder.filter(|held| held.ended.is_some()).max_by_key(|held| held.lease.token)?;
        let (at, index, part) = last.ended?;
        let HolderLease { name, holder, token, .. } = last.lease.clone();
        let wall_ms = last.lease.renewed_wall_ms + (at - last.lease.renewed_at);
        let change = match last.lease.state {
            LeaseState::Expired => Change::Expired,
            LeaseState::Released => Change::Released,
            LeaseState::Revoked => Change::Revoked { reason: String::new() },
            _ => return None,
        };
        Some(Transition { index, part, name, holder, token, change, at, wall_ms })
    }

    pub fn next_due(&self) -> Option<ClusterMs> {
        let expires = self.leases.iter().filter_map(|held| held.lease.deadline);
        let waits = self.waiters.iter().map(|waiting| waiting.shown.until.min(waiting.confirmed_until));
        let promotions = self.deferred().into_iter().map(|name| match self.waits_for_confirmation(&name) {
            true => self.window_end() + 1,
            false => self.now,
        });
        // A timer fires in the millisecond after its deadline.
        let timers = expires.chain(waits).chain(self.delays.values().copied()).map(|last| last + 1);
        timers.chain(promotions).min()
    }

    pub fn counts(&self) -> Counts {
        let ended = self.leases.iter().filter(|held| held.ended.is_some()).count() as u64;
        Counts {
            held: self.leases.len() as u64 - ended,
            waiting: self.waiters.len() as u64,
            delayed: self.delays.len() as u64,
            ended,
        }
    }

    /// The token of this holder's grant.
    pub fn token_of(&self, name: &LeaseName, holder: &HolderId) -> Option<FencingToken> {
        self.held(name).find(|lease| lease.holder == *holder).map(|lease| lease.token)
    }
}
