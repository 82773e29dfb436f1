//! How long after its ttl a lease that nobody renews is free: seen by a waiter, who gets it in the same entry.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::Connection;
use crate::load::spread;

const TTL: Duration = Duration::from_millis(300);

/// The lag counts from before the acquire was sent: the ttl began a moment after that, so the lag is told a little too
/// large, never too small.
pub async fn run(cluster: &Cluster, times: usize) -> Value {
    let leader = cluster.leader_address().await;
    let mut holder = Connection::open(&leader).await.expect("the leader takes connections");
    let mut waiter = Connection::open(&leader).await.expect("the leader takes connections");
    let mut lags = Vec::new();
    for time in 0..times {
        let path = format!("/v1/leases/expiry-{time}/acquire");
        let body = json!({"holder": "gone", "ttl_ms": TTL.as_millis() as u64}).to_string();
        let asked = Instant::now();
        assert_eq!(holder.post(&path, &body).await.expect("answered").status, 200);
        let body = json!({"holder": "next", "ttl_ms": 1000, "wait_ms": 10_000}).to_string();
        assert_eq!(waiter.post(&path, &body).await.expect("answered").status, 200);
        lags.push(asked.elapsed().saturating_sub(TTL));
    }
    let mut result = json!({"workload": "expiry-lag", "operations": times, "ttl_ms": TTL.as_millis() as u64});
    result.as_object_mut().expect("an object").extend(spread(lags));
    result
}
