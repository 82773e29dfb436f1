//! `tenure serve` processes with data on a real disk.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::http::Connection;

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Unit of processor times in `/proc/*/stat`: 10 ms on Linux.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Running nodes. A drop kills the processes and removes the data.
pub struct Cluster {
    dir: tempfile::TempDir,
    nodes: Vec<Process>,
}

struct Process {
    http: String,
    child: Option<Child>,
}

impl Cluster {
    pub async fn start() -> Cluster {
        Cluster::start_with(3, "").await
    }

    /// Starts so many nodes with further sections of the configuration. Makes certificates, in case `[tls]` is one of them.
    pub async fn start_with(nodes: u16, sections: &str) -> Cluster {
        // The build directory is on a disk. /tmp may be in memory, where fsync costs nothing.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
        let ports = free_ports(2 * nodes);
        let mut config = "cluster = \"bench\"\n".to_string();
        for id in 1..=nodes {
            let (http, peer) = (ports[2 * id as usize - 2], ports[2 * id as usize - 1]);
            config += &format!(
                "[[node]]\nid = {id}\nhttp = \"127.0.0.1:{http}\"\npeer = \"127.0.0.1:{peer}\"\ndata = \"data/{id}\"\n"
            );
        }
        config += sections;
        fs::write(dir.path().join("cluster.toml"), config).expect("the configuration file is writable");
        let mut init = Command::new(env!("CARGO_BIN_EXE_tenure"));
        init.args(["tls", "init", "tls"]).current_dir(dir.path()).stdout(Stdio::null());
        assert!(init.status().expect("the command starts").success());
        let http = |id: u16| format!("127.0.0.1:{}", ports[2 * id as usize - 2]);
        let processes = (1..=nodes).map(|id| Process { http: http(id), child: None }).collect();
        let mut cluster = Cluster { dir, nodes: processes };
        for id in 1..=nodes {
            cluster.launch(id);
        }
        cluster.leader().await;
        cluster
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn address(&self, id: u16) -> &str {
        &self.nodes[id as usize - 1].http
    }

    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.http.clone()).collect()
    }

    pub fn launch(&mut self, id: u16) {
        let log = fs::File::options().create(true).append(true).open(self.log(id)).expect("the log file is writable");
        let child = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["serve", "--config", "cluster.toml", "--node", &id.to_string()])
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn();
        self.nodes[id as usize - 1].child = Some(child.expect("the node starts"));
    }

    pub fn kill(&mut self, id: u16) {
        let mut child = self.nodes[id as usize - 1].child.take().expect("the node runs");
        child.kill().expect("a child process");
        child.wait().expect("a child process");
    }

    /// Sends SIGTERM to a node, and waits for its end.
    pub fn terminate(&mut self, id: u16) {
        self.signal(id, "TERM");
        let mut child = self.nodes[id as usize - 1].child.take().expect("the node runs");
        child.wait().expect("a child process");
    }

    /// Sends a signal to a running node, such as `STOP`.
    pub fn signal(&self, id: u16, signal: &str) {
        let child = self.nodes[id as usize - 1].child.as_ref().expect("the node runs");
        let status = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
        assert!(status.expect("the kill command starts").success());
    }

    /// Waits until a running node reports a running leader.
    pub async fn leader(&self) -> u16 {
        let start = Instant::now();
        while start.elapsed() < START_TIMEOUT {
            for node in self.nodes.iter().filter(|node| node.child.is_some()) {
                if let Some(leader) = leader_seen_by(&node.http).await
                    && self.nodes[leader as usize - 1].child.is_some()
                {
                    return leader;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no leader within {START_TIMEOUT:?}: see the logs in {}", self.dir.path().display());
    }

    pub async fn leader_address(&self) -> String {
        self.address(self.leader().await).to_string()
    }

    pub async fn follower(&self) -> u16 {
        let leader = self.leader().await;
        (1..=self.nodes.len() as u16).find(|id| *id != leader).expect("several nodes")
    }

    /// Processor time that all nodes have used.
    pub fn cpu(&self) -> Duration {
        self.pids().map(cpu_of).sum()
    }

    /// Resident memory of each node, in bytes.
    pub fn memory(&self) -> Vec<u64> {
        self.pids().map(memory_of).collect()
    }

    /// Bytes on the disk in the data directory of each node.
    pub fn data_sizes(&self) -> Vec<u64> {
        (1..=self.nodes.len()).map(|id| disk_bytes(&self.dir().join(format!("data/{id}")))).collect()
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().filter_map(|node| node.child.as_ref()).map(Child::id)
    }

    fn log(&self, id: u16) -> PathBuf {
        self.dir.path().join(format!("node{id}.log"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().filter_map(|node| node.child.as_mut()) {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn leader_seen_by(address: &str) -> Option<u16> {
    let mut connection = Connection::open(address).await.ok()?;
    let answer = connection.get("/v1/leases/leader-probe?consistency=leader").await.ok()?;
    if answer.status >= 500 {
        return None;
    }
    let status = connection.get("/v1/cluster").await.ok()?;
    serde_json::from_slice::<serde_json::Value>(&status.body).ok()?["leader"].as_u64().map(|id| id as u16)
}

fn free_ports(count: u16) -> Vec<u16> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("the listener is bound").port()).collect()
}

fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a child process");
    let after_name = stat.rsplit_once(')').expect("a name in brackets").1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<u32>().expect("a number");
    CLOCK_TICK * (ticks(11) + ticks(12))
}

fn disk_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).expect("a readable directory").map(|entry| entry.expect("a readable directory"));
    // A node removes files at any time.
    let sizes = entries.filter_map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => Some(disk_bytes(&entry.path())),
        metadata => metadata.ok().map(|metadata| metadata.blocks() * BLOCK_BYTES),
    });
    sizes.sum()
}

fn memory_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a child process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("resident memory");
    let kib = line.split_whitespace().nth(1).expect("a number");
    kib.parse::<u64>().expect("a number") * 1024
}
