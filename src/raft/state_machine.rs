//! The replicated state of one node, and openraft's state machine over it: the lease machine, the membership, and the
//! disk of each joined member.
//!
//! The state is in memory. A restart rebuilds it from the last snapshot and the log. Another thread encodes a snapshot
//! from a view that shares structure with the state, so applies continue. openraft purges the log up to a snapshot.
//! Therefore a snapshot is valid only after the store has read it back and the result could be loaded.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use futures_util::{Stream, TryStreamExt};
use openraft::EntryPayload;
use openraft::alias::{LogIdOf, SnapshotOf, StoredMembershipOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use super::level::FeatureLevel;
use super::log::{Content, Joined, PayloadError, io_error};
use super::network::OutgoingSnapshots;
use super::snapshot::{self, Meta, SnapshotData, SnapshotError};
use super::times::EntryTimes;
use super::types::{Applied, Entry, LogId, SnapshotMeta, Stored, TypeConfig, position};
use crate::access::Access;
use crate::lease::{Batch, Effects, Limits, Machine, Outcome};
use crate::storage::{Position, SnapshotManifest, SnapshotWriter, Storage, StorageError, codec};
use crate::token::FencingToken;
use crate::types::{ClusterMs, NodeId};

/// Largest encoded [`Meta`], in bytes.
const MAX_META_BYTES: usize = 16 << 10;

/// The content of a snapshot. Cloning is cheap: the lease machine shares structure.
#[derive(Clone, Default)]
pub struct State {
    pub machine: Machine,
    pub applied: Option<LogId>,
    pub membership: Stored,
    /// The incarnation that each node joined with. Removed nodes are included, so that no id is used again.
    pub joined: BTreeMap<NodeId, u64>,
    pub access: Access,
    pub level: FeatureLevel,
}

/// The incarnation of a node that was removed before it joined.
const NEVER_JOINED: u64 = 0;

impl State {
    /// Whether the node was a member and is not one now.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.joined.contains_key(&node) && self.is_formed() && !self.is_member(node)
    }

    pub fn is_member(&self, node: NodeId) -> bool {
        self.membership.membership().get_node(&node).is_some()
    }

    /// Whether this state has a membership.
    pub fn is_formed(&self) -> bool {
        self.membership.log_id().is_some()
    }

    fn set_membership(&mut self, membership: Stored) {
        let removed =
            self.membership.membership().nodes().filter(|(id, _)| membership.membership().get_node(id).is_none());
        let removed: Vec<NodeId> = removed.map(|(id, _)| *id).collect();
        for node in removed {
            self.joined.entry(node).or_insert(NEVER_JOINED);
        }
        self.membership = membership;
    }
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
pub trait ApplyObserver: Send + Sync + 'static {
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
    observers: Vec<Arc<dyn ApplyObserver>>,
    progress: watch::Sender<Progress>,
    access: watch::Sender<Access>,
    /// The highest feature level of this node.
    supported: FeatureLevel,
}

#[derive(Clone)]
pub struct StateMachine<S> {
    replica: Replica,
    storage: S,
    sending: OutgoingSnapshots,
    newest: NewestSnapshot,
    pub(super) times: EntryTimes,
}

pub struct SnapshotBuilder<S> {
    view: State,
    storage: S,
    newest: NewestSnapshot,
}

/// The index of the newest snapshot whose manifest is queued.
///
/// openraft does not wait for a build before it installs a snapshot of the leader. The build may end later than the
/// install, and openraft has purged the log up to the installed snapshot. Therefore the older one must not replace it.
#[derive(Clone, Default)]
struct NewestSnapshot(Arc<Mutex<u64>>);

impl NewestSnapshot {
    /// Waits until the snapshot of `state` is durable. Returns `None`, and drops the snapshot, if a newer one is queued.
    /// The bytes must have been read back.
    async fn finish<S: Storage>(
        &self,
        writer: SnapshotWriter<S>,
        state: &State,
    ) -> Result<Option<SnapshotManifest>, StorageError> {
        let index = state.applied.map_or(0, |applied| applied.index);
        let (done, durable) = oneshot::channel();
        let manifest = {
            // The store writes manifests in the order in which they are queued.
            let mut newest = self.0.lock();
            if index < *newest {
                return Ok(None);
            }
            let done = Box::new(move |result| drop(done.send(result)));
            let manifest = writer.finish(codec::encode(&Meta::of(state)), done)?;
            *newest = index;
            manifest
        };
        durable.await.unwrap_or(Err(StorageError::Closed))?;
        Ok(Some(manifest))
    }
}

impl<S: Storage> StateMachine<S> {
    pub fn new(replica: Replica, storage: S, sending: OutgoingSnapshots) -> StateMachine<S> {
        StateMachine { replica, storage, sending, newest: NewestSnapshot::default(), times: EntryTimes::default() }
    }
}

impl<S: Storage> RaftStateMachine<TypeConfig> for StateMachine<S> {
    type SnapshotData = SnapshotData<S>;
    type SnapshotBuilder = SnapshotBuilder<S>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<TypeConfig>>, StoredMembershipOf<TypeConfig>)> {
        Ok(self.replica.read(|state| (state.applied, state.membership.clone())))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let applied = self.times.applied(entry.log_id.index, || self.replica.apply(&entry))?;
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        self.replica.publish();
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder<S>> {
        if !force && self.sending.defers_next() {
            return None;
        }
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<S> {
        SnapshotBuilder { view: self.replica.view(), storage: self.storage.clone(), newest: self.newest.clone() }
    }

    async fn install_snapshot(&mut self, _: &SnapshotMeta, data: SnapshotData<S>) -> io::Result<()> {
        let state = match data {
            SnapshotData::Stored { store, manifest } => {
                blocking::<S, _>(move || Ok(snapshot::load(&store, &manifest)?)).await?
            }
            SnapshotData::Received { mut writer, state } => {
                // The bytes were decoded on arrival. Reading them back verifies that the store has the same bytes.
                let read_back = move || match writer.read_back(|_| Ok(())) {
                    Ok(()) => Ok(writer),
                    Err(error) => Err(io_error(error)),
                };
                let writer = blocking::<S, _>(read_back).await?;
                let installed = self.newest.finish(writer, &state).await.map_err(io_error)?;
                installed.ok_or_else(|| io::Error::other("this node has a newer snapshot"))?;
                *state
            }
        };
        state.level.check(self.replica.inner.supported).map_err(PayloadError::from)?;
        self.replica.replace(state);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotData<S>>>> {
        self.storage.snapshot().map(|manifest| stored_snapshot(&self.storage, manifest)).transpose()
    }
}

impl Replica {
    pub fn new(observers: Vec<Arc<dyn ApplyObserver>>, supported: FeatureLevel) -> Replica {
        let (progress, _) = watch::channel(Progress::default());
        let access = watch::Sender::default();
        Replica { inner: Arc::new(ReplicaInner { state: RwLock::default(), observers, progress, access, supported }) }
    }

    /// Reads the state. Applies wait until `look` returns, so it must be short.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.inner.state.read())
    }

    /// A consistent view of the state. Later applies do not change it.
    pub fn view(&self) -> State {
        self.inner.state.read().clone()
    }

    /// The index of the last applied entry; 0 if there is none.
    pub fn applied_index(&self) -> u64 {
        self.read(|state| state.applied.map_or(0, |applied| applied.index))
    }

    /// Whether the node was a member and is not one now. The removal is committed.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.read(|state| state.is_removed(node))
    }

    /// The peer address of a member.
    pub fn peer_address(&self, node: NodeId) -> Option<String> {
        self.read(|state| state.membership.membership().get_node(&node).map(|info| info.peer.clone()))
    }

    /// The feature level of the cluster.
    pub fn level(&self) -> FeatureLevel {
        self.read(|state| state.level)
    }

    /// The state of access control, and its changes.
    pub fn access(&self) -> watch::Receiver<Access> {
        self.inner.access.subscribe()
    }

    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.inner.progress.subscribe()
    }

    fn apply(&self, entry: &Entry) -> Result<Applied, PayloadError> {
        // Readers of the state need not wait for this.
        let content = match &entry.payload {
            EntryPayload::Normal(proposal) => Some(proposal.content()?),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        };
        let mut state = self.inner.state.write();
        let position = position(&entry.log_id);
        let (mut batch, mut outcomes, mut effects) = (None, Vec::new(), Effects::default());
        if let EntryPayload::Membership(membership) = &entry.payload {
            state.set_membership(Stored::new(Some(entry.log_id), membership.clone()));
        }
        if let Some(content) = content {
            let level = FeatureLevel::of(&content);
            level.check(self.inner.supported)?;
            state.level = state.level.max(level);
            match content {
                Content::Leases(leases) => {
                    let token = FencingToken { term: position.term, index: position.index };
                    (outcomes, effects) = state.machine.apply(token, &leases);
                    batch = Some(leases);
                }
                // The first disk stays recorded, so a later entry cannot readmit a wiped voter.
                Content::Joined(Joined { node, incarnation }) => {
                    state.joined.entry(node).or_insert(incarnation);
                }
                Content::Access(change) => {
                    state.access = state.access.with(&change);
                    self.inner.access.send_replace(state.access.clone());
                }
                Content::Level(_) => {}
            }
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

    fn replace(&self, state: State) {
        let index = state.applied.map_or(0, |applied| applied.index);
        let mut current = self.inner.state.write();
        *current = state;
        self.inner.access.send_replace(current.access.clone());
        self.inner.observers.iter().for_each(|observer| observer.replaced(index, &current.machine));
        drop(current);
        self.publish();
    }
}

impl<S: Storage> RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder<S> {
    type SnapshotData = SnapshotData<S>;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotData<S>>> {
        match self.write_durably().await {
            Ok(Some(manifest)) => stored_snapshot(&self.storage, manifest),
            Ok(None) => self.last_snapshot(),
            Err(error @ (SnapshotError::Storage(_) | SnapshotError::Interrupted(_))) => Err(io::Error::other(error)),
            Err(error) => {
                // The log still has all entries of the snapshot, so the node continues and retries later.
                tracing::error!(%error, "the new snapshot cannot be loaded: the node keeps the log and retries later");
                self.last_snapshot()
            }
        }
    }
}

impl<S: Storage> SnapshotBuilder<S> {
    /// Writes the view. Returns `None` if a newer snapshot was installed in the meantime.
    async fn write_durably(&self) -> Result<Option<SnapshotManifest>, SnapshotError> {
        let (view, storage) = (self.view.clone(), self.storage.clone());
        let write = move || -> Result<SnapshotWriter<S>, SnapshotError> {
            let mut writer = storage.begin_snapshot()?;
            snapshot::write(&view, &mut writer)?;
            Ok(writer)
        };
        let writer = blocking::<S, _>(move || Ok(write())).await.map_err(SnapshotError::Interrupted)??;
        Ok(self.newest.finish(writer, &self.view).await?)
    }

    /// The last durable snapshot. openraft purges no entries for one that it knows.
    fn last_snapshot(&self) -> io::Result<SnapshotOf<TypeConfig, SnapshotData<S>>> {
        let last = self.storage.snapshot();
        last.map_or_else(|| Ok(empty_snapshot(&self.storage)), |last| stored_snapshot(&self.storage, last))
    }
}

/// A snapshot of the state before the first entry. openraft purges no entries for it.
fn empty_snapshot<S: Storage>(storage: &S) -> SnapshotOf<TypeConfig, SnapshotData<S>> {
    let manifest = SnapshotManifest::default();
    Snapshot { meta: SnapshotMeta::default(), snapshot: SnapshotData::Stored { store: storage.clone(), manifest } }
}

fn stored_snapshot<S: Storage>(
    storage: &S,
    manifest: SnapshotManifest,
) -> io::Result<SnapshotOf<TypeConfig, SnapshotData<S>>> {
    let meta: Meta = codec::decode(&manifest.meta, MAX_META_BYTES).map_err(io::Error::other)?;
    Ok(Snapshot { meta: meta.snapshot_meta()?, snapshot: SnapshotData::Stored { store: storage.clone(), manifest } })
}

/// Runs work that may wait for the disk on tokio's blocking pool. A storage that never blocks runs it inline.
pub async fn blocking<S: Storage, T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if S::BLOCKS { tokio::task::spawn_blocking(work).await.map_err(io::Error::other)? } else { work() }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::access::AccessChange;
    use crate::config::MAX_NODES;
    use crate::raft::log;
    use crate::raft::types::{PeerInfo, RaftMembership, log_id};
    use crate::sim::{Cut, MemoryStorage, SyncMode};
    use crate::storage::MAX_SNAPSHOT_META_BYTES;

    fn builder(storage: &MemoryStorage, index: u64, joined: u64) -> SnapshotBuilder<MemoryStorage> {
        let applied: Option<LogId> = Some(log_id(Position { term: 1, index }));
        let joined: BTreeMap<u64, u64> = (1..=joined).map(|node| (node, u64::MAX)).collect();
        let view = State { applied, joined, ..State::default() };
        SnapshotBuilder { view, storage: storage.clone(), newest: NewestSnapshot::default() }
    }

    /// The last snapshot of the sender, as the receiver gets it.
    fn received(sender: &MemoryStorage, receiver: &MemoryStorage) -> SnapshotData<MemoryStorage> {
        let manifest = sender.snapshot().expect("built");
        let mut writer = receiver.begin_snapshot().expect("the store accepts a snapshot");
        for number in 0..manifest.chunks {
            let chunk = sender.read_snapshot(manifest.id, number).expect("stored");
            writer.push(&chunk).expect("the store accepts the chunk");
        }
        SnapshotData::Received { writer, state: Box::new(snapshot::load(sender, &manifest).expect("loadable")) }
    }

    fn last(snapshot: &SnapshotOf<TypeConfig, SnapshotData<MemoryStorage>>) -> Option<u64> {
        snapshot.meta.last_log_id.map(|last| last.index)
    }

    #[tokio::test]
    async fn snapshot_with_different_read_back_is_rejected() {
        let storage = MemoryStorage::default();
        let first = builder(&storage, 10, 1).build_snapshot().await.expect("built");
        assert_eq!(last(&first), Some(10));
        let before = storage.snapshot();
        storage.spoil_next_chunk();
        let error = builder(&storage, 20, 1).build_snapshot().await.err().expect("the store changed a chunk");
        assert!(error.to_string().contains("reads back"), "{error}");
        assert_eq!(storage.snapshot(), before, "the previous snapshot stays");
    }

    #[tokio::test]
    async fn unloadable_snapshot_leaves_the_previous_one() {
        let storage = MemoryStorage::default();
        // An oversized header represents all causes of an unloadable snapshot.
        let too_large = 200_000;
        let empty = builder(&storage, 10, too_large).build_snapshot().await.expect("the node continues");
        assert_eq!((last(&empty), storage.snapshot()), (None, None), "openraft purges no entry");
        builder(&storage, 20, 1).build_snapshot().await.expect("built");
        let before = storage.snapshot();
        let again = builder(&storage, 30, too_large).build_snapshot().await.expect("the node continues");
        assert_eq!((last(&again), storage.snapshot()), (Some(20), before), "openraft purges no entry after 20");
    }

    /// The voter of this membership has no address. It can be encoded and not be loaded.
    #[tokio::test]
    async fn snapshot_is_loaded_before_it_replaces_the_previous_one() {
        let storage = MemoryStorage::default();
        builder(&storage, 10, 1).build_snapshot().await.expect("built");
        let before = storage.snapshot();
        let membership: RaftMembership =
            serde_json::from_value(serde_json::json!({"configs": [[1]], "nodes": {}})).expect("its parts are valid");
        let mut next = builder(&storage, 20, 1);
        next.view.membership = Stored::new(None, membership);
        let built = next.build_snapshot().await.expect("the node continues");
        assert_eq!((last(&built), storage.snapshot()), (Some(10), before), "openraft purges no entry after 10");
    }

    /// The membership has the maximum number of nodes with the longest addresses, in joint consensus.
    #[test]
    fn largest_membership_fits_log_entry_and_snapshot_meta() {
        let address = |id: u64| format!("{}{id:02}:65535", "h".repeat(251));
        let info = |id| PeerInfo { http: address(id), peer: address(id) };
        let nodes: BTreeMap<u64, PeerInfo> = (1..=MAX_NODES as u64).map(|id| (id, info(id))).collect();
        let voters: BTreeSet<u64> = (1..=MAX_NODES as u64).collect();
        let membership = RaftMembership::new(vec![voters.clone(), voters], nodes).expect("valid");
        let at = log_id(Position { term: u64::MAX, index: u64::MAX });
        let entry = Entry { log_id: at, payload: openraft::EntryPayload::Membership(membership.clone()) };
        let record = log::record(&entry);
        assert!(record.payload.len() <= log::MAX_ENTRY_BYTES, "{} bytes in the log", record.payload.len());
        assert_eq!(log::entry(record).expect("readable"), entry);
        let membership = Stored::new(Some(at), membership);
        let state = State { applied: Some(at), membership, ..State::default() };
        let meta = codec::encode(&Meta::of(&state));
        assert!(meta.len() <= MAX_META_BYTES.min(MAX_SNAPSHOT_META_BYTES), "{} bytes beside a snapshot", meta.len());
        assert_eq!(codec::decode::<Meta>(&meta, MAX_META_BYTES).expect("readable"), Meta::of(&state));
    }

    #[tokio::test]
    async fn received_snapshot_is_read_back_before_install() {
        let (sender, receiver) = (MemoryStorage::default(), MemoryStorage::default());
        builder(&sender, 10, 1).build_snapshot().await.expect("built");
        let data = received(&sender, &receiver);
        receiver.spoil_next_chunk();
        let replica = Replica::new(Vec::new(), FeatureLevel::SUPPORTED);
        let mut machine = StateMachine::new(replica, receiver.clone(), OutgoingSnapshots::default());
        let installed = machine.install_snapshot(&SnapshotMeta::default(), data).await;
        assert!(installed.expect_err("the store changed a chunk").to_string().contains("reads back"));
        assert_eq!((receiver.snapshot(), machine.applied_state().await.expect("known").0), (None, None));
    }

    #[tokio::test]
    async fn snapshot_install_ends_after_sync() {
        let (sender, receiver) = (MemoryStorage::default(), MemoryStorage::new(SyncMode::Manual));
        builder(&sender, 10, 1).build_snapshot().await.expect("built");
        let chunks = sender.snapshot().expect("built").chunks;
        let data = received(&sender, &receiver);
        let replica = Replica::new(Vec::new(), FeatureLevel::SUPPORTED);
        let mut machine = StateMachine::new(replica.clone(), receiver.clone(), OutgoingSnapshots::default());
        let installed = tokio::spawn(async move { machine.install_snapshot(&SnapshotMeta::default(), data).await });
        receiver.wait_unsynced().await;
        while receiver.unsynced() < usize::try_from(chunks).expect("few") + 1 {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!installed.is_finished(), "the manifest is not synced yet");
        receiver.sync();
        installed.await.expect("no panic").expect("installed");
        assert!(receiver.crash(Cut::Keep(0)).snapshot().is_some(), "the snapshot survives a power cut");
    }

    /// openraft purges the log up to the installed snapshot. With an older one in its store, the node could not start.
    #[tokio::test]
    async fn snapshot_that_ends_after_an_install_does_not_replace_it() {
        let (sender, receiver) = (MemoryStorage::default(), MemoryStorage::default());
        builder(&sender, 20, 1).build_snapshot().await.expect("built");
        let replica = Replica::new(Vec::new(), FeatureLevel::SUPPORTED);
        let mut machine = StateMachine::new(replica, receiver.clone(), OutgoingSnapshots::default());
        let mut slow = SnapshotBuilder { newest: machine.newest.clone(), ..builder(&receiver, 10, 1) };
        let mut next = SnapshotBuilder { newest: machine.newest.clone(), ..builder(&receiver, 30, 1) };
        let data = received(&sender, &receiver);
        machine.install_snapshot(&SnapshotMeta::default(), data).await.expect("installed");
        let installed = receiver.snapshot();
        let ended = slow.build_snapshot().await.expect("the node continues");
        assert_eq!((last(&ended), receiver.snapshot()), (Some(20), installed), "the installed snapshot stays");
        assert_eq!(last(&next.build_snapshot().await.expect("built")), Some(30));
        assert_eq!(last(&machine.get_current_snapshot().await.expect("known").expect("built")), Some(30));
    }

    /// A watch of a revoked token must also end at a node that learns of the revoke from a snapshot.
    #[tokio::test]
    async fn snapshot_tells_watches_of_its_access_control() {
        let (sender, receiver) = (MemoryStorage::default(), MemoryStorage::default());
        let mut guarded = builder(&sender, 10, 1);
        guarded.view.level = FeatureLevel::SUPPORTED;
        guarded.view.access = Access::default().with(&AccessChange::Enable(true));
        let stored = guarded.build_snapshot().await.expect("built").snapshot;
        for (data, of) in [(stored, "this node"), (received(&sender, &receiver), "another node")] {
            let replica = Replica::new(Vec::new(), FeatureLevel::SUPPORTED);
            let mut told = replica.access();
            let mut machine = StateMachine::new(replica, receiver.clone(), OutgoingSnapshots::default());
            machine.install_snapshot(&SnapshotMeta::default(), data).await.expect("installed");
            assert!(told.has_changed().expect("the replica has the sender"), "a snapshot of {of}");
            assert!(told.borrow_and_update().is_enabled(), "a snapshot of {of}");
        }
    }
}
