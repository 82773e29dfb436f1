//! A cluster of real processes with its own ports and folder.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use crate::client::{Call, Client, Outcome};
use crate::port;
use crate::process::{Process, tenure};

/// One cluster runs at a time. On two cores, a starved node looks like a failed one.
static TURN: Mutex<()> = Mutex::const_new(());

/// The limit for events that come soon unless there is a fault, also on a busy machine.
pub const SOON: Duration = Duration::from_secs(15);
pub const POLL: Duration = Duration::from_millis(10);
/// The feature level of this release.
const NEWEST_LEVEL: u64 = 6;
pub const NODES: [u64; 3] = [1, 2, 3];

/// Waits until no other cluster runs.
pub async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// Three nodes. Each of them may run or not.
pub struct Cluster {
    /// Declared before the folder: the processes end before the folder is removed.
    pub nodes: BTreeMap<u64, Process>,
    pub client: Client,
    /// Environment variables of nodes that start from now on.
    pub variables: Vec<(&'static str, String)>,
    config: PathBuf,
    folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Creates a folder with a `cluster.toml`, and starts no process. `settings` are the sections after the nodes.
    pub async fn new(settings: &str) -> Cluster {
        Cluster::with_data(settings, |id| PathBuf::from(format!("data/{id}"))).await
    }

    /// Like [`new`](Self::new), with the data directories that `data` returns.
    pub async fn with_data(settings: &str, data: impl Fn(u64) -> PathBuf) -> Cluster {
        let turn = turn().await;
        let folder = TempDir::new().expect("a folder");
        let mut text = "cluster = \"test\"\n".to_owned();
        let mut urls = Vec::new();
        for id in NODES {
            let (http, peer, data) = (port::free(), port::free(), data(id));
            text.push_str(&node_entry(id, http, peer, &data));
            urls.push(format!("http://127.0.0.1:{http}"));
        }
        text.push_str(settings);
        let config = folder.path().join("cluster.toml");
        std::fs::write(&config, text).expect("the folder is writable");
        Cluster {
            nodes: BTreeMap::new(),
            client: Client::new(urls),
            variables: Vec::new(),
            config,
            folder,
            _turn: turn,
        }
    }

    /// Creates a cluster, starts all nodes and waits until they are ready.
    pub async fn start(settings: &str) -> Cluster {
        let mut cluster = Cluster::new(settings).await;
        cluster.launch_all().await;
        cluster
    }

    pub async fn launch_all(&mut self) {
        for id in NODES {
            self.launch(id);
        }
        for id in NODES {
            self.ready(id).await;
        }
    }

    /// Starts a node. The node may fail to start.
    pub fn launch(&mut self, id: u64) -> &mut Process {
        let process = self.other_process(id, &self.config);
        self.nodes.insert(id, process);
        self.nodes.get_mut(&id).expect("the node is in the map")
    }

    /// Starts a process for node `id` with another configuration file.
    pub fn other_process(&self, id: u64, config: &Path) -> Process {
        self.process_with(id, config, &[])
    }

    /// Starts a process for node `id` with another configuration file and with options.
    pub fn process_with(&self, id: u64, config: &Path, options: &[&str]) -> Process {
        let mut command = tenure();
        command.arg("serve").arg("--config").arg(config).args(["--node", &id.to_string()]).args(options);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Process::start(&format!("node {id}"), command, self.folder.path())
    }

    pub fn node(&mut self, id: u64) -> &mut Process {
        self.nodes.get_mut(&id).unwrap_or_else(|| panic!("node {id} does not run"))
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self, id: u64) {
        self.nodes.remove(&id).unwrap_or_else(|| panic!("node {id} does not run")).kill();
    }

    pub fn stop(&self, id: u64) {
        self.nodes[&id].signal(Signal::STOP);
    }

    pub fn resume(&self, id: u64) {
        self.nodes[&id].signal(Signal::CONT);
    }

    /// The configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The peer address of node `id`.
    pub fn peer_address(&self, id: u64) -> String {
        let config = tenure::config::Config::load(&self.config).expect("the configuration is valid");
        config.node(id).expect("the node is in the configuration").peer.clone()
    }

    pub fn data(&self, id: u64) -> PathBuf {
        self.folder.path().join(format!("data/{id}"))
    }

    /// Sends a GET request to one node. Returns `None` without a successful answer.
    pub async fn ask(&self, id: u64, path: &str) -> Option<Value> {
        let call = Call { timeout: Duration::from_millis(500), ..Call::get(path) };
        match self.client.attempt(place(id), &call).await {
            Outcome::Done(value) => Some(value),
            _ => None,
        }
    }

    /// Waits until the node reports that it is ready.
    pub async fn ready(&mut self, id: u64) {
        let began = Instant::now();
        while self.ask(id, "/readyz").await.is_none() {
            assert!(self.node(id).is_running(), "node {id} exited");
            assert!(began.elapsed() < SOON, "node {id} is not ready after {SOON:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until a node reports itself as leader in the highest term.
    pub async fn leader(&self) -> u64 {
        self.leader_within(SOON).await
    }

    pub async fn leader_within(&self, within: Duration) -> u64 {
        let began = Instant::now();
        loop {
            let status = NODES.map(|id| self.ask(id, "/v1/cluster"));
            let status = futures_util::future::join_all(status).await;
            let newest = status.iter().flatten().max_by_key(|status| status["term"].as_u64());
            let term = newest.map(|status| status["term"].clone());
            let leads = |status: &&Value| status["leader"] == status["node"] && Some(&status["term"]) == term.as_ref();
            if let Some(leader) = status.iter().flatten().find(leads) {
                return leader["node"].as_u64().expect("a node reports its id");
            }
            assert!(began.elapsed() < within, "no leader after {within:?}: {status:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// The cluster as node `id` sees it. Waits until the node has started.
    pub async fn status(&self, id: u64) -> Value {
        let began = Instant::now();
        loop {
            if let Some(status) = self.ask(id, "/v1/cluster").await {
                return status;
            }
            assert!(began.elapsed() < SOON, "node {id} does not answer within {SOON:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until all nodes know the leader, and the members have agreed on the newest feature level.
    pub async fn settled(&self) {
        let began = Instant::now();
        for id in NODES {
            loop {
                let status = self.status(id).await;
                if !status["leader"].is_null() && status["feature_level"].as_u64() >= Some(NEWEST_LEVEL) {
                    break;
                }
                assert!(began.elapsed() < SOON, "node {id}: {status}");
                tokio::time::sleep(POLL).await;
            }
        }
    }

    /// The current term of node `id`.
    pub async fn term(&self, id: u64) -> u64 {
        self.status(id).await["term"].as_u64().expect("a node reports its term")
    }

    /// A running node that does not lead.
    pub async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        NODES.into_iter().find(|id| *id != leader && self.nodes.contains_key(id)).expect("at least two nodes run")
    }

    /// Waits until node `id` has applied the entries that the leader had applied before this call.
    pub async fn caught_up(&self, id: u64) {
        let leader = self.leader().await;
        let target = self.status(leader).await["applied"].as_u64();
        let began = Instant::now();
        while self.status(id).await["applied"].as_u64() < target {
            assert!(began.elapsed() < SOON, "node {id} has not caught up after {SOON:?}");
            tokio::time::sleep(POLL).await;
        }
    }
}

/// The position of node `id` in the configuration file.
pub fn place(id: u64) -> usize {
    id as usize - 1
}

/// A `[[node]]` table of the configuration file.
pub fn node_entry(id: u64, http: u16, peer: u16, data: &Path) -> String {
    let mut text = String::new();
    let data = data.display();
    let table = format!("[[node]]\nid = {id}\nhttp = \"127.0.0.1:{http}\"\npeer = \"127.0.0.1:{peer}\"\n");
    writeln!(text, "{table}data = \"{data}\"").expect("a write to a string succeeds");
    text
}
