//! A cluster in one process: nodes with in-memory disks, connected by a switchboard.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::TokioClock;
use crate::access::{AccessView, Caller};
use crate::backup::{self, RestoreError, RestoreOptions, Restored};
use crate::clock::Clock;
use crate::config::{LeaseSettings, MemberConfig, RaftTimings, TtlPolicy};
use crate::node::{Forward, MemberRegistry, Node, NodeConfig, NodeParts, Request, RequestError, Response, StartError};
use crate::raft::{ApplyObserver, CurrentLeader, FeatureLevel, TransferError};
use crate::sim::NodeTime;
use crate::sim::{Cut, MemoryFiles, MemoryListener, MemoryStorage, MemoryTransport, Switchboard, SyncMode};
use crate::types::{ClusterMs, Consistency, MemberChange, NodeId};

/// A node of a [`Cluster`].
pub type TestNode = Node<MemoryStorage, MemoryTransport>;

/// Longest wait for a leader, on the clock of the test.
const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// A factory that creates a value for each node.
pub type ForNode<T> = Arc<dyn Fn(NodeId) -> Arc<T> + Send + Sync>;

/// The configuration of a cluster's nodes.
#[derive(Clone)]
pub struct Setup {
    pub timings: RaftTimings,
    /// Timings of individual nodes. A node without an entry uses `timings`.
    pub timings_of: BTreeMap<NodeId, RaftTimings>,
    pub lease: LeaseSettings,
    /// Lease settings of individual nodes. A node without an entry uses `lease`.
    pub lease_of: BTreeMap<NodeId, LeaseSettings>,
    /// The highest feature level of nodes of an older release. A node without an entry supports the newest one.
    pub levels: BTreeMap<NodeId, FeatureLevel>,
    /// The clock of each node. It does not affect timers, which use tokio's clock.
    pub clock: ForNode<dyn Clock>,
    /// The simulated time of each node's tasks. A node without an entry uses true time.
    pub node_times: BTreeMap<NodeId, NodeTime>,
    /// An observer of each node's applied entries.
    pub observer: Option<ForNode<dyn ApplyObserver>>,
}

/// A cluster of nodes 1 to n. Dropping it ends the nodes like a crash. [`shutdown`](Self::shutdown) stops them
/// gracefully.
pub struct Cluster {
    pub board: Switchboard,
    name: &'static str,
    members: Vec<MemberConfig>,
    /// Nodes that join the cluster after it has formed.
    joining: BTreeMap<NodeId, MemberConfig>,
    setup: Setup,
    disks: BTreeMap<NodeId, Disk>,
    nodes: BTreeMap<NodeId, TestNode>,
}

/// The contents of a data directory.
struct Disk {
    storage: MemoryStorage,
    /// The files beside the store.
    files: MemoryFiles,
    incarnation: u64,
    /// A node has started on this disk. A real data directory records it in its marker file.
    is_initialised: bool,
}

impl Disk {
    fn new(incarnation: u64) -> Disk {
        let storage = MemoryStorage::new(SyncMode::default());
        Disk { storage, files: MemoryFiles::default(), incarnation, is_initialised: false }
    }
}

impl TestNode {
    /// Transfers leadership from this node to another one.
    pub async fn transfer_leadership_to(&self, to: NodeId) -> Result<NodeId, TransferError> {
        self.transfer_leadership_within(to, LEADER_TIMEOUT).await
    }

    /// Transfers leadership from this node to another one, and waits for at most `timeout`.
    pub async fn transfer_leadership_within(&self, to: NodeId, timeout: Duration) -> Result<NodeId, TransferError> {
        self.raft().transfer_leadership_to(to, timeout).await
    }

    /// The leader and the term that this node knows.
    pub fn leadership(&self) -> CurrentLeader {
        self.raft().leadership()
    }

    /// The voters in the latest membership of this node's log.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.raft().current_membership().voters
    }

    /// All members in the latest membership of this node's log.
    pub fn members(&self) -> BTreeSet<NodeId> {
        self.raft().current_membership().nodes.into_keys().collect()
    }

    /// Whether the cluster changes its voters, in the latest membership of this node's log.
    pub fn changes_voters(&self) -> bool {
        self.raft().current_membership().next_voters.is_some()
    }

    /// Whether the cluster removed node `id`, in the applied state of this node.
    pub fn is_removed(&self, id: NodeId) -> bool {
        self.raft().replica().is_removed(id)
    }

    /// The feature level of the cluster, in the applied state of this node.
    pub fn feature_level(&self) -> FeatureLevel {
        self.raft().replica().level()
    }

    /// The state of access control, in the applied state of this node.
    pub fn access_view(&self) -> AccessView {
        self.access_state().view()
    }

    /// Executes a request of a caller with credentials, as the HTTP listener does.
    pub async fn request_as(&self, caller: &Caller, request: Request) -> Result<Response, RequestError> {
        self.request_of(caller, request, Forward::Once).await
    }

    /// The bytes of a backup, or `None` if this node cannot write one.
    pub async fn backup_bytes(&self, consistency: Consistency) -> Option<Vec<u8>> {
        let view = self.backup_view(consistency).await.ok()?;
        let mut bytes = Vec::new();
        backup::encode(&view.header, &view.state, &mut bytes).expect("a write to memory cannot fail");
        Some(bytes)
    }

    /// Requests a snapshot and a purge of the log. The node performs them later.
    pub async fn take_snapshot(&self) {
        // The request fails only if the node is stopping.
        let _ = self.raft().raft().trigger().snapshot().await;
    }
}

impl Cluster {
    /// Starts `count` new nodes, which form a cluster.
    pub async fn start(count: u64, timings: RaftTimings, lease: LeaseSettings) -> Cluster {
        Cluster::start_with(count, Setup { timings, lease, ..Setup::default() }).await
    }

    /// Starts `count` new nodes with this setup.
    pub async fn start_with(count: u64, setup: Setup) -> Cluster {
        let mut cluster = Cluster::prepare(count, setup);
        for id in 1..=count {
            cluster.restart(id).await;
        }
        cluster
    }

    /// Creates `count` nodes with empty disks, without starting them.
    pub fn prepare(count: u64, setup: Setup) -> Cluster {
        Cluster {
            board: Switchboard::default(),
            name: "test",
            members: (1..=count).map(member).collect(),
            joining: BTreeMap::new(),
            setup,
            disks: (1..=count).map(|id| (id, Disk::new(id))).collect(),
            nodes: BTreeMap::new(),
        }
    }

    /// Restores a backup of a cluster with another name to the empty disk of node 1. `now_ms` is the wall clock. Also
    /// returns the cluster time of the backup.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`].
    pub fn restore(
        &mut self,
        file: &Path,
        options: RestoreOptions,
        now_ms: u64,
    ) -> Result<(Restored, ClusterMs), RestoreError> {
        self.name = "restored";
        let target = backup::Target { cluster: self.name.to_owned(), id: 1, members: self.members.clone() };
        let disk = self.disks.get_mut(&1).expect("a cluster has node 1");
        let backup = backup::check(file, &target, options, now_ms)?;
        let (state, restored) = backup.write(target, disk.incarnation, &disk.storage)?;
        disk.is_initialised = true;
        Ok((restored, state.machine.now()))
    }

    /// Creates an empty disk for a node that joins the cluster. The caller starts the node, and makes the returned
    /// change.
    pub fn prepare_joining(&mut self, id: NodeId) -> MemberChange {
        self.disks.insert(id, Disk::new(id));
        let MemberConfig { http, peer, .. } = self.joining.entry(id).or_insert_with(|| member(id)).clone();
        MemberChange::Add { id, http, peer }
    }

    /// The nodes that formed the cluster.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        1..=self.members.len() as NodeId
    }

    /// A running node.
    ///
    /// # Panics
    ///
    /// The node is not running.
    pub fn node(&self, id: NodeId) -> &TestNode {
        self.nodes.get(&id).expect("the node is running")
    }

    /// Waits until all running nodes except `except` agree on a leader among themselves.
    pub async fn leader_except(&self, except: &[NodeId]) -> NodeId {
        let deadline = Instant::now() + LEADER_TIMEOUT;
        loop {
            let mut views = Vec::new();
            for (_, node) in self.nodes.iter().filter(|(id, _)| !except.contains(id)) {
                views.push(node.leadership().leader.filter(|leader| !except.contains(leader)));
            }
            if let Some(&Some(leader)) = views.first().filter(|first| views.iter().all(|view| view == *first)) {
                return leader;
            }
            assert!(Instant::now() < deadline, "no leader within {LEADER_TIMEOUT:?}: {views:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until all running nodes agree on a leader.
    pub async fn leader(&self) -> NodeId {
        self.leader_except(&[]).await
    }

    /// Crashes a running node, and discards the unsynced writes of its disk.
    pub async fn crash(&mut self, id: NodeId) {
        self.cut_power(id, Cut::Keep(0)).expect("the node is running").await;
    }

    /// Cuts the power of a node. `cut` selects the unsynced writes that survive.
    ///
    /// If the node is starting, the caller must drop the future of [`launch`](Self::launch). The returned future
    /// completes when all tasks of the node have ended. The caller may drop it.
    pub fn cut_power(&mut self, id: NodeId, cut: Cut) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.board.detach(id);
        let disk = self.disks.get_mut(&id).expect("a member");
        disk.storage = disk.storage.crash(cut);
        let loses_all = matches!(cut, Cut::Keep(0) | Cut::Torn { writes: 0, .. } | Cut::Snapshots);
        disk.files = disk.files.crash(!loses_all);
        self.nodes.remove(&id).map(|node| async move { node.kill().await })
    }

    /// The node's disk. It is valid until the next power cut of the node.
    pub fn disk(&self, id: NodeId) -> MemoryStorage {
        self.disks[&id].storage.clone()
    }

    /// The node, if it is running.
    pub fn running(&self, id: NodeId) -> Option<&TestNode> {
        self.nodes.get(&id)
    }

    /// Restarts the node as the same member, on a disk that lost all data.
    pub async fn restart_wiped(&mut self, id: NodeId) {
        let incarnation = self.disks[&id].incarnation;
        self.disks.insert(id, Disk::new(incarnation));
        self.restart(id).await;
    }

    /// Gives a stopped node a different, empty disk.
    pub fn replace_disk(&mut self, id: NodeId) {
        let incarnation = self.disks[&id].incarnation + self.members.len() as u64;
        self.disks.insert(id, Disk::new(incarnation));
    }

    /// Sets the timings that the node uses from its next start.
    pub fn set_timings(&mut self, id: NodeId, timings: RaftTimings) {
        self.setup.timings_of.insert(id, timings);
    }

    /// Sets the lease settings that the node uses from its next start.
    pub fn set_lease(&mut self, id: NodeId, lease: LeaseSettings) {
        self.setup.lease_of.insert(id, lease);
    }

    /// The highest feature level that the node supports from its next start.
    pub fn supported_level(&self, id: NodeId) -> FeatureLevel {
        self.setup.levels.get(&id).copied().unwrap_or(FeatureLevel::SUPPORTED)
    }

    /// Upgrades the node to the newest release, from its next start.
    pub fn upgrade(&mut self, id: NodeId) {
        self.setup.levels.remove(&id);
    }

    /// Replaces the program of the node with one of an older release, from its next start.
    pub fn downgrade(&mut self, id: NodeId, level: FeatureLevel) {
        self.setup.levels.insert(id, level);
    }

    /// The timings that the node uses from its next start.
    pub fn timings(&self, id: NodeId) -> RaftTimings {
        self.setup.timings_of.get(&id).copied().unwrap_or(self.setup.timings)
    }

    /// Hangs the node's disk: it accepts writes, and never completes one.
    pub fn hang_disk(&self, id: NodeId) {
        self.disks[&id].storage.set_mode(SyncMode::Manual);
    }

    /// Restarts a crashed node as the program does.
    pub async fn restart(&mut self, id: NodeId) {
        let started = self.launch(id).await.expect("an in-memory node starts");
        self.put(id, started);
    }

    /// Shuts all nodes down gracefully, in the order of their ids.
    pub async fn shutdown(mut self) {
        for node in std::mem::take(&mut self.nodes).into_values() {
            node.shutdown().await;
        }
    }

    /// Registers a node as running.
    pub fn put(&mut self, id: NodeId, node: TestNode) {
        self.nodes.insert(id, node);
    }

    /// Starts a node on its current disk as the program does.
    ///
    /// The future does not borrow the cluster. The caller registers the started node with [`put`](Self::put).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no task of the node remains.
    pub fn launch(&mut self, id: NodeId) -> impl Future<Output = Result<TestNode, StartError>> + Send + use<> {
        let timings = self.timings(id);
        let lease = self.setup.lease_of.get(&id).copied().unwrap_or(self.setup.lease);
        let config = NodeConfig {
            cluster: self.name.to_owned(),
            id,
            members: self.members.iter().chain(self.joining.get(&id)).cloned().collect(),
            join: self.joining.contains_key(&id),
            data: "in-memory".into(),
            raft: timings,
            lease,
            ttl: TtlPolicy::default(),
            may_be_reached: true,
            backup: None,
            feature_level: self.supported_level(id),
        };
        let observers = self.setup.observer.iter().map(|observer| observer(id)).collect();
        let clock = (self.setup.clock)(id);
        let disk = self.disks.get_mut(&id).expect("a member");
        let is_new = !std::mem::replace(&mut disk.is_initialised, true);
        let (storage, files, incarnation) = (disk.storage.clone(), Arc::new(disk.files.clone()), disk.incarnation);
        let board = self.board.clone();
        let time = self.setup.node_times.get(&id).cloned().unwrap_or_default();
        time.run_with(async move {
            let (identity, known) = (config.identity(incarnation), Arc::new(MemberRegistry::default()));
            let transport = board.transport_as(identity.clone(), known.clone());
            let listener = MemoryListener(transport.clone());
            let parts = NodeParts { storage, transport, identity, known, is_new, files, clock, observers, tls: None };
            Node::start(config, parts, listener).await
        })
    }
}

fn member(id: NodeId) -> MemberConfig {
    MemberConfig { id, http: format!("node{id}:1"), peer: format!("node{id}:2") }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            timings: RaftTimings::default(),
            timings_of: BTreeMap::new(),
            lease: LeaseSettings::default(),
            lease_of: BTreeMap::new(),
            levels: BTreeMap::new(),
            clock: Arc::new(|_| Arc::new(TokioClock::new())),
            node_times: BTreeMap::new(),
            observer: None,
        }
    }
}
