//! A cluster of node processes. Each node has a network namespace and a disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::disk::Disk;
use super::network::{self, Cut, Network};
use super::network_faults::PacketQueue;
use super::process::Process;
use super::suspend::SuspendClock;

/// With five nodes on few cores, a node may get no processor for a while. It must not look like a failed node.
const SLOW_TIMINGS: &str =
    "heartbeat_interval_ms = 250\nelection_timeout_min_ms = 1000\nelection_timeout_max_ms = 1500\n";
/// Snapshots and purges are frequent, but a node that was down for a short time usually finds its log entries.
const SNAPSHOTS: &str = "snapshot_every = 3000\nsnapshot_keep = 1000\n";
const HTTP_PORT: u16 = 7101;
const PEER_PORT: u16 = 7201;
const POLL: Duration = Duration::from_millis(25);
/// The time limit of one request to one node.
const QUESTION: Duration = Duration::from_millis(700);

/// Why a node may exit, and the expected exit code and message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedExit {
    DiskFull,
    DiskBroken,
    /// The harness sent SIGTERM.
    Stopped,
}

impl ExpectedExit {
    /// Whether this exit code and this output match the expected exit.
    fn covers(self, code: Option<i32>, said: &str) -> bool {
        match self {
            ExpectedExit::Stopped => code == Some(0),
            ExpectedExit::DiskFull => {
                code == Some(1) && said.contains("free some space on that disk and start the node again")
            }
            ExpectedExit::DiskBroken => code == Some(1) && said.contains("cannot go on"),
        }
    }
}

pub struct Node {
    /// Dropped before the disk is unmounted.
    pub process: Option<Process>,
    pub disk: Disk,
    pub is_paused: bool,
    pub expected_exit: Option<ExpectedExit>,
    /// The environment with faulty clocks, from the next start on.
    pub clocks: Vec<(String, String)>,
    pub packet_queue: PacketQueue,
    /// Set if the plan has suspend faults.
    suspends: Option<SuspendClock>,
}

pub struct Cluster {
    pub nodes: BTreeMap<u64, Node>,
    pub network: Network,
    /// The active cuts, by the number of their fault.
    cuts: BTreeMap<usize, Cut>,
    queued: BTreeSet<u64>,
    http: reqwest::Client,
    binary: PathBuf,
    folder: PathBuf,
    logs: PathBuf,
}

impl Cluster {
    /// Creates namespaces, disks and a `cluster.toml`, and starts no process. `folder` belongs to the run; `logs` is
    /// kept.
    pub fn new(nodes: u64, binary: &Path, folder: &Path, logs: &Path, suspends: bool) -> Result<Cluster> {
        let network = Network::new(nodes)?;
        network.enter_hub()?;
        let mut members = BTreeMap::new();
        let mut text = "cluster = \"faults\"\nallow_insecure_network = true\n".to_owned();
        for id in 1..=nodes {
            let disk = Disk::new(folder, &format!("disk{id}"))?;
            let address = network::node_address(id);
            let data = disk.path().join("data");
            writeln!(text, "[[node]]\nid = {id}\nhttp = \"{address}:{HTTP_PORT}\"\npeer = \"{address}:{PEER_PORT}\"")?;
            writeln!(text, "data = {data:?}")?;
            std::fs::write(log(logs, id), "")?;
            let packet_queue = PacketQueue::new(network.namespace(id))?;
            let suspends = suspends.then(|| SuspendClock::new(folder, id));
            let node = Node {
                process: None,
                disk,
                is_paused: false,
                expected_exit: None,
                clocks: Vec::new(),
                packet_queue,
                suspends,
            };
            members.insert(id, node);
        }
        writeln!(text, "[raft]\n{SNAPSHOTS}{}", if nodes > 3 { SLOW_TIMINGS } else { "" })?;
        std::fs::write(folder.join("cluster.toml"), &text)?;
        std::fs::write(logs.join("cluster.toml"), &text)?;
        let http = crate::plain_http::builder().timeout(QUESTION).pool_max_idle_per_host(0).build()?;
        Ok(Cluster {
            nodes: members,
            network,
            cuts: BTreeMap::new(),
            queued: BTreeSet::new(),
            http,
            binary: binary.to_owned(),
            folder: folder.to_owned(),
            logs: logs.to_owned(),
        })
    }

    pub fn ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// The largest number of nodes that may be down.
    pub fn minority(&self) -> usize {
        (self.nodes.len() - 1) / 2
    }

    /// The folder of the run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node of this cluster")
    }

    /// Starts a node unless it runs.
    pub fn launch(&mut self, id: u64) -> Result<()> {
        let (namespace, log) = (self.network.namespace(id), log(&self.logs, id));
        let (binary, config) = (self.binary.clone(), self.folder.join("cluster.toml"));
        let node = self.node(id);
        if node.process.is_some() {
            return Ok(());
        }
        node.disk.mount()?;
        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(config).args(["--node", &id.to_string()]);
        match &mut node.suspends {
            Some(suspends) if node.clocks.is_empty() => drop(command.envs(suspends.start()?)),
            _ => drop(command.envs(node.clocks.iter().cloned())),
        }
        node.process = Some(Process::start(&format!("node {id}"), command, Some(&namespace), &log)?);
        (node.is_paused, node.expected_exit) = (false, None);
        Ok(())
    }

    /// Sends SIGKILL. Returns whether the node was running.
    pub fn kill(&mut self, id: u64) -> Result<bool> {
        let node = self.node(id);
        let Some(mut process) = node.process.take() else { return Ok(false) };
        process.kill()?;
        (node.is_paused, node.expected_exit) = (false, None);
        Ok(true)
    }

    /// Sends SIGSTOP or SIGCONT. Returns whether the node was running.
    pub fn pause(&mut self, id: u64, pause: bool) -> Result<bool> {
        let node = self.node(id);
        let Some(process) = &node.process else { return Ok(false) };
        process.signal(if pause { Signal::STOP } else { Signal::CONT })?;
        node.is_paused = pause;
        Ok(true)
    }

    /// SuspendClock or resumes the machine of a node. Returns whether the node was running.
    pub fn suspend(&mut self, id: u64, suspend: bool) -> Result<bool> {
        let node = self.node(id);
        let (Some(process), Some(suspends)) = (&node.process, &mut node.suspends) else { return Ok(false) };
        if suspend {
            process.stop()?;
            suspends.begin();
        } else {
            suspends.end()?;
            process.signal(Signal::CONT)?;
        }
        node.is_paused = suspend;
        Ok(true)
    }

    pub fn runs(&self, id: u64) -> bool {
        self.nodes[&id].process.is_some()
    }

    /// Applies a cut for a fault, or removes it with `None`.
    pub fn cut(&mut self, fault: usize, cut: Option<Cut>) -> Result<()> {
        match cut {
            Some(cut) => drop(self.cuts.insert(fault, cut)),
            None => drop(self.cuts.remove(&fault)),
        }
        self.apply()
    }

    /// Sets whether the incoming packets of a node pass through its packet queue.
    pub fn queue(&mut self, id: u64, queued: bool) -> Result<()> {
        if queued {
            self.queued.insert(id)
        } else {
            self.queued.remove(&id)
        };
        self.apply()
    }

    fn apply(&mut self) -> Result<()> {
        let all: Cut = self.cuts.values().flatten().copied().collect();
        self.network.set(&all, &self.queued)
    }

    /// Sends a GET request to one node. Returns `None` without a successful answer.
    pub async fn ask(&self, id: u64, path: &str) -> Option<Value> {
        let response = self.http.get(format!("{}{path}", url(id))).send().await.ok()?;
        let response = response.error_for_status().ok()?;
        response.json().await.ok()
    }

    /// The node that reports itself as leader, in the highest term of such nodes.
    pub async fn leader(&self) -> Option<u64> {
        let status = self.nodes.keys().map(|id| self.ask(*id, "/v1/cluster"));
        let status = futures_util::future::join_all(status).await;
        let leads = status.iter().flatten().filter(|status| status["leader"] == status["node"]);
        leads.max_by_key(|status| status["term"].as_u64())?["node"].as_u64()
    }

    /// Waits until all nodes are ready and have applied `index`. The error lists the nodes that are not.
    pub async fn settled(&self, index: u64, within: Duration) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let states = self.nodes.keys().map(|id| self.state(*id));
            let states = futures_util::future::join_all(states).await;
            let bad: Vec<_> = states.into_iter().filter(|(_, ready, applied)| !ready || *applied < index).collect();
            if bad.is_empty() {
                return Ok(());
            }
            if began.elapsed() > within {
                let words = bad.iter().map(|(id, ready, applied)| {
                    format!("node {id} is {}ready, applied {applied}", if *ready { "" } else { "not " })
                });
                return Err(format!(
                    "not all nodes are ready at index {index} after {within:?}: {}",
                    words.collect::<Vec<_>>().join("; ")
                ));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn state(&self, id: u64) -> (u64, bool, u64) {
        let is_ready = self.ask(id, "/readyz").await.is_some();
        let status = self.ask(id, "/v1/cluster").await;
        (id, is_ready, status.and_then(|status| status["applied"].as_u64()).unwrap_or(0))
    }

    /// Detects nodes that have exited. Returns a message for each exit that was not expected.
    pub fn unexpected_exits(&mut self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        for (id, node) in &mut self.nodes {
            let Some(process) = &mut node.process else { continue };
            let Some(status) = process.ended()? else { continue };
            let said = process.said();
            if !node.expected_exit.is_some_and(|expected_exit| expected_exit.covers(status.code(), &said)) {
                wrong.push(format!("node {id} ended with {status} ({:?}): {said}", node.expected_exit));
            }
            node.process = None;
        }
        Ok(wrong)
    }

    /// The panics in the logs of the nodes, also those that did not end a process.
    pub fn panics(&self) -> Result<Vec<String>> {
        let mut panics = Vec::new();
        for id in self.nodes.keys() {
            let log = std::fs::read_to_string(log(&self.logs, *id))?;
            panics.extend(unexpected_panics(&log).map(|line| format!("node {id}: {line}")));
        }
        Ok(panics)
    }

    /// Fails if the packet queue of a node has failed.
    pub fn check_packet_queues(&self) -> Result<()> {
        for (id, node) in &self.nodes {
            node.packet_queue.seen().map_err(|error| anyhow!("the packet queue of node {id} failed: {error}"))?;
        }
        Ok(())
    }

    /// From now on no exit is expected.
    pub fn expect_no_exits(&mut self) {
        self.nodes.values_mut().for_each(|node| node.expected_exit = None);
    }

    /// The version that the binary reports.
    pub fn version(&self) -> Result<String> {
        let output = Command::new(&self.binary).arg("--version").output();
        let output = output.with_context(|| self.binary.display().to_string())?;
        ensure!(output.status.success(), "{} --version: {}", self.binary.display(), output.status);
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// The log of all processes of a node.
fn log(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!("node{id}.log"))
}

/// The storage thread catches panics of the store. When the node closes a store on a failed disk, the store panics
/// again. The node has logged the failure of the store by then.
fn unexpected_panics(log: &str) -> impl Iterator<Item = &str> {
    let mut has_failed = false;
    log.lines().filter(move |line| {
        if line.starts_with("tenure: node") {
            has_failed = false;
        }
        has_failed |= line.contains("the store has failed");
        line.contains("panicked at") && !(has_failed && line.contains("'tenure-storage'"))
    })
}

/// The HTTP address of a node.
pub fn url(id: u64) -> String {
    format!("http://{}:{HTTP_PORT}", network::node_address(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_counts_unless_a_failed_store_closes() {
        let panic = |thread: &str| format!("thread '{thread}' (7) panicked at a.rs:1:1:\n");
        let (started, failed) = ("tenure: node 1 of cluster faults\n", "ERROR the store has failed\n");
        let count = |log: String| unexpected_panics(&log).count();
        assert_eq!(count(format!("{started}{failed}{}", panic("tenure-storage"))), 0);
        assert_eq!(count(format!("{started}{}", panic("tenure-storage"))), 1, "a panic before the failure");
        assert_eq!(
            count(format!("{failed}{started}{}", panic("tenure-storage"))),
            1,
            "a failure of an earlier process"
        );
        assert_eq!(count(format!("{started}{failed}{}", panic("tokio-worker"))), 1, "a panic in another thread");
    }

    #[test]
    fn expected_exit_matches_one_code_and_message() {
        let full = "node 1 cannot go on: ...; free some space on that disk and start the node again";
        assert!(ExpectedExit::DiskFull.covers(Some(1), full) && ExpectedExit::DiskBroken.covers(Some(1), full));
        assert!(!ExpectedExit::DiskFull.covers(Some(1), "thread panicked"), "no message about the disk");
        assert!(!ExpectedExit::DiskFull.covers(Some(101), full) && !ExpectedExit::DiskBroken.covers(None, full));
        assert!(ExpectedExit::Stopped.covers(Some(0), "") && !ExpectedExit::Stopped.covers(Some(1), full));
    }
}
