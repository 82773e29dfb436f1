//! A cluster of real processes, and an observer of its leases.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tenure::api::EventId;
use tenure::client::{Endpoints, Remote};
use tenure::clock::{Clock, SystemClock};
use tokio::task::JoinHandle;

use crate::client::{Call, Client, Outcome};
use crate::judge::{Progress, Transition};
use crate::port;
use crate::process::{Process, tenure};
use crate::wait::{POLL, SOON, eventually};

const NODES: usize = 3;
/// The pause between two changes of a lease of the observer. Each of them is a commit that it sees.
const PULSE: Duration = Duration::from_millis(50);

pub struct Cluster {
    /// Declared before the folder: the processes end before the folder is removed.
    nodes: Mutex<Vec<Option<Process>>>,
    pub addresses: Vec<SocketAddr>,
    /// Sends requests directly to the nodes.
    pub client: Client,
    observer: Option<Observer>,
    folder: TempDir,
}

impl Cluster {
    /// Starts three nodes, and observes all their leases.
    pub async fn start() -> Cluster {
        let mut cluster = Cluster::launch("", |_| {}).await;
        cluster.ready().await;
        cluster.observer = Some(Observer::start(cluster.client.clone()));
        cluster
    }

    /// Launches three nodes with these settings. `prepare` makes files in the folder of the cluster, before the start.
    pub async fn launch(settings: &str, prepare: impl FnOnce(&Path)) -> Cluster {
        let folder = TempDir::new().expect("a folder");
        let addresses: Vec<SocketAddr> = (0..NODES).map(|_| SocketAddr::from(([127, 0, 0, 1], port::free()))).collect();
        let mut text = "cluster = \"test\"\n".to_owned();
        for (node, http) in addresses.iter().enumerate() {
            let (id, peer) = (node + 1, port::free());
            let table = format!("[[node]]\nid = {id}\nhttp = \"{http}\"\npeer = \"127.0.0.1:{peer}\"\n");
            writeln!(text, "{table}data = \"data/{id}\"").expect("a write to a string succeeds");
        }
        text.push_str(settings);
        std::fs::write(folder.path().join("cluster.toml"), text).expect("the folder is writable");
        prepare(folder.path());
        let start = |node: usize| {
            let mut command = tenure();
            command.arg("serve").args(["--config", "cluster.toml", "--node", &(node + 1).to_string()]);
            command.current_dir(folder.path());
            Process::start(&format!("node {}", node + 1), command, folder.path())
        };
        let nodes = (0..NODES).map(|node| Some(start(node))).collect();
        let urls = addresses.iter().map(|address| format!("http://{address}")).collect();
        Cluster { nodes: Mutex::new(nodes), addresses, client: Client::new(urls), observer: None, folder }
    }

    async fn ready(&self) {
        for node in 0..NODES {
            while !matches!(self.client.attempt(node, &Call::get("/readyz")).await, Outcome::Done(_)) {
                self.assert_running(node);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    pub fn assert_running(&self, node: usize) {
        let mut nodes = lock(&self.nodes);
        let process = nodes[node].as_mut().expect("no case starts a node again");
        assert!(process.is_running(), "node {} ended: {}", node + 1, process.said());
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends SIGKILL to the leader.
    pub async fn kill_leader(&self) {
        let named = async {
            loop {
                // A node names no leader during an election, or if it does not hear from the leader in time.
                let status = self.client.done(0, &Call::get("/v1/cluster")).await;
                if let Some(leader) = status["leader"].as_u64() {
                    return leader as usize - 1;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let leader = tokio::time::timeout(SOON, named).await.expect("a ready cluster has a leader");
        lock(&self.nodes)[leader].take().expect("no case starts a node again").kill();
    }

    /// The transitions of a lease that the observer has seen, in the order of the log.
    pub fn transitions(&self, lease: &str) -> Vec<Transition> {
        self.observer.as_ref().map_or_else(Vec::new, |observer| {
            lock(&observer.seen).iter().filter(|seen| seen.name == lease).cloned().collect()
        })
    }

    /// The commits that the observer has seen.
    pub fn progress(&self) -> Progress {
        let mut progress = Progress::default();
        if let Some(observer) = &self.observer {
            lock(&observer.seen).iter().for_each(|seen| progress.saw(seen.index, seen.at));
        }
        progress
    }

    /// Waits for a transition of a lease.
    pub async fn transition(&self, lease: &str, is_expected: impl Fn(&Transition) -> bool) -> Transition {
        eventually(&format!("transition of {lease}"), || self.transitions(lease).into_iter().find(&is_expected)).await
    }

    /// Waits until the observer has seen all earlier transitions.
    pub async fn observe_all(&self, marker: &str) {
        if self.observer.is_some() {
            self.client.acquire(marker, "observer", 60_000).await;
            self.transition(marker, Transition::is_grant).await;
        }
    }

    /// Reads a lease.
    pub async fn lease(&self, name: &str) -> Value {
        self.client.done(0, &Call::get(format!("/v1/leases/{name}"))).await
    }
}

/// Receives all transitions, and causes some, so that it sees whether the cluster commits.
struct Observer {
    seen: Arc<Mutex<Vec<Transition>>>,
    tasks: [JoinHandle<()>; 2],
}

impl Observer {
    fn start(client: Client) -> Observer {
        let endpoints: Endpoints = client.endpoints().parse().expect("valid URLs");
        // A new cluster still has all transitions.
        let mut watch = Remote::new(endpoints).watch("", Some(EventId { index: 0, part: None }));
        let seen = Arc::<Mutex<Vec<Transition>>>::default();
        let shared = seen.clone();
        let watching = tokio::spawn(async move {
            loop {
                // Without a node, the next call tries again.
                if let Ok(event) = watch.next().await {
                    lock(&shared).push(Transition::of_watch(&event, SystemClock.elapsed()));
                }
            }
        });
        Observer { seen, tasks: [watching, tokio::spawn(pulse(client))] }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Acquires and releases a lease, again and again.
async fn pulse(client: Client) {
    for place in 0.. {
        let acquired = client.attempt(place, &Call::acquire("pulse", "observer", 60_000)).await;
        tokio::time::sleep(PULSE).await;
        if let Outcome::Done(lease) = acquired {
            // The next round releases it after an error.
            client.attempt(place, &Call::release("pulse", "observer", crate::client::token(&lease))).await;
            tokio::time::sleep(PULSE).await;
        }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().expect("no code panics while it holds this lock")
}
