//! A machine that continues from a backup in a new cluster.

use super::machine::EntryContext;
use super::{Change, DropCause, Effects, Machine, Stamp};
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, Ttl};

impl Machine {
    /// Continues at `position` as the state of a new cluster.
    ///
    /// The state is history: since the backup, holders may have lost their leases, and other holders may have them. So
    /// every grant ends, every waiter leaves its queue, and no name is granted for `no_grants_ms` of cluster time. With
    /// `None`, the caller knows that no earlier holder is active.
    ///
    /// # Panics
    ///
    /// If `position` is not above the position of the state.
    pub fn restore(&mut self, position: FencingToken, wall_ms: u64, no_grants_ms: Option<u64>) -> Effects {
        assert!(
            self.applied().is_none_or(|last| last.index < position.index && last.as_u64() < position.as_u64()),
            "restored at {position:?} after {:?}: expected a higher position",
            self.applied()
        );
        let names: Vec<LeaseName> = self.records.keys().cloned().collect();
        let stamp = Stamp { now: self.now(), wall_ms };
        let mut entry = EntryContext::begin(self, position, stamp);
        // An earlier restore may have left a longer time.
        let until = no_grants_ms.map(|ms| entry.now.saturating_add(ms).max(entry.machine.no_grants_until.unwrap_or(0)));
        entry.machine.no_grants_until = until;
        for name in &names {
            entry.end_all(name);
        }
        entry.finish()
    }

    /// The holder or waiter that can keep its name from others for the longest time without a renewal: its name, ttl and
    /// lock delay. A waiter can get the lease after this state.
    pub fn longest_claim(&self) -> Option<(&LeaseName, &HolderId, Ttl, u64)> {
        let claims = self.records.iter().flat_map(|(name, record)| {
            let held = record.holders.iter().map(|grant| (&grant.holder, grant.ttl, grant.lock_delay_ms));
            let requests = record.queue.iter().map(|(_, waiter)| &waiter.request);
            let waiting = requests.map(|request| (&request.holder, request.ttl, request.lock_delay_ms));
            held.chain(waiting).map(move |(holder, ttl, lock_delay_ms)| (name, holder, ttl, lock_delay_ms))
        });
        claims.max_by_key(|(_, _, ttl, lock_delay_ms)| {
            ttl.as_millis().map_or(u64::MAX, |ttl| ttl.saturating_add(*lock_delay_ms))
        })
    }
}

impl EntryContext<'_> {
    fn end_all(&mut self, name: &LeaseName) {
        while let Some((ticket, _)) = self.record(name).and_then(|record| record.queue.first()) {
            self.drop_waiter(name, ticket, DropCause::Abandoned);
        }
        while let Some(token) = self.record(name).and_then(|record| record.holders.soonest().map(|grant| grant.token)) {
            self.end(name, token.as_u64(), Change::Restored);
        }
        self.promote_waiter(name);
    }
}
