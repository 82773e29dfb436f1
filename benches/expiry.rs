//! The delay between the ttl of an abandoned lease and its grant to a waiter, which is part of the same log entry.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::Connection;
use crate::percentiles::percentiles;

const TTL: Duration = Duration::from_millis(300);

/// The delay counts from before the acquire is sent. The ttl starts slightly later, so the result is never too small.
pub async fn run(cluster: &Cluster, times: usize) -> Value {
    let leader = cluster.leader_address().await;
    let mut holder = Connection::open(&leader).await.expect("the leader accepts connections");
    let mut waiter = Connection::open(&leader).await.expect("the leader accepts connections");
    let mut delays = Vec::new();
    for time in 0..times {
        let path = format!("/v1/leases/expiry-{time}/acquire");
        let body = json!({"holder": "gone", "ttl_ms": TTL.as_millis() as u64}).to_string();
        let sent = Instant::now();
        assert_eq!(holder.post(&path, &body).await.expect("an answer").status, 200);
        let body = json!({"holder": "next", "ttl_ms": 1000, "wait_ms": 10_000}).to_string();
        assert_eq!(waiter.post(&path, &body).await.expect("an answer").status, 200);
        delays.push(sent.elapsed().saturating_sub(TTL));
    }
    let mut result = json!({"workload": "expiry-lag", "operations": times, "ttl_ms": TTL.as_millis() as u64});
    result.as_object_mut().expect("a JSON object").extend(percentiles(delays));
    result
}
