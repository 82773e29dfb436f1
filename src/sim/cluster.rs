//! A cluster in one process: nodes on disks in memory, joined by a switchboard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::TokioClock;
use crate::clock::Clock;
use crate::config::{LeaseSettings, MemberConfig, RaftTimings, TtlPolicy};
use crate::node::{MemberRegistry, Node, NodeConfig, Parts, StartError};
use crate::peer::Identity;
use crate::raft::{CurrentLeader, Observer, RaftService, Safeguards, TransferError};
use crate::sim::NodeTime;
use crate::sim::{Cut, MemoryFiles, MemoryStorage, MemoryTransport, Switchboard, SyncMode};
use crate::types::NodeId;

/// A node of a [`Cluster`].
pub type TestNode = Node<MemoryStorage, MemoryTransport>;

/// Longest wait for a leader, in the clock of the test.
const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// Makes something for a node.
pub type ForNode<T> = Arc<dyn Fn(NodeId) -> Arc<T> + Send + Sync>;

/// What nodes are made from; the default is what [`Cluster::start`] takes.
#[derive(Clone)]
pub struct Setup {
    pub timings: RaftTimings,
    /// Timings of single nodes; a node without an entry takes `timings`.
    pub timings_of: BTreeMap<NodeId, RaftTimings>,
    pub lease: LeaseSettings,
    /// Settings of single nodes; a node without an entry takes `lease`.
    pub lease_of: BTreeMap<NodeId, LeaseSettings>,
    pub safeguards: Safeguards,
    /// The clock that a node reads. tokio's timers are not behind it.
    pub clock: ForNode<dyn Clock>,
    /// The pace of each node's tasks; without one that of true time.
    pub paces: BTreeMap<NodeId, NodeTime>,
    /// Who is told what a node applies.
    pub tap: Option<ForNode<dyn Observer>>,
}

/// Nodes 1 to n. Dropping it ends them like a crash; [`shutdown`](Self::shutdown) ends them in order.
pub struct Cluster {
    pub board: Switchboard,
    members: Vec<MemberConfig>,
    setup: Setup,
    disks: BTreeMap<NodeId, Disk>,
    nodes: BTreeMap<NodeId, TestNode>,
}

/// What a data directory holds.
struct Disk {
    storage: MemoryStorage,
    /// The files beside the store.
    files: MemoryFiles,
    incarnation: u64,
    /// A node was started on it. The marker of a directory on a real disk says so.
    is_initialised: bool,
}

impl Disk {
    fn new(incarnation: u64) -> Disk {
        let storage = MemoryStorage::new(SyncMode::default());
        Disk { storage, files: MemoryFiles::default(), incarnation, is_initialised: false }
    }
}

impl TestNode {
    /// Gives leadership to another node, if this one has it.
    pub async fn transfer_leadership_to(&self, to: NodeId) -> Result<NodeId, TransferError> {
        self.transfer_leadership_within(to, LEADER_TIMEOUT).await
    }

    /// The same, given up after a time.
    pub async fn transfer_leadership_within(&self, to: NodeId, timeout: Duration) -> Result<NodeId, TransferError> {
        self.raft().transfer_leadership_to(to, timeout).await
    }

    /// Who leads in which term, as this node sees it.
    pub fn leadership(&self) -> CurrentLeader {
        self.raft().leadership()
    }

    /// Has exactly these members vote, if this node leads; the others stay members.
    pub async fn set_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), String> {
        self.raft().set_voters(voters).await
    }

    /// Who votes, as this node sees it.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.raft().voters()
    }

    /// Has the node take a snapshot and purge its log, as soon as it can.
    pub async fn take_snapshot(&self) {
        // A node that ends takes none.
        let _ = self.raft().raft().trigger().snapshot().await;
    }
}

impl Cluster {
    /// Starts `count` new nodes, which form a cluster.
    pub async fn start(count: u64, timings: RaftTimings, lease: LeaseSettings) -> Cluster {
        Cluster::start_with(count, Setup { timings, lease, ..Setup::default() }).await
    }

    /// Starts `count` new nodes, made in another way.
    pub async fn start_with(count: u64, setup: Setup) -> Cluster {
        let mut cluster = Cluster::prepare(count, setup);
        for id in 1..=count {
            let safeguards = cluster.setup.safeguards;
            let started = cluster.launch(id, safeguards).await.expect("a node in memory starts");
            cluster.put(id, started);
        }
        cluster
    }

    /// Nodes on empty disks, none of which runs yet.
    pub fn prepare(count: u64, setup: Setup) -> Cluster {
        let member = |id| MemberConfig { id, http: format!("node{id}:1"), peer: format!("node{id}:2") };
        Cluster {
            board: Switchboard::default(),
            members: (1..=count).map(member).collect(),
            setup,
            disks: (1..=count).map(|id| (id, Disk::new(id))).collect(),
            nodes: BTreeMap::new(),
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        1..=self.members.len() as NodeId
    }

    /// A node that runs.
    pub fn node(&self, id: NodeId) -> &TestNode {
        self.nodes.get(&id).expect("a node that runs")
    }

    /// Waits until all running nodes but `except` agree on a leader among them.
    pub async fn leader_except(&self, except: &[NodeId]) -> NodeId {
        let deadline = Instant::now() + LEADER_TIMEOUT;
        loop {
            let mut views = Vec::new();
            for (_, node) in self.nodes.iter().filter(|(id, _)| !except.contains(id)) {
                views.push(node.status().await.leader.filter(|leader| !except.contains(leader)));
            }
            if let Some(&Some(leader)) = views.first().filter(|first| views.iter().all(|view| view == *first)) {
                return leader;
            }
            assert!(Instant::now() < deadline, "no leader within {LEADER_TIMEOUT:?}: {views:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    pub async fn leader(&self) -> NodeId {
        self.leader_except(&[]).await
    }

    /// The node is gone at once, and with it what its disk had not synced.
    pub async fn crash(&mut self, id: NodeId) {
        self.cut_power(id, Cut::Keep(0)).expect("a node that runs").await;
    }

    /// The node is gone at once; what its disk had not synced is cut there. A node that is starting has to be dropped by
    /// whoever starts it. The future ends when nothing of the node is left, and need not be waited for.
    pub fn cut_power(&mut self, id: NodeId, cut: Cut) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.board.unplug(id);
        let disk = self.disks.get_mut(&id).expect("a member");
        disk.storage = disk.storage.crash(cut);
        disk.files = disk.files.crash(!matches!(cut, Cut::Keep(0) | Cut::Torn { writes: 0, .. }));
        self.nodes.remove(&id).map(|node| async move { node.kill().await })
    }

    /// The node's disk, until its power is cut.
    pub fn disk(&self, id: NodeId) -> MemoryStorage {
        self.disks[&id].storage.clone()
    }

    /// A node, if it runs.
    pub fn running(&self, id: NodeId) -> Option<&TestNode> {
        self.nodes.get(&id)
    }

    /// The node starts again on a disk that has lost everything, as the same member.
    pub async fn restart_wiped(&mut self, id: NodeId) {
        let incarnation = self.disks[&id].incarnation;
        self.disks.insert(id, Disk::new(incarnation));
        self.restart(id).await;
    }

    /// A node that is down gets another disk, which is empty.
    pub fn replace_disk(&mut self, id: NodeId) {
        let incarnation = self.disks[&id].incarnation + self.members.len() as u64;
        self.disks.insert(id, Disk::new(incarnation));
    }

    /// The timings of the node from its next start on.
    pub fn set_timings(&mut self, id: NodeId, timings: RaftTimings) {
        self.setup.timings_of.insert(id, timings);
    }

    /// The lease settings of the node from its next start on.
    pub fn set_lease(&mut self, id: NodeId, lease: LeaseSettings) {
        self.setup.lease_of.insert(id, lease);
    }

    /// The timings of the node's next start.
    pub fn timings(&self, id: NodeId) -> RaftTimings {
        self.setup.timings_of.get(&id).copied().unwrap_or(self.setup.timings)
    }

    /// From now on the node's disk takes writes and never finishes one.
    pub fn hang_disk(&self, id: NodeId) {
        self.disks[&id].storage.set_mode(SyncMode::Manual);
    }

    /// Starts a node that crashed, as the program would.
    pub async fn restart(&mut self, id: NodeId) {
        self.restart_without(id, self.setup.safeguards).await;
    }

    /// Starts a node that crashed, without some of what keeps it safe.
    pub async fn restart_without(&mut self, id: NodeId, safeguards: Safeguards) {
        let started = self.launch(id, safeguards).await.expect("a node in memory starts");
        self.put(id, started);
    }

    /// Ends all nodes in order.
    pub async fn shutdown(mut self) {
        for node in std::mem::take(&mut self.nodes).into_values() {
            node.shutdown().await;
        }
    }

    /// Counts a node as running.
    pub fn put(&mut self, id: NodeId, node: TestNode) {
        self.nodes.insert(id, node);
    }

    /// Starts a node on the disk that is there now, as the program would. The future does not need the cluster, and its
    /// node is to be [put](Self::put) back; dropped, it leaves nothing behind.
    pub fn launch(
        &mut self,
        id: NodeId,
        safeguards: Safeguards,
    ) -> impl Future<Output = Result<TestNode, StartError>> + Send + use<> {
        let timings = self.timings(id);
        let lease = self.setup.lease_of.get(&id).copied().unwrap_or(self.setup.lease);
        let config = NodeConfig {
            cluster: "test".to_string(),
            id,
            members: self.members.clone(),
            data: "in-memory".into(),
            raft: timings,
            lease,
            ttl: TtlPolicy::default(),
        };
        let tap = self.setup.tap.as_ref().map(|tap| tap(id));
        let clock = (self.setup.clock)(id);
        let disk = self.disks.get_mut(&id).expect("a member");
        let is_new = !std::mem::replace(&mut disk.is_initialised, true);
        let (storage, files, incarnation) = (disk.storage.clone(), Arc::new(disk.files.clone()), disk.incarnation);
        let board = self.board.clone();
        let pace = self.setup.paces.get(&id).cloned().unwrap_or_default();
        pace.keep(async move {
            let service = Arc::new(RaftService::new(storage.clone()));
            let known = Arc::new(MemberRegistry::default());
            let promise = timings.leadership_lease();
            let identity = Identity { cluster: config.cluster.clone(), node: id, incarnation, promise };
            board.plug_in_as(identity, known.clone(), service.clone());
            let transport = board.transport(id);
            let parts = Parts::new(storage, transport, service, known, files, is_new, incarnation);
            let parts = parts.without(safeguards).tapped(tap);
            Node::assemble(config, clock, parts).await
        })
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            timings: RaftTimings::default(),
            timings_of: BTreeMap::new(),
            lease: LeaseSettings::default(),
            lease_of: BTreeMap::new(),
            safeguards: Safeguards::default(),
            clock: Arc::new(|_| Arc::new(TokioClock::new())),
            paces: BTreeMap::new(),
            tap: None,
        }
    }
}
