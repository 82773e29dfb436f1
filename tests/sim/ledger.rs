//! What the replicas applied, entry by entry, as the first of them did.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::lease::{Batch, DroppedWaiter, Effects, Lease, Machine, Transition, Waiter};
use tenure::testing::Observer;
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, NodeId};
use tokio::time::Instant;

use super::fault_injector::Meddler;
use super::promises;
use super::verdict::Broken;

/// One applied entry.
#[derive(Clone)]
pub struct Entry {
    pub index: u64,
    /// When the first replica applied it: it was committed by then.
    pub at: Duration,
    pub by: NodeId,
    /// What the log says, if it is an entry of commands.
    pub asked: Option<Asked>,
    pub transitions: Vec<Transition>,
    pub dropped: Vec<DroppedWaiter>,
    /// The state behind the entry.
    pub machine: Machine,
}

/// An entry of the log, as it was before anybody could spoil it.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub position: FencingToken,
    pub batch: Batch,
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

impl Entry {
    /// Who holds a lease behind this entry.
    pub fn held(&self, name: &LeaseName) -> Vec<Lease> {
        self.machine.get(name).map(|view| view.held).unwrap_or_default()
    }

    pub fn holds(&self, name: &LeaseName, holder: &HolderId, token: FencingToken) -> bool {
        self.held(name).iter().any(|lease| lease.holder == *holder && lease.token == token)
    }
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

    /// The entry before this one.
    pub fn before(&self, entry: &Entry) -> Option<&Entry> {
        entry.index.checked_sub(1).and_then(|index| self.entry(index))
    }

    /// Who held a lease behind this entry.
    pub fn held_at(&self, index: u64, name: &LeaseName) -> Vec<(String, FencingToken)> {
        let held = self.entry(index).map(|entry| entry.held(name)).unwrap_or_default();
        held.into_iter().map(|lease| (lease.holder.to_string(), lease.token)).collect()
    }

    /// Who waited for a lease before this entry.
    pub fn queue_before(&self, entry: &Entry, name: &LeaseName) -> Vec<Waiter> {
        self.before(entry).map_or(Vec::new(), |before| before.machine.queue(name))
    }

    pub fn transitions(&self) -> impl Iterator<Item = (&Entry, &Transition)> {
        self.entries.iter().flat_map(|entry| entry.transitions.iter().map(move |transition| (entry, transition)))
    }

    /// A replica has applied an entry. The first that does has all promises about the log checked.
    pub fn record(&mut self, by: NodeId, index: u64, asked: Option<Asked>, effects: Effects, machine: &Machine) {
        let before = self.applied.insert(by, index);
        let Effects { transitions, dropped } = effects;
        let (at, machine) = (self.began.elapsed(), machine.clone());
        let entry = Entry { index, at, by, asked, transitions, dropped, machine };
        if before.is_some_and(|before| before >= index) {
            self.broken.push(Broken::new("replicas_agree", format!("node {by} applied {index} after {before:?}")));
        }
        match self.entry(index) {
            Some(first) => {
                let broken = promises::check_replica(first, &entry);
                self.broken.extend(broken);
            }
            None => {
                let next = self.entries.last().map_or(index, |last| last.index + 1);
                if index != next {
                    let how = format!("node {by} applied {index}, and nobody applied {next}");
                    self.broken.push(Broken::new("committed_stays", how));
                    return;
                }
                self.entries.push(entry);
                let broken = promises::check_entry(self, self.entries.last().expect("it was just added"));
                self.broken.extend(broken);
            }
        }
    }

    /// A replica's state was replaced by a snapshot.
    pub fn replace(&mut self, by: NodeId, index: u64, machine: &Machine) {
        self.applied.insert(by, index);
        if let Some(first) = self.entry(index) {
            let broken = promises::check_snapshot(first, by, machine);
            self.broken.extend(broken);
        }
    }
}

/// One life of one node, as it tells the ledger.
pub struct Tap {
    node: NodeId,
    ledger: Arc<Mutex<Ledger>>,
    /// What is being applied.
    asked: Mutex<Option<Asked>>,
    meddler: Option<Mutex<Meddler>>,
}

impl Tap {
    pub fn new(node: NodeId, ledger: Arc<Mutex<Ledger>>, meddler: Option<Meddler>) -> Arc<Tap> {
        ledger.lock().expect("no panic").applied.remove(&node);
        Arc::new(Tap { node, ledger, asked: Mutex::default(), meddler: meddler.map(Mutex::new) })
    }
}

impl Observer for Tap {
    fn applied(&self, index: u64, effects: Effects, machine: &Machine) {
        let asked = self.asked.lock().expect("no panic").take();
        self.ledger.lock().expect("no panic").record(self.node, index, asked, effects, machine);
    }

    fn replaced(&self, index: u64, machine: &Machine) {
        self.ledger.lock().expect("no panic").replace(self.node, index, machine);
        self.meddler.iter().for_each(|meddler| meddler.lock().expect("no panic").replaced(index));
    }

    fn applying(&self, machine: &mut Machine, token: &mut FencingToken, batch: &mut Batch) {
        *self.asked.lock().expect("no panic") = Some(Asked { position: *token, batch: batch.clone() });
        self.meddler.iter().for_each(|meddler| meddler.lock().expect("no panic").spoil(machine, token, batch));
    }
}
