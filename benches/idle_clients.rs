//! Many idle connections: clients that watch, and clients that wait for a lease.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::http::{Connection, token};
use crate::percentiles::{percentiles, round};

/// Number of connections and acquires in flight during the setup.
const SETUP_CONCURRENCY: usize = 64;
/// Measured time without requests.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Number of measured acquires.
const CLAIMS: usize = 200;
/// Number of measured events.
const EVENTS: usize = 10;
/// Number of measured releases.
const RELEASES: usize = 200;
/// Bound for each wait of the benchmark.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures the cost of idle clients for the cluster.
struct CostMeter {
    before: Vec<u64>,
    began: Instant,
}

impl CostMeter {
    fn begin(cluster: &Cluster) -> CostMeter {
        CostMeter { before: cluster.memory(), began: Instant::now() }
    }

    /// Measures when all clients are connected.
    async fn measure(self, cluster: &Cluster, clients: usize) -> Value {
        let took = self.began.elapsed();
        let cpu = cluster.cpu();
        tokio::time::sleep(IDLE_TIME).await;
        let cpu = (cluster.cpu() - cpu).as_secs_f64() / IDLE_TIME.as_secs_f64();
        let after = cluster.memory();
        let grown: u64 = after.iter().zip(&self.before).map(|(after, before)| after.saturating_sub(*before)).sum();
        let mib = |bytes: &[u64]| bytes.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>();
        json!({
            "connected_in_ms": took.as_millis() as u64,
            "memory_mib_before": mib(&self.before),
            "memory_mib": mib(&after),
            "memory_bytes_each": grown / clients as u64,
            "idle_percent_of_a_core_all_nodes": round(cpu * 100.0),
        })
    }
}

/// Measures `count` watches at the leader.
pub async fn watchers(cluster: &Cluster, count: usize) -> Value {
    let leader = cluster.leader_address().await;
    let before = acquire_times(&leader, "alone").await;
    let cost = CostMeter::begin(cluster);
    let (seen, mut arrivals) = mpsc::unbounded_channel();
    let mut watching = JoinSet::new();
    let mut opened = futures_util::stream::iter(0..count)
        .map(|_| async {
            let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
            connection.send("GET /v1/watch?prefix=seen-").await.expect("the request is sent");
            connection.read_until(b"id: ").await.expect("the watch starts");
            connection
        })
        .buffer_unordered(SETUP_CONCURRENCY);
    while let Some(mut connection) = opened.next().await {
        let seen = seen.clone();
        watching.spawn(async move {
            while connection.read_until(b"event: granted").await.is_ok() {
                // The receiver is dropped at the end of the benchmark.
                let _ = seen.send(Instant::now());
            }
        });
    }
    let cost = cost.measure(cluster, count).await;
    let (mut each, mut last) = (Vec::new(), Vec::new());
    let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
    for event in 0..EVENTS {
        let sent = Instant::now();
        let body = r#"{"holder":"seen","ttl_ms":600000}"#;
        let held = connection.post(&format!("/v1/leases/seen-{event}/acquire"), body).await.expect("an answer");
        assert_eq!(held.status, 200);
        let mut latest = sent;
        for _ in 0..count {
            let arrived =
                tokio::time::timeout(TIMEOUT, arrivals.recv()).await.expect("each watch receives the event in time");
            latest = latest.max(arrived.expect("the watch tasks run"));
            each.push(latest - sent);
        }
        last.push(latest - sent);
    }
    let during = acquire_times(&leader, "beside").await;
    let began = Instant::now();
    watching.shutdown().await;
    wait_for_metric(&leader, "tenure_http_watches{", 0).await;
    json!({
        "workload": "watchers", "watchers": count, "cost": cost,
        "claim_to_event": percentiles(each), "claim_to_last_event": percentiles(last),
        "claims_before": before, "claims_beside": during, "ended_in_ms": began.elapsed().as_millis() as u64,
    })
}

/// Measures `count` waiters for `names` leases, distributed over the nodes.
pub async fn waiters(cluster: &Cluster, count: usize, names: usize) -> Value {
    let (leader, nodes) = (cluster.leader_address().await, cluster.addresses());
    let prefix = format!("idle-{names}");
    let before = acquire_times(&leader, "alone").await;
    let mut holders = futures_util::stream::iter(0..names)
        .map(|number| {
            let (leader, name) = (&leader, format!("{prefix}-{number}"));
            async move {
                let mut connection = Connection::open(leader).await.expect("the leader accepts connections");
                let body = r#"{"holder":"first","ttl_ms":600000}"#;
                let held = connection.post(&format!("/v1/leases/{name}/acquire"), body).await.expect("an answer");
                assert_eq!(held.status, 200, "{}", String::from_utf8_lossy(&held.body));
                (name, "first".to_owned(), token(&held))
            }
        })
        .buffered(SETUP_CONCURRENCY)
        .collect::<Vec<_>>()
        .await;
    let cost = CostMeter::begin(cluster);
    let (granted, mut grants) = mpsc::unbounded_channel();
    let mut waiting = JoinSet::new();
    let mut opened = futures_util::stream::iter(0..count)
        .map(|number| {
            let (node, name) = (&nodes[number % nodes.len()], format!("{prefix}-{}", number % names));
            async move {
                let mut connection = Connection::open(node).await.expect("the node accepts connections");
                let holder = format!("w{number}");
                let body = format!(r#"{{"holder":"{holder}","ttl_ms":600000,"wait_ms":600000}}"#);
                connection.send_body(&format!("/v1/leases/{name}/acquire"), &body).await.expect("the request is sent");
                (connection, name, holder)
            }
        })
        .buffer_unordered(SETUP_CONCURRENCY);
    while let Some((mut connection, name, holder)) = opened.next().await {
        let granted = granted.clone();
        waiting.spawn(async move {
            let answer = connection.answer().await.expect("the waiter receives an answer");
            let arrived = Instant::now();
            assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
            // The receiver is dropped at the end of the benchmark.
            let _ = granted.send((arrived, (name, holder, token(&answer))));
        });
    }
    wait_for_metric(&leader, "tenure_leases{", count as u64).await;
    let cost = cost.measure(cluster, count).await;
    let mut delays = Vec::new();
    let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
    for release in 0..RELEASES.min(count) {
        let index = release % holders.len();
        let (name, holder, token) = &holders[index];
        let sent = Instant::now();
        let body = format!(r#"{{"holder":"{holder}","token":"{token}"}}"#);
        let released = connection.post(&format!("/v1/leases/{name}/release"), &body).await.expect("an answer");
        assert_eq!(released.status, 200);
        let grant =
            tokio::time::timeout(TIMEOUT, grants.recv()).await.expect("the next waiter is granted the lease in time");
        let (arrived, next) = grant.expect("the waiter tasks run");
        delays.push(arrived - sent);
        holders[index] = next;
    }
    let during = acquire_times(&leader, "beside").await;
    let began = Instant::now();
    waiting.shutdown().await;
    wait_for_metric(&leader, "tenure_leases{", 0).await;
    json!({
        "workload": "waiters", "waiters": count, "names": names, "cost": cost, "release_to_grant": percentiles(delays),
        "claims_before": before, "claims_beside": during, "ended_in_ms": began.elapsed().as_millis() as u64,
    })
}

/// Times of sequential acquires of one more client.
async fn acquire_times(node: &str, name: &str) -> Value {
    let mut connection = Connection::open(node).await.expect("the node accepts connections");
    let mut times = Vec::new();
    for claim in 0..CLAIMS {
        let sent = Instant::now();
        let body = r#"{"holder":"another","ttl_ms":100}"#;
        let held = connection.post(&format!("/v1/leases/{name}-{claim}/acquire"), body).await.expect("an answer");
        assert_eq!(held.status, 200);
        times.push(sent.elapsed());
    }
    json!(percentiles(times))
}

/// Waits until a metric of the node has this value.
async fn wait_for_metric(node: &str, metric: &str, count: u64) {
    let began = Instant::now();
    let mut connection = Connection::open(node).await.expect("the node accepts connections");
    loop {
        let metrics = connection.get("/metrics").await.expect("an answer");
        let metrics = String::from_utf8(metrics.body).expect("the metrics are text");
        let matches = |line: &&str| {
            line.starts_with(metric) && (metric.contains("watches") || line.contains(r#"state="waiting""#))
        };
        let now = metrics.lines().find(matches).and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        if now == Some(count as f64) {
            return;
        }
        assert!(began.elapsed() < TIMEOUT, "{metric} is {now:?} after {TIMEOUT:?}: expected {count}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
