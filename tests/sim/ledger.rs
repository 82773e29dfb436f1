//! What the replicas applied, entry by entry, as the first of them did.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::lease::{DroppedWaiter, Effects, Machine, Transition, Waiter};
use tenure::testing::Observer;
use tenure::token::FencingToken;
use tenure::types::{LeaseName, NodeId};
use tokio::time::Instant;

use super::verdict::Broken;

/// One applied entry.
pub struct Entry {
    pub index: u64,
    /// When the first replica applied it: it was committed by then.
    pub at: Duration,
    pub by: NodeId,
    pub transitions: Vec<Transition>,
    pub dropped: Vec<DroppedWaiter>,
    /// The state behind the entry.
    pub machine: Machine,
}

/// Everybody's applied entries.
pub struct Ledger {
    began: Instant,
    /// From index `first` on, without a gap.
    pub entries: Vec<Entry>,
    pub broken: Vec<Broken>,
    /// How far each node is, since its last start.
    pub applied: BTreeMap<NodeId, u64>,
}

impl Ledger {
    pub fn new(began: Instant) -> Ledger {
        Ledger { began, entries: Vec::new(), broken: Vec::new(), applied: BTreeMap::new() }
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

    /// Who held a lease behind this entry.
    pub fn held_at(&self, index: u64, name: &LeaseName) -> Vec<(String, FencingToken)> {
        let view = self.entry(index).and_then(|entry| entry.machine.get(name));
        let held = view.map(|view| view.held).unwrap_or_default();
        held.into_iter().map(|lease| (lease.holder.to_string(), lease.token)).collect()
    }

    /// Who waited for a lease before this entry.
    pub fn queue_before(&self, index: u64, name: &LeaseName) -> Vec<Waiter> {
        index.checked_sub(1).and_then(|index| self.entry(index)).map_or(Vec::new(), |entry| entry.machine.queue(name))
    }

    pub fn transitions(&self) -> impl Iterator<Item = (&Entry, &Transition)> {
        self.entries.iter().flat_map(|entry| entry.transitions.iter().map(move |transition| (entry, transition)))
    }

    fn record(&mut self, by: NodeId, index: u64, effects: Effects, machine: &Machine) {
        let before = self.applied.insert(by, index);
        if before.is_some_and(|before| before >= index) {
            self.broken.push(Broken::new("replicas_agree", format!("node {by} applied {index} after {before:?}")));
        }
        match self.entry(index) {
            Some(first) if are_alike(&first.machine, machine) && first.transitions == effects.transitions => {}
            Some(first) => {
                let how = format!(
                    "at {index} node {by} and node {} differ: {:?} and {:?}; {:?} and {:?}",
                    first.by,
                    machine.header(),
                    first.machine.header(),
                    effects.transitions,
                    first.transitions
                );
                self.broken.push(Broken::new("replicas_agree", how));
            }
            None => {
                let next = self.entries.last().map_or(index, |last| last.index + 1);
                if index != next {
                    let how = format!("node {by} applied {index}, and nobody applied {next}");
                    self.broken.push(Broken::new("replicas_agree", how));
                    return;
                }
                let (at, machine) = (self.began.elapsed(), machine.clone());
                let Effects { transitions, dropped } = effects;
                self.entries.push(Entry { index, at, by, transitions, dropped, machine });
            }
        }
    }
}

/// Whether two machines would be stored as the same bytes.
fn are_alike(one: &Machine, other: &Machine) -> bool {
    one.header() == other.header() && one.records().eq(other.records())
}

/// One life of one node, as it tells the ledger.
pub struct Tap {
    pub node: NodeId,
    pub ledger: Arc<Mutex<Ledger>>,
}

impl Tap {
    pub fn new(node: NodeId, ledger: Arc<Mutex<Ledger>>) -> Arc<Tap> {
        ledger.lock().expect("no panic").applied.remove(&node);
        Arc::new(Tap { node, ledger })
    }
}

impl Observer for Tap {
    fn applied(&self, index: u64, effects: Effects, machine: &Machine) {
        self.ledger.lock().expect("no panic").record(self.node, index, effects, machine);
    }

    fn replaced(&self, index: u64) {
        self.ledger.lock().expect("no panic").applied.insert(self.node, index);
    }
}
