//! The replicated state of one node: the lease machine, the membership, and the disk of each joined member.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::payload::{Content, Joined, PayloadError};
use super::types::{Applied, Entry, LogId, Stored, position};
use crate::lease::{Batch, Effects, Limits, Machine, Outcome};
use crate::storage::Position;
use crate::token::FencingToken;
use crate::types::{ClusterMs, NodeId};
use openraft::EntryPayload;

/// The content of a snapshot. Cloning is cheap: the lease machine shares structure.
#[derive(Clone)]
pub struct State {
    pub machine: Machine,
    pub applied: Option<LogId>,
    pub membership: Stored,
    pub joined: BTreeMap<NodeId, u64>,
}

/// The progress of this replica, for tasks that wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub applied: Position,
    /// Cluster time.
    pub now: ClusterMs,
    /// Cluster time of the next timer.
    pub next_due: Option<ClusterMs>,
    pub has_deadlines: bool,
    pub limits: Limits,
}

/// A log entry that a replica has applied.
#[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "the observers of a node read only the effects"))]
pub struct AppliedEntry<'a> {
    pub position: Position,
    /// The lease commands of the entry. `None` if it has none.
    pub batch: Option<&'a Batch>,
    /// One outcome per command.
    pub outcomes: &'a [Outcome],
    pub effects: &'a Effects,
    /// The state after the entry.
    pub machine: &'a Machine,
}

/// Observes each applied entry in log order. Apply calls it with the state locked, so an observer must not block.
pub trait Observer: Send + Sync + 'static {
    fn applied(&self, entry: &AppliedEntry<'_>);

    /// A snapshot replaced the state. The observer does not see the entries in between.
    fn replaced(&self, _index: u64, _machine: &Machine) {}
}

/// The state that apply writes and all tasks of the node read.
#[derive(Clone)]
pub struct Replica {
    inner: Arc<ReplicaInner>,
}

struct ReplicaInner {
    state: RwLock<State>,
    observers: Vec<Arc<dyn Observer>>,
    progress: watch::Sender<Progress>,
}

impl Replica {
    pub fn new(observers: Vec<Arc<dyn Observer>>) -> Replica {
        let state =
            State { machine: Machine::new(), applied: None, membership: Stored::default(), joined: BTreeMap::new() };
        let (progress, _) = watch::channel(Progress::default());
        Replica { inner: Arc::new(ReplicaInner { state: RwLock::new(state), observers, progress }) }
    }

    /// Reads the state. Applies wait until `look` returns, so it must be short.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.inner.state.read())
    }

    /// A consistent view of the state. Later applies do not change it.
    pub fn view(&self) -> State {
        self.inner.state.read().clone()
    }

    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.inner.progress.subscribe()
    }

    pub(super) fn apply(&self, entry: &Entry) -> Result<Applied, PayloadError> {
        let mut state = self.inner.state.write();
        let position = position(&entry.log_id);
        let (mut batch, mut outcomes, mut effects) = (None, Vec::new(), Effects::default());
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => {
                state.membership = Stored::new(Some(entry.log_id), membership.clone());
            }
            EntryPayload::Normal(proposal) => match proposal.content()? {
                Content::Leases(leases) => {
                    let token = FencingToken { term: position.term, index: position.index };
                    (outcomes, effects) = state.machine.apply(token, &leases);
                    batch = Some(leases);
                }
                // The first disk stays recorded, so a later entry cannot readmit a wiped voter.
                Content::Joined(Joined { node, incarnation }) => {
                    state.joined.entry(node).or_insert(incarnation);
                }
            },
        }
        state.applied = Some(entry.log_id);
        let (batch, machine) = (batch.as_ref(), &state.machine);
        let applied = AppliedEntry { position, batch, outcomes: &outcomes, effects: &effects, machine };
        self.inner.observers.iter().for_each(|observer| observer.applied(&applied));
        Ok(Applied(outcomes))
    }

    /// Publishes the progress to the waiting tasks.
    pub(super) fn publish(&self) {
        let progress = self.read(|state| Progress {
            applied: state.applied.as_ref().map(position).unwrap_or_default(),
            now: state.machine.now(),
            next_due: state.machine.next_due(),
            has_deadlines: state.machine.has_deadlines(),
            limits: state.machine.limits(),
        });
        self.inner.progress.send_if_modified(|current| std::mem::replace(current, progress) != progress);
    }

    pub(super) fn replace(&self, state: State) {
        let index = state.applied.map_or(0, |applied| applied.index);
        let mut current = self.inner.state.write();
        *current = state;
        self.inner.observers.iter().for_each(|observer| observer.replaced(index, &current.machine));
        drop(current);
        self.publish();
    }
}
