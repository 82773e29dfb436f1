//! Three real nodes in this process: disks, and TCP on loopback.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;
use tenure::config::RaftTimings;
use tenure::node::{Node, NodeBuilder, StartError};
use tenure::types::{HolderId, LeaseName};
use tokio::net::TcpListener;

use crate::calm;
use crate::port;

/// A timeout that only a hang exceeds.
pub const SOON: Duration = Duration::from_secs(20);

/// The addresses and data directories of three nodes.
pub struct Plan {
    data: PathBuf,
    http: Vec<String>,
    peer: Vec<String>,
    timings: RaftTimings,
    /// Removes the data on drop. `None` in a plan from another process.
    _folder: Option<TempDir>,
}

/// Three running nodes.
pub struct Trio {
    pub nodes: Vec<Node>,
}

impl Plan {
    /// Returns a plan whose nodes report the addresses of the `http` listeners to clients. Without listeners it picks
    /// free addresses.
    pub fn new(http: &[TcpListener]) -> Plan {
        let http = match http {
            [] => free_addresses(),
            listeners => listeners.iter().map(address).collect(),
        };
        let folder = TempDir::new().expect("a folder");
        let (data, peer) = (folder.path().to_owned(), free_addresses());
        Plan { data, http, peer, timings: calm::timings(), _folder: Some(folder) }
    }

    /// Encodes the plan for another process, which decodes it with [`from_text`](Self::from_text).
    pub fn to_text(&self) -> String {
        format!("{} {} {}", self.http.join(","), self.peer.join(","), self.data.display())
    }

    pub fn from_text(text: &str) -> Plan {
        let mut parts = text.splitn(3, ' ');
        let mut addresses = || parts.next().expect("addresses").split(',').map(str::to_owned).collect();
        let (http, peer) = (addresses(), addresses());
        // The tests with processes measure how long an election takes.
        let timings = RaftTimings::lan();
        Plan { data: parts.next().expect("a folder").into(), http, peer, timings, _folder: None }
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the http address of a node. Ids begin at 1.
    pub fn http(&self, id: u64) -> &str {
        &self.http[id as usize - 1]
    }

    pub fn builder(&self, id: u64) -> NodeBuilder {
        let builder = Node::builder("embedded").id(id).data(self.data.join(id.to_string())).timings(self.timings);
        let members = (1..).zip(self.http.iter().zip(&self.peer));
        members.fold(builder, |builder, (id, (http, peer))| builder.member(id, http, peer))
    }

    /// Starts the three nodes, and waits until all of them are ready.
    pub async fn start(&self) -> Trio {
        let started = tokio::join!(self.start_with_retries(1), self.start_with_retries(2), self.start_with_retries(3));
        let trio = Trio { nodes: vec![started.0, started.1, started.2] };
        trio.ready().await;
        trio
    }

    /// Starts a node. Retries while an earlier node still closes its directory and listener.
    async fn start_with_retries(&self, id: u64) -> Node {
        let start = async {
            loop {
                match self.builder(id).start().await {
                    Ok(node) => return node,
                    Err(StartError::Listen { .. } | StartError::Storage(_)) => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Err(error) => panic!("node {id}: {error}"),
                }
            }
        };
        tokio::time::timeout(SOON, start).await.expect("the node starts")
    }
}

impl Trio {
    async fn ready(&self) {
        let ready = async {
            while self.nodes.iter().any(|node| node.health().not_ready.is_some()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, ready).await.expect("the nodes are ready");
    }

    /// Waits until the members have agreed on this feature level.
    pub async fn reached(&self, level: u32) {
        let reached = async {
            for node in &self.nodes {
                while node.status().await.feature_level < level {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        tokio::time::timeout(SOON, reached).await.expect("the members have the same release");
    }

    /// Returns the leader and a follower.
    pub async fn leader_and_follower(&self) -> (&Node, &Node) {
        let find = async {
            loop {
                let leader = self.nodes[0].status().await.leader;
                if let Some(leads) = self.nodes.iter().find(|node| Some(node.id()) == leader) {
                    return leads;
                }
            }
        };
        let leader = tokio::time::timeout(SOON, find).await.expect("the cluster elects a leader");
        (leader, self.nodes.iter().find(|node| node.id() != leader.id()).expect("the cluster has three nodes"))
    }

    pub async fn shutdown(self) {
        join_all(self.nodes.iter().map(Node::shutdown)).await;
    }
}

pub fn name(name: &str) -> LeaseName {
    LeaseName::new(name).expect("valid")
}

pub fn holder(holder: &str) -> HolderId {
    HolderId::new(holder).expect("valid")
}

pub async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a free port")
}

pub fn address(listener: &TcpListener) -> String {
    listener.local_addr().expect("the listener is bound").to_string()
}

/// Returns an address for each node. A node that restarts uses the same one.
fn free_addresses() -> Vec<String> {
    (0..3).map(|_| format!("127.0.0.1:{}", port::free())).collect()
}
