//! Many leases at once: the rate of acquires, the memory, and the restart time of a node.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::Connection;
use crate::percentiles::round;

const CLIENTS: usize = 256;
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

pub async fn run(cluster: &mut Cluster, leases: usize) -> Value {
    let leader = cluster.leader().await;
    let address = cluster.address(leader).to_string();
    let empty = cluster.memory();
    let start = Instant::now();
    let workers: Vec<_> =
        (0..CLIENTS).map(|client| tokio::spawn(acquire_share(address.clone(), client, leases))).collect();
    for worker in workers {
        worker.await.expect("the client task does not panic");
    }
    let acquired = start.elapsed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let memory = cluster.memory();
    let follower = (1..=3).find(|id| *id != leader).expect("three nodes");
    cluster.kill(follower);
    let start = Instant::now();
    cluster.launch(follower);
    let ready = wait_ready(cluster.address(follower)).await;
    let mib = |bytes: &[u64]| bytes.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>();
    json!({
        "workload": "bulk", "operations": leases, "clients": CLIENTS,
        "seconds": round(acquired.as_secs_f64()), "per_second": (leases as f64 / acquired.as_secs_f64()).round(),
        "empty_mib": mib(&empty), "memory_mib": mib(&memory),
        "restart_seconds": round((ready - start).as_secs_f64()),
    })
}

/// Acquires the leases of one client.
async fn acquire_share(address: String, client: usize, leases: usize) {
    let mut connection = Connection::open(&address).await.expect("the leader accepts connections");
    for lease in (client..leases).step_by(CLIENTS) {
        let body = format!(r#"{{"holder":"bulk-{}","ttl_ms":3600000}}"#, lease % 100);
        let held = connection.post(&format!("/v1/leases/bulk-{lease:06}/acquire"), &body).await.expect("an answer");
        assert_eq!(held.status, 200);
    }
}

async fn wait_ready(address: &str) -> Instant {
    let start = Instant::now();
    while start.elapsed() < RESTART_TIMEOUT {
        if let Ok(mut connection) = Connection::open(address).await
            && let Ok(answer) = connection.get("/readyz").await
            && answer.status == 200
        {
            return Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("node at {address} not ready within {RESTART_TIMEOUT:?}");
}
