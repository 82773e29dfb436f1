//! A cluster of node processes. Each node runs on a host with a network namespace, and has a disk.
//!
//! A host has one node at a time. After the removal of a node, its host is free for another node with a new id. Faults
//! and clients address hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::backups;
use super::disk::Disk;
use super::members::{Change, ChangeKind};
use super::network::{self, Cut, Network};
use super::network_faults::PacketQueue;
use super::process::Process;
use super::security::{HTTP_PORT, Security, TLS_SECTION};
use super::suspend::SuspendClock;

/// The hosts beyond the number of members. A change of the members needs one, and there is one change at a time.
pub const SPARE_HOSTS: u64 = 1;
/// With five nodes on few cores, a node may get no processor for a while. It must not look like a failed node.
const SLOW_TIMINGS: &str =
    "heartbeat_interval_ms = 250\nelection_timeout_min_ms = 1000\nelection_timeout_max_ms = 1500\n";
/// Snapshots and purges are frequent, but a node that was down for a short time usually finds its log entries.
const SNAPSHOTS: &str = "snapshot_every = 3000\nsnapshot_keep = 1000\n";
const PEER_PORT: u16 = 7201;
const POLL: Duration = Duration::from_millis(25);
/// The time limit of one request to one node.
const QUESTION: Duration = Duration::from_millis(700);
/// The exit code of a node that the cluster removed.
const REMOVED: i32 = 8;

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

/// The standing of a node in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Member,
    /// The cluster adds it.
    Joining,
    /// The cluster removes it. It exits with [`REMOVED`] when it learns so.
    Leaving,
    /// It has exited with [`REMOVED`], and must not start again.
    Removed,
}

pub struct Node {
    /// The id in the cluster. No other node of the run has it.
    pub id: u64,
    pub standing: Standing,
    /// Dropped before the disk is unmounted.
    pub process: Option<Process>,
    pub disk: Disk,
    pub is_paused: bool,
    pub expected_exit: Option<ExpectedExit>,
    /// The environment with faulty clocks, from the next start on.
    pub clocks: Vec<(String, String)>,
    config: PathBuf,
    /// Set if the plan has suspend faults.
    suspends: Option<SuspendClock>,
}

/// The settings of a cluster.
pub struct Setup<'a> {
    pub nodes: u64,
    pub binary: &'a Path,
    /// The folder of the run.
    pub folder: &'a Path,
    /// The folder that is kept after the run.
    pub logs: &'a Path,
    pub suspends: bool,
    pub tls: bool,
}

pub struct Cluster {
    /// By host.
    pub nodes: BTreeMap<u64, Node>,
    pub network: Network,
    /// The packet queue of each host.
    pub packet_queues: BTreeMap<u64, PacketQueue>,
    /// The change of the members that a fault began, until it is complete.
    pub change: Option<Change>,
    pub security: Security,
    /// The number of members between two changes.
    size: u64,
    /// The highest id so far. The first nodes have the ids from 1 to `size`.
    last_id: u64,
    /// The active cuts, by the number of their fault.
    cuts: BTreeMap<usize, Cut>,
    queued: BTreeSet<u64>,
    http: reqwest::Client,
    binary: PathBuf,
    folder: PathBuf,
    logs: PathBuf,
    suspends: bool,
}

impl Cluster {
    /// Creates namespaces, disks, certificates and a `cluster.toml`, and starts no process.
    pub fn new(setup: &Setup<'_>) -> Result<Cluster> {
        let Setup { nodes: size, binary, folder, logs, suspends, tls } = *setup;
        let network = Network::new(size + SPARE_HOSTS)?;
        network.enter_hub()?;
        let queue = |host| Ok((host, PacketQueue::new(network.namespace(host))?));
        let packet_queues = network.hosts().map(queue).collect::<Result<_>>()?;
        let config = folder.join("cluster.toml");
        let first: Vec<(u64, u64)> = (1..=size).map(|id| (id, id)).collect();
        write_config(&config, folder, &first, size, tls)?;
        std::fs::copy(&config, logs.join("cluster.toml"))?;
        if tls {
            tenure(binary, &["tls", "init", "tls", "--config", "cluster.toml"], folder, &Security::default())?;
        }
        let certificates = tls.then(|| folder.join("tls"));
        let security = Security::load(certificates.as_deref())?;
        let mut cluster = Cluster {
            nodes: BTreeMap::new(),
            network,
            packet_queues,
            change: None,
            http: http_client(&security)?,
            security,
            size,
            last_id: size,
            cuts: BTreeMap::new(),
            queued: BTreeSet::new(),
            binary: binary.to_owned(),
            folder: folder.to_owned(),
            logs: logs.to_owned(),
            suspends,
        };
        first.into_iter().try_for_each(|(id, host)| cluster.create(id, host, Standing::Member, config.clone()))?;
        Ok(cluster)
    }

    fn create(&mut self, id: u64, host: u64, standing: Standing, config: PathBuf) -> Result<()> {
        std::fs::write(log(&self.logs, id), "")?;
        let node = Node {
            id,
            standing,
            process: None,
            disk: Disk::new(&self.folder, &disk_name(id))?,
            is_paused: false,
            expected_exit: None,
            clocks: Vec::new(),
            config,
            suspends: self.suspends.then(|| SuspendClock::new(&self.folder, id)),
        };
        let before = self.nodes.insert(host, node);
        ensure!(before.is_none(), "host {host} has a node already");
        Ok(())
    }

    /// Begins a change of the members: creates a node with a new id on the free host. With
    /// [`AddAndRemove`](ChangeKind::AddAndRemove) and no `leaving` host, the cluster removes the new node again.
    pub fn begin_change(&mut self, kind: ChangeKind, leaving: Option<u64>) -> Result<Change> {
        ensure!(self.change.is_none(), "a change of the members is not complete");
        let host = self.network.hosts().find(|host| !self.nodes.contains_key(host)).context("no host is free")?;
        self.last_id += 1;
        let id = self.last_id;
        let nodes: Vec<(u64, u64)> =
            self.nodes.iter().map(|(host, node)| (node.id, *host)).chain([(id, host)]).collect();
        let name = format!("node{id}.toml");
        let config = self.folder.join(&name);
        write_config(&config, &self.folder, &nodes, self.size, self.security.folder().is_some())?;
        if self.security.folder().is_some() {
            let issue = ["tls", "issue", "tls", "--node", &id.to_string(), "--config", &name];
            tenure(&self.binary, &issue, &self.folder, &Security::default())?;
        }
        self.create(id, host, Standing::Joining, config)?;
        let leaving = leaving.unwrap_or(host);
        self.node(leaving).standing = Standing::Leaving;
        let change = Change {
            kind,
            joining: id,
            http: format!("{}:{HTTP_PORT}", network::host_address(host)),
            peer: format!("{}:{PEER_PORT}", network::host_address(host)),
            leaving: self.nodes[&leaving].id,
            joining_host: host,
            leaving_host: leaving,
        };
        self.change = Some(change.clone());
        Ok(change)
    }

    /// Completes a change whose removed node has exited: removes this node's disk.
    pub fn complete_change(&mut self) -> Result<()> {
        let Change { joining_host, leaving_host, .. } = self.change.take().context("no change has begun")?;
        let removed = self.nodes.remove(&leaving_host).context("the host of the removed node has no node")?;
        ensure!(removed.standing == Standing::Removed, "node {} was not removed", removed.id);
        removed.disk.remove()?;
        if let Some(joined) = self.nodes.get_mut(&joining_host) {
            joined.standing = Standing::Member;
        }
        Ok(())
    }

    /// Turns access control on. The run then uses the token of an administrator, and its clients another one, which it
    /// returns.
    pub fn enable_access(&mut self) -> Result<Security> {
        let urls = self.urls().join(",");
        let run = |line: &str, security: &Security| {
            let words: Vec<&str> = line.split(' ').map(|word| if word == "ALL" { "" } else { word }).collect();
            let words = [&words[..], &["--endpoints", &urls]].concat();
            tenure(&self.binary, &words, &self.folder, security)
        };
        for line in [
            "auth role set admin --admin",
            "auth role set worker --hold ALL --operate ALL",
            "auth principal set operator --role admin",
            "auth principal set worker --role worker",
        ] {
            run(line, &self.security)?;
        }
        let token = |principal: &str| run(&format!("auth token create {principal}"), &self.security);
        let worker = self.security.with_token(token("worker")?);
        let operator = self.security.with_token(token("operator")?);
        run("auth enable", &operator)?;
        (self.http, self.security) = (http_client(&operator)?, operator);
        Ok(worker)
    }

    /// The URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.keys().map(|host| self.security.url(*host)).collect()
    }

    /// The hosts that have a node.
    pub fn hosts(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub fn host_count(&self) -> u64 {
        self.size + SPARE_HOSTS
    }

    /// The ids of the nodes.
    pub fn ids(&self) -> BTreeSet<u64> {
        self.nodes.values().map(|node| node.id).collect()
    }

    /// The largest number of nodes that may be down.
    pub fn minority(&self) -> usize {
        (self.size as usize - 1) / 2
    }

    /// The tenure binary.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The folder of the run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn node(&mut self, host: u64) -> &mut Node {
        self.nodes.get_mut(&host).expect("the host has a node")
    }

    pub fn is_removed(&self, host: u64) -> bool {
        self.nodes[&host].standing == Standing::Removed
    }

    /// Starts a node unless it runs, or the cluster has removed it.
    pub fn launch(&mut self, host: u64) -> Result<()> {
        let (namespace, binary, logs, size) =
            (self.network.namespace(host), self.binary.clone(), self.logs.clone(), self.size);
        let node = self.node(host);
        if node.process.is_some() || node.standing == Standing::Removed {
            return Ok(());
        }
        node.disk.mount()?;
        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(&node.config).args(["--node", &node.id.to_string()]);
        if node.id > size {
            command.arg("--join");
        }
        match &mut node.suspends {
            Some(suspends) if node.clocks.is_empty() => drop(command.envs(suspends.start()?)),
            _ => drop(command.envs(node.clocks.iter().cloned())),
        }
        let (name, log) = (format!("node {}", node.id), log(&logs, node.id));
        node.process = Some(Process::start(&name, command, Some(&namespace), &log)?);
        (node.is_paused, node.expected_exit) = (false, None);
        Ok(())
    }

    /// Sends SIGKILL. Returns whether the node was running.
    pub fn kill(&mut self, host: u64) -> Result<bool> {
        let node = self.node(host);
        let Some(mut process) = node.process.take() else { return Ok(false) };
        process.kill()?;
        (node.is_paused, node.expected_exit) = (false, None);
        Ok(true)
    }

    /// Sends SIGSTOP or SIGCONT. Returns whether the node was running.
    pub fn pause(&mut self, host: u64, pause: bool) -> Result<bool> {
        let node = self.node(host);
        let Some(process) = &node.process else { return Ok(false) };
        process.signal(if pause { Signal::STOP } else { Signal::CONT })?;
        node.is_paused = pause;
        Ok(true)
    }

    /// Suspends or resumes the machine of a node. Returns whether the node was running.
    pub fn suspend(&mut self, host: u64, suspend: bool) -> Result<bool> {
        let node = self.node(host);
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

    pub fn runs(&self, host: u64) -> bool {
        self.nodes[&host].process.is_some()
    }

    /// Applies a cut for a fault, or removes it with `None`.
    pub fn cut(&mut self, fault: usize, cut: Option<Cut>) -> Result<()> {
        match cut {
            Some(cut) => drop(self.cuts.insert(fault, cut)),
            None => drop(self.cuts.remove(&fault)),
        }
        self.apply()
    }

    /// Sets whether the incoming packets of a host pass through its packet queue.
    pub fn queue(&mut self, host: u64, queued: bool) -> Result<()> {
        if queued {
            self.queued.insert(host)
        } else {
            self.queued.remove(&host)
        };
        self.apply()
    }

    fn apply(&mut self) -> Result<()> {
        let all: Cut = self.cuts.values().flatten().copied().collect();
        self.network.set(&all, &self.queued)
    }

    /// Sends a GET request to one node. Returns `None` without a successful answer.
    pub async fn ask(&self, host: u64, path: &str) -> Option<Value> {
        let response = self.http.get(self.security.url(host) + path).send().await.ok()?;
        let response = response.error_for_status().ok()?;
        response.json().await.ok()
    }

    /// The host whose node reports itself as leader, in the highest term of such nodes.
    pub async fn leader(&self) -> Option<u64> {
        let status = self.nodes.keys().map(|host| async { (*host, self.ask(*host, "/v1/cluster").await) });
        let status = futures_util::future::join_all(status).await;
        let leads = status.into_iter().filter_map(|(host, status)| Some((host, status?)));
        let leads = leads.filter(|(_, status)| status["leader"] == status["node"]);
        leads.max_by_key(|(_, status)| status["term"].as_u64()).map(|(host, _)| host)
    }

    /// Waits until all nodes are ready and have applied `index`. The error lists the nodes that are not.
    pub async fn converged(&self, index: u64, within: Duration) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let states = self.nodes.keys().map(|host| self.state(*host));
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

    async fn state(&self, host: u64) -> (u64, bool, u64) {
        let is_ready = self.ask(host, "/readyz").await.is_some();
        let status = self.ask(host, "/v1/cluster").await;
        (self.nodes[&host].id, is_ready, status.and_then(|status| status["applied"].as_u64()).unwrap_or(0))
    }

    /// Detects nodes that have exited. Returns a message for each exit that was not expected.
    pub fn unexpected_exits(&mut self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        for node in self.nodes.values_mut() {
            let Some(process) = &mut node.process else { continue };
            let Some(status) = process.ended()? else { continue };
            let said = process.said();
            if node.standing == Standing::Leaving && status.code() == Some(REMOVED) {
                node.standing = Standing::Removed;
            } else if !node.expected_exit.is_some_and(|expected_exit| expected_exit.covers(status.code(), &said)) {
                wrong.push(format!("node {} ended with {status} ({:?}): {said}", node.id, node.expected_exit));
            }
            node.process = None;
        }
        Ok(wrong)
    }

    /// The panics in the logs of all nodes that ever ran, also those that did not end a process.
    pub fn panics(&self) -> Result<Vec<String>> {
        let mut panics = Vec::new();
        for id in 1..=self.last_id {
            let log = std::fs::read_to_string(log(&self.logs, id))?;
            panics.extend(unexpected_panics(&log).map(|line| format!("node {id}: {line}")));
        }
        Ok(panics)
    }

    /// Fails if the packet queue of a host has failed.
    pub fn check_packet_queues(&self) -> Result<()> {
        for (host, queue) in &self.packet_queues {
            queue.seen().map_err(|error| anyhow!("the packet queue of host {host} failed: {error}"))?;
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
        // The last message of a failed node also begins with `tenure: node`, and can precede the panic.
        if line.starts_with("tenure: node") && line.contains(" of cluster ") {
            has_failed = false;
        }
        has_failed |= line.contains("the store has failed");
        line.contains("panicked at") && !(has_failed && line.contains("'tenure-storage'"))
    })
}

fn disk_name(id: u64) -> String {
    format!("disk{id}")
}

fn http_client(security: &Security) -> Result<reqwest::Client> {
    Ok(security.http()?.timeout(QUESTION).pool_max_idle_per_host(0).build()?)
}

/// Writes the configuration file of these nodes: their ids and hosts.
fn write_config(file: &Path, folder: &Path, nodes: &[(u64, u64)], size: u64, tls: bool) -> Result<()> {
    let mut text = "cluster = \"faults\"\n".to_owned();
    if !tls {
        text.push_str("allow_insecure_network = true\n");
    }
    for (id, host) in nodes {
        let (address, data) = (network::host_address(*host), folder.join(disk_name(*id)).join("data"));
        writeln!(text, "[[node]]\nid = {id}\nhttp = \"{address}:{HTTP_PORT}\"\npeer = \"{address}:{PEER_PORT}\"")?;
        writeln!(text, "data = {data:?}")?;
    }
    writeln!(text, "[raft]\n{SNAPSHOTS}{}", if size > 3 { SLOW_TIMINGS } else { "" })?;
    text.push_str(backups::SECTION);
    if tls {
        text.push_str(TLS_SECTION);
    }
    Ok(std::fs::write(file, text)?)
}

/// Runs a command of the binary in a folder. Returns its output.
pub fn tenure(binary: &Path, words: &[&str], folder: &Path, security: &Security) -> Result<String> {
    let output = Command::new(std::path::absolute(binary)?)
        .args(words)
        .current_dir(folder)
        .envs(security.environment())
        .output()
        .with_context(|| binary.display().to_string())?;
    ensure!(output.status.success(), "tenure {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
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
        let stopped = "tenure: node 1 cannot go on: the disk\n";
        assert_eq!(count(format!("{started}{failed}{stopped}{}", panic("tenure-storage"))), 0);
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
