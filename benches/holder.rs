//! The cost of queries of a held lease, and of keeping many leases.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure::client::{LeaseManager, LeaseOptions, Wait};

use crate::cluster::Cluster;

/// Calls per round, so that the cost of a clock reading is negligible.
const CALLS_PER_ROUND: u32 = 100_000;
const ROUNDS: usize = 50;
const TTL: Duration = Duration::from_secs(3);

/// Measures `is_held()`, `remaining()` and `token()` while the manager keeps the lease, in nanoseconds per call.
pub async fn questions(cluster: &Cluster) -> Value {
    let manager = manager(cluster);
    let lease = manager.lease_with("bench-questions", LeaseOptions::new().ttl(TTL)).expect("the name is valid");
    lease.acquire(Wait::No).await.expect("the lease is free");
    let is_held = measure(|| assert!(black_box(&lease).is_held()));
    let remaining = measure(|| assert!(black_box(&lease).remaining().is_some()));
    let token = measure(|| assert!(black_box(&lease).token().is_some()));
    manager.shutdown().await;
    json!({"workload": "holder-questions", "operations": u64::from(CALLS_PER_ROUND) * ROUNDS as u64,
        "is_held_ns": is_held, "remaining_ns": remaining, "token_ns": token})
}

/// The median round and the slowest round.
fn measure(mut call: impl FnMut()) -> Value {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            (0..CALLS_PER_ROUND).for_each(|_| call());
            begun.elapsed().as_nanos() as f64 / f64::from(CALLS_PER_ROUND)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    json!({"median": rounds[ROUNDS / 2], "max": rounds[ROUNDS - 1]})
}

/// Keeps many leases with one manager for a time, and measures the smallest time left.
pub async fn keeping(cluster: &Cluster, leases: usize, time: Duration) -> Value {
    let manager = manager(cluster);
    let names = (0..leases).map(|n| format!("bench-kept-{n}"));
    let kept: Vec<_> = names
        .map(|name| {
            manager.lease_with(&name, LeaseOptions::new().ttl(Duration::from_secs(10))).expect("the name is valid")
        })
        .collect();
    let begun = Instant::now();
    for chunk in kept.chunks(64) {
        let acquired = futures_util::future::join_all(chunk.iter().map(|lease| lease.acquire(Wait::No))).await;
        assert!(acquired.iter().all(Result::is_ok), "all leases are free");
    }
    let acquired = begun.elapsed();
    let (begun, mut least) = (Instant::now(), Duration::MAX);
    while begun.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let left = kept.iter().filter_map(|lease| lease.remaining()).min().unwrap_or_default();
        least = least.min(left);
    }
    let held = kept.iter().filter(|lease| lease.is_held()).count();
    manager.shutdown().await;
    json!({"workload": "holder-keeping", "leases": leases, "ttl_ms": 10_000, "held_at_the_end": held,
        "acquired_in_ms": acquired.as_millis() as u64, "least_left_ms": least.as_millis() as u64})
}

fn manager(cluster: &Cluster) -> LeaseManager {
    LeaseManager::connect_lazy(&cluster.addresses().join(",")).expect("the addresses are valid")
}
