//! Reads of one name. They tell the committed state: what is due but not yet in the log has not happened.

use serde::{Deserialize, Serialize};

use super::queue::QueueEntry;
use super::record::Record;
use super::{Acquire, GrantCause, Lease, Lost, LostCause, Machine, Refusal, Transition, Waiter};
use crate::token::FencingToken;
use crate::types::{ClusterMs, HolderId, LeaseName};

/// Timer is known of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Who holds it, in the order of their tokens: at most one for a plain lease.
    pub held: Vec<Lease>,
    /// Its grants that are over and still remembered, in the order of their tokens.
    pub ended: Vec<Lease>,
    /// Nobody gets it before this cluster time.
    pub delay_until: Option<ClusterMs>,
    pub waiters: u32,
}

/// Why things are as they are with one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Who holds it, since when and until when: as many as [`Machine::holders`] shows.
    pub held: Vec<Lease>,
    /// Nobody gets it before this cluster time.
    pub delay_until: Option<ClusterMs>,
    /// Who gets it next.
    pub next: Option<Waiter>,
    pub waiters: u32,
    /// How the holder that was asked about stands with it.
    pub standing: Option<Standing>,
}

/// How one holder stands with one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    Holds {
        lease: Lease,
        /// `None` when that is forgotten.
        cause: Option<GrantCause>,
    },
    /// Waits; `place` 0 is next.
    Waits { place: u32, waiter: Waiter },
    /// Held it; this transition ended that.
    Ended(Transition),
    /// Neither holds nor waits, and no grant of it is remembered.
    Unknown,
}

impl Machine {
    /// One name, unless nothing is remembered of it.
    pub fn get(&self, name: &LeaseName) -> Option<LeaseView> {
        self.records.get(name).map(|record| LeaseView {
            held: held(name, record),
            ended: record.ended.iter().map(|ended| record.ended_lease(name, ended)).collect(),
            delay_until: record.delay_until,
            waiters: record.queue.len() as u32,
        })
    }

    /// The lease that is held with this token.
    pub fn held_with(&self, name: &LeaseName, token: FencingToken) -> Option<Lease> {
        let record = self.records.get(name)?;
        record.holders.with_token(token.as_u64()).map(|grant| record.lease(name, grant))
    }

    /// Why this holder does not have the lease with this token.
    pub fn lost(&self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> Lost {
        let unheard = Lost { cause: LostCause::Unknown, holder: None };
        self.records.get(name).map_or(unheard, |record| record.lost(holder, token))
    }

    /// Who waits, first to be granted first.
    pub fn queue(&self, name: &LeaseName) -> Vec<Waiter> {
        self.next_waiters(name, usize::MAX).0
    }

    /// The first `most` who wait, and how many wait in all.
    pub fn next_waiters(&self, name: &LeaseName, most: usize) -> (Vec<Waiter>, u32) {
        let Some(record) = self.records.get(name) else { return (Vec::new(), 0) };
        (waiters(record).take(most).collect(), record.queue.len() as u32)
    }

    /// How many hold a name.
    pub fn holder_count(&self, name: &LeaseName) -> u32 {
        self.records.get(name).map_or(0, |record| record.holders.len() as u32)
    }

    /// The last grant of a name that is over and still remembered.
    pub fn last_ended(&self, name: &LeaseName) -> Option<Lease> {
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

    /// Who holds a name and who is next; and for one holder, why it does not hold it. A name of which nothing is
    /// remembered is explained as free.
    pub fn explain(&self, name: &LeaseName, holder: Option<&HolderId>) -> Explanation {
        let Some(record) = self.records.get(name) else {
            let standing = holder.map(|_| Standing::Unknown);
            return Explanation { held: Vec::new(), delay_until: None, next: None, waiters: 0, standing };
        };
        Explanation {
            held: self.holders(name).0,
            delay_until: record.delay_until,
            next: waiters(record).next(),
            waiters: record.queue.len() as u32,
            standing: holder.map(|holder| standing(name, record, holder)),
        }
    }

    /// The refusal that this acquire gets, if it is certain to be refused as [`Refusal::Held`] at `now`: the lease
    /// cannot expire at `now`, and this acquire would not wait. `None` means ask the log.
    pub fn held_by_other(&self, acquire: &Acquire, now: ClusterMs) -> Option<Refusal> {
        let record = self.records.get(&acquire.name)?;
        let is_same_kind = acquire.wait_ms.is_none() && record.limit == acquire.limit;
        let is_full = !record.has_free_slot() && record.holders.of(&acquire.holder).is_none();
        let lasts = record.holders.soonest()?.deadline.is_none_or(|at| at >= now);
        if is_same_kind && is_full && lasts { record.held_refusal(now) } else { None }
    }
}

fn held(name: &LeaseName, record: &Record) -> Vec<Lease> {
    record.holders.iter().map(|grant| record.lease(name, grant)).collect()
}

fn waiters(record: &Record) -> impl Iterator<Item = Waiter> {
    record.queue.iter().map(|(_, entry)| waiter(entry))
}

fn waiter(entry: &QueueEntry) -> Waiter {
    let QueueEntry { since, since_wall_ms, until, .. } = *entry;
    Waiter { holder: entry.request.holder.clone(), since, since_wall_ms, until }
}

fn standing(name: &LeaseName, record: &Record, holder: &HolderId) -> Standing {
    let events = record.history.events(&record.holders);
    let mut events = events.iter().rev().filter(|event| event.holder == *holder);
    if let Some(grant) = record.holders.of(holder) {
        let cause = events.find_map(|event| event.granted_by().filter(|_| event.token == grant.token));
        return Standing::Holds { lease: record.lease(name, grant), cause };
    }
    if let Some(ticket) = record.queue.ticket_of(holder) {
        let entry = record.queue.get(ticket).expect("a ticket is of a place");
        return Standing::Waits { place: record.queue.ahead_of(ticket), waiter: waiter(entry) };
    }
    let last_end = events.find(|event| event.change.ended_as().is_some());
    last_end.map_or(Standing::Unknown, |event| Standing::Ended(event.transition(name)))
}
