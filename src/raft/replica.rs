//! The replicated state of one node: the lease machine, the membership, and who joined with which disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::payload::{Content, Joined, PayloadError};
use super::types::{Applied, Entry, LogId, Stored, position};
use crate::lease::{Batch, Effects, Limits, Machine};
use crate::storage::Position;
use crate::token::FencingToken;
use crate::types::{ClusterMs, NodeId};
use openraft::EntryPayload;

/// Everything that a snapshot carries. Cloning is cheap: the lease machine shares structure.
#[derive(Clone)]
pub struct State {
    pub machine: Machine,
    pub applied: Option<LogId>,
    pub membership: Stored,
    pub joined: BTreeMap<NodeId, u64>,
}

/// How far this replica is, for those who wait for it to move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub applied: Position,
    /// Cluster time.
    pub now: ClusterMs,
    /// Cluster time at which something is due.
    pub next_due: Option<ClusterMs>,
    pub has_deadlines: bool,
    pub limits: Limits,
}

/// Told of every applied entry, in log order, from inside apply: it must be quick and must not wait.
pub trait Observer: Send + Sync + 'static {
    fn applied(&self, index: u64, effects: Effects, machine: &Machine);

    /// The state was replaced by a snapshot: what happened in between is not told.
    fn replaced(&self, index: u64, machine: &Machine);

    /// An entry is about to be applied. A test may look at it, or spoil it to see that this is found.
    #[cfg(feature = "testing")]
    fn applying(&self, _machine: &mut Machine, _token: &mut FencingToken, _batch: &mut Batch) {}
}

/// Observes nothing.
#[cfg(test)]
impl Observer for () {
    fn applied(&self, _: u64, _: Effects, _: &Machine) {}
    fn replaced(&self, _: u64, _: &Machine) {}
}

/// The state that apply writes and all tasks of the node read.
#[derive(Clone)]
pub struct Replica {
    shared: Arc<Shared>,
}

struct Shared {
    state: RwLock<State>,
    observer: Arc<dyn Observer>,
    progress: watch::Sender<Progress>,
}

impl Replica {
    pub fn new(observer: Arc<dyn Observer>) -> Replica {
        let state =
            State { machine: Machine::new(), applied: None, membership: Stored::default(), joined: BTreeMap::new() };
        let (progress, _) = watch::channel(Progress::default());
        Replica { shared: Arc::new(Shared { state: RwLock::new(state), observer, progress }) }
    }

    /// Looks at the state. Applies wait meanwhile: be brief.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.shared.state.read())
    }

    /// A consistent view that later applies do not change.
    pub fn view(&self) -> State {
        self.shared.state.read().clone()
    }

    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.shared.progress.subscribe()
    }

    pub(super) fn apply(&self, entry: &Entry) -> Result<Applied, PayloadError> {
        let mut state = self.shared.state.write();
        let mut outcomes = Vec::new();
        let mut effects = Effects::default();
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => {
                state.membership = Stored::new(Some(entry.log_id), membership.clone());
            }
            EntryPayload::Normal(proposal) => match proposal.content()? {
                Content::Leases(mut batch) => {
                    let mut token = FencingToken { term: entry.log_id.leader_id.term, index: entry.log_id.index };
                    announce(self.shared.observer.as_ref(), &mut state.machine, &mut token, &mut batch);
                    (outcomes, effects) = state.machine.apply(token, &batch);
                }
                // The first disk stays the one: a later entry cannot bless a wiped voter.
                Content::Joined(Joined { node, incarnation }) => {
                    state.joined.entry(node).or_insert(incarnation);
                }
            },
        }
        state.applied = Some(entry.log_id);
        self.shared.observer.applied(entry.log_id.index, effects, &state.machine);
        Ok(Applied(outcomes))
    }

    /// Tells those who wait how far the state is now.
    pub(super) fn publish(&self) {
        let progress = self.read(|state| Progress {
            applied: state.applied.as_ref().map(position).unwrap_or_default(),
            now: state.machine.now(),
            next_due: state.machine.next_due(),
            has_deadlines: state.machine.has_deadlines(),
            limits: state.machine.limits(),
        });
        self.shared.progress.send_if_modified(|current| std::mem::replace(current, progress) != progress);
    }

    pub(super) fn replace(&self, state: State) {
        let index = state.applied.map_or(0, |applied| applied.index);
        let mut current = self.shared.state.write();
        *current = state;
        self.shared.observer.replaced(index, &current.machine);
        drop(current);
        self.publish();
    }
}

#[cfg(feature = "testing")]
fn announce(observer: &dyn Observer, machine: &mut Machine, token: &mut FencingToken, batch: &mut Batch) {
    observer.applying(machine, token, batch);
}

#[cfg(not(feature = "testing"))]
fn announce(_: &dyn Observer, _: &mut Machine, _: &mut FencingToken, _: &mut Batch) {}
