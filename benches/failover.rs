//! The time without a successful write when the leader is killed or shuts down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::Connection;
use crate::load::percentiles;

/// Pause between two steps, so that the cluster is stable.
const SETTLE_TIME: Duration = Duration::from_secs(2);
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);

pub async fn kill(cluster: &mut Cluster, times: usize) -> Value {
    gaps(cluster, "failover-kill", times, Cluster::kill).await
}

pub async fn handover(cluster: &mut Cluster, times: usize) -> Value {
    gaps(cluster, "failover-planned", times, Cluster::terminate).await
}

async fn gaps(cluster: &mut Cluster, name: &str, times: usize, stop_node: impl Fn(&mut Cluster, u16)) -> Value {
    let mut gaps = Vec::new();
    for _ in 0..times {
        let leader = cluster.leader().await;
        let others = cluster.addresses().into_iter().filter(|address| address != cluster.address(leader)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let prober = tokio::spawn(probe(others, stop.clone()));
        tokio::time::sleep(SETTLE_TIME / 2).await;
        tokio::task::block_in_place(|| stop_node(cluster, leader));
        tokio::time::sleep(SETTLE_TIME).await;
        stop.store(true, Ordering::Relaxed);
        gaps.push(prober.await.expect("the prober does not panic"));
        cluster.launch(leader);
        tokio::time::sleep(SETTLE_TIME).await;
    }
    let mut result = json!({"workload": name, "operations": times});
    result.as_object_mut().expect("a JSON object").extend(percentiles(gaps));
    result
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
