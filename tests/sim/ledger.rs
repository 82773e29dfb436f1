//! The record of all applied entries, as the first replica applied each of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::lease::{Batch, DroppedWaiter, Effects, Lease, Machine, Outcome, Transition, Waiter};
use tenure::testing::{AppliedEntry, Observer};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, NodeId};
use tokio::time::Instant;

use super::promises;
use super::verdict::Violation;
use super::world::lock;

/// One applied log entry.
#[derive(Clone)]
pub struct Entry {
    pub index: u64,
    /// When the first replica applied it. The entry was committed by then.
    pub at: Duration,
    pub by: NodeId,
    /// The commands, if the entry has any.
    pub input: Option<LogInput>,
    /// One outcome per command.
    pub outcomes: Vec<Outcome>,
    pub transitions: Vec<Transition>,
    pub dropped: Vec<DroppedWaiter>,
    /// The state after the entry.
    pub machine: Machine,
}

/// The commands of a log entry.
#[derive(Clone, Debug, PartialEq)]
pub struct LogInput {
    pub position: FencingToken,
    pub batch: Batch,
}

/// The applied entries of all replicas.
pub struct Ledger {
    began: Instant,
    /// Entries with consecutive indexes.
    pub entries: Vec<Entry>,
    pub violations: Vec<Violation>,
    /// The last applied index of each node since its last start.
    pub applied: BTreeMap<NodeId, u64>,
}

impl Entry {
    /// The holders of a lease after this entry.
    pub fn held(&self, name: &LeaseName) -> Vec<Lease> {
        self.machine.get(name).map(|view| view.held).unwrap_or_default()
    }

    pub fn holds(&self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> bool {
        self.held(name).iter().any(|lease| lease.holder == *holder && lease.token == token)
    }
}

impl Ledger {
    pub fn new(began: Instant) -> Ledger {
        Ledger { began, entries: Vec::new(), violations: Vec::new(), applied: BTreeMap::new() }
    }

    pub fn first_index(&self) -> u64 {
        self.entries.first().map_or(0, |entry| entry.index)
    }

    pub fn last_index(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.index)
    }

    /// The entry with this index.
    pub fn entry(&self, index: u64) -> Option<&Entry> {
        self.entries.get(index.checked_sub(self.first_index())? as usize)
    }

    /// The previous entry.
    pub fn before(&self, entry: &Entry) -> Option<&Entry> {
        entry.index.checked_sub(1).and_then(|index| self.entry(index))
    }

    /// The holders of a lease after the entry with this index.
    pub fn held_at(&self, index: u64, name: &LeaseName) -> Vec<(String, FencingToken)> {
        let held = self.entry(index).map(|entry| entry.held(name)).unwrap_or_default();
        held.into_iter().map(|lease| (lease.holder.to_string(), lease.token)).collect()
    }

    /// The queue of a lease before this entry.
    pub fn queue_before(&self, entry: &Entry, name: &LeaseName) -> Vec<Waiter> {
        self.before(entry).map_or(Vec::new(), |before| before.machine.queue(name))
    }

    pub fn transitions(&self) -> impl Iterator<Item = (&Entry, &Transition)> {
        self.entries.iter().flat_map(|entry| entry.transitions.iter().map(move |transition| (entry, transition)))
    }

    /// Records that a replica has applied an entry.
    ///
    /// The first replica adds the entry and checks all invariants of an entry. Other replicas must agree with it.
    pub fn record(&mut self, by: NodeId, applied: &AppliedEntry<'_>) {
        let index = applied.position.index;
        let before = self.applied.insert(by, index);
        let position = FencingToken::new(applied.position.term, index);
        let Effects { transitions, dropped } = applied.effects.clone();
        let entry = Entry {
            index,
            at: self.began.elapsed(),
            by,
            input: applied.batch.map(|batch| LogInput { position, batch: batch.clone() }),
            outcomes: applied.outcomes.to_vec(),
            transitions,
            dropped,
            machine: applied.machine.clone(),
        };
        if before.is_some_and(|before| before >= index) {
            self.violations
                .push(Violation::new("replicas_agree", format!("node {by} applied {index} after {before:?}")));
        }
        match self.entry(index) {
            Some(first) => {
                let violations = promises::check_replica(first, &entry);
                self.violations.extend(violations);
            }
            None => {
                let next = self.entries.last().map_or(index, |last| last.index + 1);
                if index != next {
                    let how = format!("node {by} applied {index}, but no replica applied {next}");
                    self.violations.push(Violation::new("committed_stays", how));
                    return;
                }
                self.entries.push(entry);
                let violations = promises::check_entry(self, self.entries.last().expect("the entry was just added"));
                self.violations.extend(violations);
            }
        }
    }

    /// Records that a snapshot replaced the state of a replica.
    pub fn replace(&mut self, by: NodeId, index: u64, machine: &Machine) {
        self.applied.insert(by, index);
        if let Some(first) = self.entry(index) {
            let violations = promises::check_snapshot(first, by, machine);
            self.violations.extend(violations);
        }
    }
}

/// Reports the applied entries of one incarnation of a node to the ledger.
pub struct LedgerObserver {
    node: NodeId,
    ledger: Arc<Mutex<Ledger>>,
}

impl LedgerObserver {
    pub fn new(node: NodeId, ledger: Arc<Mutex<Ledger>>) -> Arc<LedgerObserver> {
        lock(&ledger).applied.remove(&node);
        Arc::new(LedgerObserver { node, ledger })
    }
}

impl Observer for LedgerObserver {
    fn applied(&self, entry: &AppliedEntry<'_>) {
        lock(&self.ledger).record(self.node, entry);
    }

    fn replaced(&self, index: u64, machine: &Machine) {
        lock(&self.ledger).replace(self.node, index, machine);
    }
}
