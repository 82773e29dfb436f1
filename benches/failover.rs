//! The time without a successful write when the leader ends, stops, or transfers its leadership.
//!
//! A stopped process looks to the other nodes like an isolated machine: neither closes a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::http::{Connection, token};
use crate::percentiles::percentiles;

/// Pause between two steps, so that the cluster is stable.
const SETTLE_TIME: Duration = Duration::from_secs(2);
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
/// A request of the load that takes longer is sent again through another node.
const LOAD_TIMEOUT: Duration = Duration::from_secs(2);
const LOAD_CLIENTS: usize = 16;

/// The end of a leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT after the next leader is stable.
    Stop,
    /// SIGTERM: the leader transfers its leadership and exits.
    Shutdown,
    /// A transfer to another node on request. All nodes continue to run.
    Transfer,
}

impl Ending {
    pub const ALL: [Ending; 4] = [Ending::Shutdown, Ending::Transfer, Ending::Kill, Ending::Stop];

    fn name(self) -> &'static str {
        match self {
            Ending::Kill => "kill",
            Ending::Stop => "stop",
            Ending::Shutdown => "shutdown",
            Ending::Transfer => "transfer",
        }
    }
}

pub fn workload(ending: Ending, is_loaded: bool) -> String {
    format!("failover-{}-{}", ending.name(), if is_loaded { "loaded" } else { "idle" })
}

/// Ends the leadership so many times. The result has the longest time between two writes of each time.
pub async fn run(cluster: &mut Cluster, ending: Ending, is_loaded: bool, times: usize) -> Value {
    let nodes = cluster.addresses().len();
    let mut gaps = Vec::new();
    for _ in 0..times {
        let leader = cluster.leader().await;
        let others: Vec<String> =
            cluster.addresses().into_iter().filter(|address| address != cluster.address(leader)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let prober = tokio::spawn(probe(others.clone(), stop.clone()));
        let mut load = JoinSet::new();
        for client in (0..LOAD_CLIENTS).filter(|_| is_loaded) {
            load.spawn(keep_busy(client, others.clone(), stop.clone()));
        }
        tokio::time::sleep(SETTLE_TIME / 2).await;
        match ending {
            Ending::Kill => tokio::task::block_in_place(|| cluster.kill(leader)),
            Ending::Stop => cluster.signal(leader, "STOP"),
            Ending::Shutdown => tokio::task::block_in_place(|| cluster.terminate(leader)),
            Ending::Transfer => transfer(cluster.address(leader)).await,
        }
        tokio::time::sleep(SETTLE_TIME).await;
        stop.store(true, Ordering::Relaxed);
        gaps.push(prober.await.expect("the prober does not panic"));
        while let Some(ended) = load.join_next().await {
            ended.expect("the load does not panic");
        }
        match ending {
            Ending::Kill | Ending::Shutdown => cluster.launch(leader),
            Ending::Stop => cluster.signal(leader, "CONT"),
            Ending::Transfer => {}
        }
        tokio::time::sleep(SETTLE_TIME).await;
    }
    let mut result = json!({"workload": workload(ending, is_loaded), "nodes": nodes, "operations": times});
    result.as_object_mut().expect("a JSON object").extend(percentiles(gaps));
    result
}

async fn transfer(leader: &str) {
    let mut connection = Connection::open(leader).await.expect("the leader accepts connections");
    let transferred = connection.post("/v1/cluster/transfer", "{}").await.expect("an answer");
    assert_eq!(transferred.status, 200, "{}", String::from_utf8_lossy(&transferred.body));
}

/// Writes through the remaining nodes and returns the longest time between two successful writes.
async fn probe(addresses: Vec<String>, stop: Arc<AtomicBool>) -> Duration {
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    let mut turn = 0;
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            turn += 1;
            connection = Connection::open(&addresses[turn % addresses.len()]).await.ok();
        }
        let Some(open) = connection.as_mut() else { continue };
        let body = r#"{"holder":"prober","ttl_ms":60000}"#;
        match tokio::time::timeout(PROBE_TIMEOUT, open.post("/v1/leases/failover/acquire", body)).await {
            Ok(Ok(answer)) if answer.status == 200 => {
                longest = longest.max(last.elapsed());
                last = Instant::now();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            _ => connection = None,
        }
    }
    longest
}

/// Acquires and releases a lease through the remaining nodes.
async fn keep_busy(client: usize, addresses: Vec<String>, stop: Arc<AtomicBool>) {
    let mut turn = client;
    let mut connection = None;
    let path = format!("/v1/leases/busy-{client}");
    while !stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            turn += 1;
            connection = Connection::open(&addresses[turn % addresses.len()]).await.ok();
        }
        let Some(open) = connection.as_mut() else { continue };
        let pair = async {
            let body = format!(r#"{{"holder":"c{client}","ttl_ms":30000}}"#);
            let held = open.post(&format!("{path}/acquire"), &body).await.ok().filter(|held| held.status == 200)?;
            let body = format!(r#"{{"holder":"c{client}","token":"{}"}}"#, token(&held));
            open.post(&format!("{path}/release"), &body).await.ok()
        };
        if !matches!(tokio::time::timeout(LOAD_TIMEOUT, pair).await, Ok(Some(_))) {
            connection = None;
        }
    }
}
