//! Reads of one name. They return the applied state: a due timer that no entry has fired yet is not visible.

use serde::{Deserialize, Serialize};

use super::queue::QueueEntry;
use super::record::NameRecord;
use super::rules::Promotion;
use super::{
    Acquire, Change, GrantCause, HolderLease, LeaseState, Lost, LostReason, Machine, Refusal, Transition, Waiter,
    WaiterId,
};
use crate::token::FencingToken;
use crate::types::{AccessName, ClusterMs, HolderId, LeaseName};

/// The holders and waiters of one name, and the standing of one holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Its holders: as many as [`Machine::holders`] returns.
    pub held: Vec<HolderLease>,
    /// The last millisecond in which a claim gets a lock delay, in cluster time.
    pub delay_until: Option<ClusterMs>,
    /// The first waiter.
    pub next: Option<Waiter>,
    pub waiters: u32,
    /// The standing of the holder in the request.
    pub standing: Option<Standing>,
}

/// The relation of one holder to one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    Holds {
        lease: HolderLease,
        /// `None` if the history has forgotten it.
        cause: Option<GrantCause>,
    },
    /// The holder waits; `place` is the number of waiters before it.
    Waits { place: u32, waiter: Waiter },
    /// The holder had the lease; this transition ended the last grant.
    Ended(Transition),
    /// The holder neither has the lease nor waits, and the machine remembers no end of its grants.
    Unknown,
}

impl Machine {
    /// The held lease with this token.
    pub fn held_with(&self, name: &LeaseName, token: FencingToken) -> Option<HolderLease> {
        let record = self.records.get(name)?;
        record.holders.with_token(token.as_u64()).map(|grant| record.lease(name, grant))
    }

    /// Why this holder does not have the lease with this token.
    pub fn lost(&self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> Lost {
        let unknown = Lost { cause: LostReason::Unknown, holder: None };
        self.records.get(name).map_or(unknown, |record| record.lost(holder, token))
    }

    /// Whether this waiter is in the queue.
    pub fn is_waiting(&self, id: &WaiterId) -> bool {
        self.records.get(&id.name).is_some_and(|record| record.queue.ticket_of(&id.holder).is_some())
    }

    /// The first `most` waiters, and the number of all waiters.
    pub fn next_waiters(&self, name: &LeaseName, most: usize) -> (Vec<Waiter>, u32) {
        let Some(record) = self.records.get(name) else { return (Vec::new(), 0) };
        (waiters(record).take(most).collect(), record.queue.len() as u32)
    }

    /// The number of holders of a name.
    pub fn holder_count(&self, name: &LeaseName) -> u32 {
        self.records.get(name).map_or(0, |record| record.holders.len() as u32)
    }

    /// The ended lease with the highest token, if the machine remembers one.
    pub fn last_ended(&self, name: &LeaseName) -> Option<HolderLease> {
        let record = self.records.get(name)?;
        record.ended.newest().map(|ended| record.ended_lease(name, ended))
    }

    /// The last transitions, oldest first, at most [`Limits::history`](super::Limits::history) of them.
    pub fn history(&self, name: &LeaseName) -> Vec<Transition> {
        let Some(record) = self.records.get(name) else { return Vec::new() };
        let events = record.history.events(&record.holders);
        let beyond = events.len().saturating_sub(self.limits.history as usize);
        events.iter().skip(beyond).map(|event| event.transition(name)).collect()
    }

    /// The holders of a name, its first waiter, and the standing of one holder. A name that the machine does not
    /// remember is free.
    pub fn explain(&self, name: &LeaseName, holder: Option<&HolderId>) -> Explanation {
        let Some(record) = self.records.get(name) else {
            let standing = holder.map(|_| Standing::Unknown);
            let delay_until = self.no_grants_until;
            return Explanation { held: Vec::new(), delay_until, next: None, waiters: 0, standing };
        };
        // A claim gets a lock delay while a free slot is reserved for an unconfirmed waiter.
        let is_reserved = self.promotion(record) == Some(Promotion::Unconfirmed);
        let reserved_until = is_reserved.then(|| self.window_end());
        Explanation {
            held: self.holders(name).0,
            delay_until: record.delay_until.max(self.no_grants_until).max(reserved_until),
            next: waiters(record).next(),
            waiters: record.queue.len() as u32,
            standing: holder.map(|holder| standing(name, record, holder)),
        }
    }

    /// Whether another principal holds the lease or waits for it with the holder id of this claim.
    pub fn is_foreign(&self, acquire: &Acquire, principal: &AccessName) -> bool {
        self.records.get(&acquire.name).is_some_and(|record| record.belongs_to_other(&acquire.holder, principal))
    }

    /// The refusal of this acquire, if the log would certainly refuse it with [`Refusal::Held`] at `now`. That is so if
    /// the lease cannot expire at `now` and the acquire does not wait. With `None` only the log can decide.
    pub fn held_by_other(&self, acquire: &Acquire, now: ClusterMs) -> Option<Refusal> {
        let record = self.records.get(&acquire.name)?;
        let is_same_kind = acquire.wait_ms.is_none() && record.limit == acquire.limit;
        let is_full = !record.has_free_slot() && record.holders.of(&acquire.holder).is_none();
        let lasts = record.holders.soonest()?.deadline.is_none_or(|at| at >= now);
        if is_same_kind && is_full && lasts { record.held_refusal(now) } else { None }
    }
}

fn waiters(record: &NameRecord) -> impl Iterator<Item = Waiter> {
    record.queue.iter().map(|(_, entry)| waiter(entry))
}

fn waiter(entry: &QueueEntry) -> Waiter {
    let QueueEntry { since, since_wall_ms, until, .. } = *entry;
    Waiter { holder: entry.request.holder.clone(), since, since_wall_ms, until }
}

fn standing(name: &LeaseName, record: &NameRecord, holder: &HolderId) -> Standing {
    let events = record.history.events(&record.holders);
    let mut events = events.iter().rev().filter(|event| event.holder == *holder);
    if let Some(grant) = record.holders.of(holder) {
        let cause = events.find_map(|event| event.granted_by().filter(|_| event.token == grant.token));
        return Standing::Holds { lease: record.lease(name, grant), cause };
    }
    if let Some(ticket) = record.queue.ticket_of(holder) {
        let entry = record.queue.get(ticket).expect("each ticket has a waiter");
        return Standing::Waits { place: record.queue.ahead_of(ticket), waiter: waiter(entry) };
    }
    let last_end = events.find(|event| event.change.ended_as().is_some());
    let last_end = last_end.map(|event| event.transition(name)).or_else(|| forgotten_end(name, record, holder));
    last_end.map_or(Standing::Unknown, Standing::Ended)
}

/// The end of the last grant of this holder, if the history has forgotten it and the machine still remembers the grant.
/// Its reason is lost, and its wall-clock time is counted from the last renewal.
fn forgotten_end(name: &LeaseName, record: &NameRecord, holder: &HolderId) -> Option<Transition> {
    let ended = record.ended.iter().filter(|ended| ended.grant.holder == *holder).last()?;
    let change = match ended.state {
        LeaseState::Expired => Change::Expired,
        LeaseState::Released => Change::Released,
        LeaseState::Revoked => Change::Revoked { reason: String::new() },
        LeaseState::Restored => Change::Restored,
        // The new holder is forgotten too.
        LeaseState::HandedOver | LeaseState::Active | LeaseState::Other => return None,
    };
    let grant = &ended.grant;
    let since_renewal = ended.at.saturating_sub(grant.renewed_at);
    Some(Transition {
        index: ended.index,
        part: ended.part,
        name: name.clone(),
        holder: holder.clone(),
        token: grant.token,
        change,
        at: ended.at,
        wall_ms: grant.renewed_wall_ms.saturating_add(since_renewal),
    })
}
