//! The record of all applied entries, as the first replica applied each of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::lease::{Batch, DroppedWaiter, Effects, HolderLease, Machine, Outcome, Transition};
use tenure::testing::{AppliedEntry, ApplyObserver};
use tenure::token::FencingToken;
use tenure::types::{ClusterMs, LeaseName, NodeId};
use tokio::time::Instant;

use super::invariants::committed_stays;
use super::judge::replay::Replay;
use super::judge::{self, Broken, Progress, replicas_agree};
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
    replay: Replay,
    pub violations: Vec<Broken>,
    /// The last applied index of each node since its last start.
    pub applied: BTreeMap<NodeId, u64>,
    /// The highest index at which a snapshot replaced the state of each node, also before its last start.
    pub replaced: BTreeMap<NodeId, u64>,
}

impl Entry {
    /// The holders of a lease after this entry.
    pub fn held(&self, name: &LeaseName) -> Vec<HolderLease> {
        self.machine.get(name).map(|view| view.held).unwrap_or_default()
    }
}

impl Ledger {
    pub fn new(began: Instant) -> Ledger {
        Ledger {
            began,
            entries: Vec::new(),
            replay: Replay::default(),
            violations: Vec::new(),
            applied: BTreeMap::new(),
            replaced: BTreeMap::new(),
        }
    }

    /// Sets the cluster time of the state that the replicas begin with.
    pub fn begin_at(&mut self, now: ClusterMs) {
        self.replay.begin_at(now);
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

    pub fn transitions(&self) -> impl Iterator<Item = (&Entry, &Transition)> {
        self.entries.iter().flat_map(|entry| entry.transitions.iter().map(move |transition| (entry, transition)))
    }

    /// When the first command of each term was applied.
    pub fn terms(&self) -> Vec<Duration> {
        let inputs = || self.entries.iter().filter_map(|entry| Some((entry.at, entry.input.as_ref()?.position.term())));
        let changes = inputs().zip(inputs().skip(1)).filter(|((_, before), (_, term))| before != term);
        changes.map(|(_, (at, _))| at).collect()
    }

    /// The commits of the cluster.
    pub fn progress(&self) -> Progress {
        let mut progress = Progress::default();
        self.entries.iter().for_each(|entry| progress.saw(entry.index, entry.at));
        progress
    }

    /// Records that a replica has applied an entry.
    ///
    /// The first replica adds the entry, which is judged with its outcomes. Other replicas must agree with it.
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
            self.violate("replicas_agree", format!("node {by} applied {index} after {before:?}"));
        }
        match self.entry(index) {
            Some(first) => {
                let stays = committed_stays::check(first, &entry);
                let effects = replicas_agree::check_effects(
                    (&first.transitions, &first.dropped),
                    (&entry.transitions, &entry.dropped),
                );
                let outcomes = replicas_agree::check_outcomes(&first.outcomes, &entry.outcomes);
                let agree =
                    outcomes.and(effects).and_then(|()| replicas_agree::check_state(&first.machine, &entry.machine));
                let agree = agree.map_err(|how| format!("nodes {} and {by} at {index}: {how}", first.by));
                [("committed_stays", stays), ("replicas_agree", agree)].into_iter().for_each(|(promise, checked)| {
                    checked.unwrap_or_else(|how| self.violate(promise, how));
                });
            }
            None => {
                let next = self.entries.last().map_or(index, |last| last.index + 1);
                if index != next {
                    self.violate(
                        "committed_stays",
                        format!("node {by} applied {index}, but no replica applied {next}"),
                    );
                    return;
                }
                self.judge(&entry);
                self.entries.push(entry);
            }
        }
    }

    fn judge(&mut self, entry: &Entry) {
        let (outcomes, transitions, dropped) = (&entry.outcomes, &entry.transitions, &entry.dropped);
        match &entry.input {
            Some(LogInput { position, batch }) => {
                let judged = judge::entry::Entry { position: *position, batch, outcomes, transitions, dropped };
                let broken = self.replay.apply(&judged);
                self.violations.extend(broken);
            }
            None if transitions.is_empty() && dropped.is_empty() => {}
            None => self.violate("each_transition_once", format!("{transitions:?} and {dropped:?} without a command")),
        }
        let broken = self.replay.compare(&entry.machine);
        self.violations.extend(broken);
    }

    /// Records that a snapshot replaced the state of a replica.
    pub fn replace(&mut self, by: NodeId, index: u64, machine: &Machine) {
        self.applied.insert(by, index);
        let highest = self.replaced.entry(by).or_default();
        *highest = index.max(*highest);
        let checked = self.entry(index).map_or(Ok(()), |first| {
            let agree = replicas_agree::check_state(&first.machine, machine);
            agree.map_err(|how| format!("nodes {} and {by} at {index}, by a snapshot: {how}", first.by))
        });
        checked.unwrap_or_else(|how| self.violate("replicas_agree", how));
    }

    fn violate(&mut self, promise: &'static str, how: String) {
        self.violations.push(Broken::of_cluster(promise, how));
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

impl ApplyObserver for LedgerObserver {
    fn applied(&self, entry: &AppliedEntry<'_>) {
        lock(&self.ledger).record(self.node, entry);
    }

    fn replaced(&self, index: u64, machine: &Machine) {
        lock(&self.ledger).replace(self.node, index, machine);
    }
}
