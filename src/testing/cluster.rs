//! A cluster in one process: nodes on disks in memory, joined by a switchboard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::TokioClock;
use crate::config::{LeaseSettings, MemberConfig, RaftTimings, TtlPolicy};
use crate::node::{Node, NodeConfig, Parts};
use crate::peer::memory::{MemoryTransport, Switchboard};
use crate::raft::{HandOnError, RaftService, Safeguards};
use crate::storage::{Cut, MemoryStorage, SyncMode};
use crate::types::NodeId;

/// A node of a [`Cluster`].
pub type TestNode = Node<MemoryStorage, MemoryTransport>;

/// Longest wait for a leader, in the clock of the test.
const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// Nodes 1 to n. Dropping it ends them like a crash; [`shutdown`](Self::shutdown) ends them in order.
pub struct Cluster {
    pub board: Switchboard,
    members: Vec<MemberConfig>,
    timings: RaftTimings,
    lease: LeaseSettings,
    disks: BTreeMap<NodeId, MemoryStorage>,
    nodes: BTreeMap<NodeId, TestNode>,
}

impl TestNode {
    /// Gives leadership to another node, if this one has it.
    pub async fn hand_leadership_to(&self, to: NodeId) -> Result<NodeId, HandOnError> {
        self.raft().hand_on_to(to, LEADER_TIMEOUT).await
    }
}

impl Cluster {
    /// Starts `count` new nodes, which form a cluster.
    pub async fn start(count: u64, timings: RaftTimings, lease: LeaseSettings) -> Cluster {
        let member = |id| MemberConfig { id, http: format!("node{id}:1"), peer: format!("node{id}:2") };
        let mut cluster = Cluster {
            board: Switchboard::default(),
            members: (1..=count).map(member).collect(),
            timings,
            lease,
            disks: (1..=count).map(|id| (id, MemoryStorage::new(SyncMode::default()))).collect(),
            nodes: BTreeMap::new(),
        };
        for id in 1..=count {
            cluster.launch(id, true, Safeguards::default()).await;
        }
        cluster
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
        self.board.unplug(id);
        let disk = self.disks.get_mut(&id).expect("a member");
        *disk = disk.crash(Cut::Keep(0));
        self.nodes.remove(&id).expect("a node that runs").kill().await;
    }

    /// From now on the node's disk takes writes and never finishes one.
    pub fn hang_disk(&self, id: NodeId) {
        self.disks[&id].set_mode(SyncMode::Manual);
    }

    /// Starts a node that crashed, as the program would.
    pub async fn restart(&mut self, id: NodeId) {
        self.launch(id, false, Safeguards::default()).await;
    }

    /// Starts a node that crashed, without some of what keeps it safe.
    pub async fn restart_without(&mut self, id: NodeId, safeguards: Safeguards) {
        self.launch(id, false, safeguards).await;
    }

    /// Ends all nodes in order.
    pub async fn shutdown(mut self) {
        for node in std::mem::take(&mut self.nodes).into_values() {
            node.shutdown().await;
        }
    }

    async fn launch(&mut self, id: NodeId, is_new: bool, safeguards: Safeguards) {
        let config = NodeConfig {
            cluster: "test".to_string(),
            id,
            members: self.members.clone(),
            data: "in-memory".into(),
            raft: self.timings,
            lease: self.lease,
            ttl: TtlPolicy::default(),
        };
        let storage = self.disks[&id].clone();
        let service = Arc::new(RaftService::new(storage.clone()));
        self.board.plug_in(id, service.clone());
        let transport = self.board.transport(id);
        let parts =
            Parts::new(storage, transport, service, is_new, id, self.timings.leadership_lease()).without(safeguards);
        let started = Node::assemble(config, Arc::new(TokioClock::new()), parts).await;
        self.nodes.insert(id, started.expect("a node in memory starts"));
    }
}
