//! Many clients that are connected and do nothing: those who watch, and those who wait for a lease.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::http::{Connection, token};
use crate::load::{round, spread};

/// Connections that are opened, and claims that are made, side by side.
const AT_ONCE: usize = 64;
/// How long the idle crowd is looked at.
const IDLE: Duration = Duration::from_secs(10);
/// Claims that are timed while the crowd is there.
const CLAIMS: usize = 200;
/// Events, and releases, that are timed.
const EVENTS: usize = 10;
const RELEASES: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);

/// What a crowd costs the cluster while it does nothing.
struct Cost {
    before: Vec<u64>,
    began: Instant,
}

impl Cost {
    fn begin(cluster: &Cluster) -> Cost {
        Cost { before: cluster.memory(), began: Instant::now() }
    }

    /// Once all of a crowd are there.
    async fn tell(self, cluster: &Cluster, crowd: usize) -> Value {
        let took = self.began.elapsed();
        let cpu = cluster.cpu();
        tokio::time::sleep(IDLE).await;
        let cpu = (cluster.cpu() - cpu).as_secs_f64() / IDLE.as_secs_f64();
        let after = cluster.memory();
        let grown: u64 = after.iter().zip(&self.before).map(|(after, before)| after.saturating_sub(*before)).sum();
        let mib = |bytes: &[u64]| bytes.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>();
        json!({
            "connected_in_ms": took.as_millis() as u64,
            "memory_mib_before": mib(&self.before),
            "memory_mib": mib(&after),
            "memory_bytes_each": grown / crowd as u64,
            "idle_percent_of_a_core_all_nodes": round(cpu * 100.0),
        })
    }
}

/// So many watch one node, the leader.
pub async fn watchers(cluster: &Cluster, count: usize) -> Value {
    let leader = cluster.leader_address().await;
    let alone = claims(&leader, "alone").await;
    let cost = Cost::begin(cluster);
    let (seen, mut arrivals) = mpsc::unbounded_channel();
    let mut watching = JoinSet::new();
    let mut opened = futures_util::stream::iter(0..count)
        .map(|_| async {
            let mut connection = Connection::open(&leader).await.expect("the leader takes connections");
            connection.send("GET /v1/watch?prefix=seen-").await.expect("it is sent");
            connection.read_until(b"id: ").await.expect("the watch has begun");
            connection
        })
        .buffer_unordered(AT_ONCE);
    while let Some(mut connection) = opened.next().await {
        let seen = seen.clone();
        watching.spawn(async move {
            while connection.read_until(b"event: granted").await.is_ok() {
                // Nobody asks any more at the end.
                let _ = seen.send(Instant::now());
            }
        });
    }
    let cost = cost.tell(cluster, count).await;
    let (mut each, mut last) = (Vec::new(), Vec::new());
    let mut connection = Connection::open(&leader).await.expect("the leader takes connections");
    for event in 0..EVENTS {
        let sent = Instant::now();
        let body = r#"{"holder":"seen","ttl_ms":600000}"#;
        let held = connection.post(&format!("/v1/leases/seen-{event}/acquire"), body).await.expect("answered");
        assert_eq!(held.status, 200);
        let mut latest = sent;
        for _ in 0..count {
            let arrived = tokio::time::timeout(PATIENCE, arrivals.recv()).await.expect("everybody sees it");
            latest = latest.max(arrived.expect("the watchers are there"));
            each.push(latest - sent);
        }
        last.push(latest - sent);
    }
    let beside = claims(&leader, "beside").await;
    let began = Instant::now();
    watching.shutdown().await;
    until(&leader, "tenure_http_watches{", 0).await;
    json!({
        "workload": "watchers", "watchers": count, "cost": cost,
        "claim_to_event": spread(each), "claim_to_last_event": spread(last),
        "claims_before": alone, "claims_beside": beside, "ended_in_ms": began.elapsed().as_millis() as u64,
    })
}

/// So many wait for so many names, spread over the nodes.
pub async fn waiters(cluster: &Cluster, count: usize, names: usize) -> Value {
    let (leader, nodes) = (cluster.leader_address().await, cluster.addresses());
    let prefix = format!("crowd-{names}");
    let alone = claims(&leader, "alone").await;
    let mut holders = futures_util::stream::iter(0..names)
        .map(|number| {
            let (leader, name) = (&leader, format!("{prefix}-{number}"));
            async move {
                let mut connection = Connection::open(leader).await.expect("the leader takes connections");
                let body = r#"{"holder":"first","ttl_ms":600000}"#;
                let held = connection.post(&format!("/v1/leases/{name}/acquire"), body).await.expect("answered");
                assert_eq!(held.status, 200, "{}", String::from_utf8_lossy(&held.body));
                (name, "first".to_owned(), token(&held))
            }
        })
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let cost = Cost::begin(cluster);
    let (granted, mut grants) = mpsc::unbounded_channel();
    let mut waiting = JoinSet::new();
    let mut opened = futures_util::stream::iter(0..count)
        .map(|number| {
            let (node, name) = (&nodes[number % nodes.len()], format!("{prefix}-{}", number % names));
            async move {
                let mut connection = Connection::open(node).await.expect("a node takes connections");
                let holder = format!("w{number}");
                let body = format!(r#"{{"holder":"{holder}","ttl_ms":600000,"wait_ms":600000}}"#);
                connection.send_body(&format!("/v1/leases/{name}/acquire"), &body).await.expect("it is sent");
                (connection, name, holder)
            }
        })
        .buffer_unordered(AT_ONCE);
    while let Some((mut connection, name, holder)) = opened.next().await {
        let granted = granted.clone();
        waiting.spawn(async move {
            let answer = connection.answer().await.expect("a waiter is answered");
            let arrived = Instant::now();
            assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
            // Nobody asks any more at the end.
            let _ = granted.send((arrived, (name, holder, token(&answer))));
        });
    }
    until(&leader, "tenure_leases{", count as u64).await;
    let cost = cost.tell(cluster, count).await;
    let mut lags = Vec::new();
    let mut connection = Connection::open(&leader).await.expect("the leader takes connections");
    for release in 0..RELEASES.min(count) {
        let place = release % holders.len();
        let (name, holder, token) = &holders[place];
        let sent = Instant::now();
        let body = format!(r#"{{"holder":"{holder}","token":"{token}"}}"#);
        let released = connection.post(&format!("/v1/leases/{name}/release"), &body).await.expect("answered");
        assert_eq!(released.status, 200);
        let grant = tokio::time::timeout(PATIENCE, grants.recv()).await.expect("the next one gets it");
        let (arrived, next) = grant.expect("the waiters are there");
        lags.push(arrived - sent);
        holders[place] = next;
    }
    let beside = claims(&leader, "beside").await;
    let began = Instant::now();
    waiting.shutdown().await;
    until(&leader, "tenure_leases{", 0).await;
    json!({
        "workload": "waiters", "waiters": count, "names": names, "cost": cost, "release_to_grant": spread(lags),
        "claims_before": alone, "claims_beside": beside, "ended_in_ms": began.elapsed().as_millis() as u64,
    })
}

/// Times of single claims of a client that is there too.
async fn claims(node: &str, name: &str) -> Value {
    let mut connection = Connection::open(node).await.expect("a node takes connections");
    let mut times = Vec::new();
    for claim in 0..CLAIMS {
        let sent = Instant::now();
        let body = r#"{"holder":"another","ttl_ms":100}"#;
        let held = connection.post(&format!("/v1/leases/{name}-{claim}/acquire"), body).await.expect("answered");
        assert_eq!(held.status, 200);
        times.push(sent.elapsed());
    }
    json!(spread(times))
}

/// Waits until the node counts so many of a crowd.
async fn until(node: &str, metric: &str, count: u64) {
    let began = Instant::now();
    let mut connection = Connection::open(node).await.expect("a node takes connections");
    loop {
        let metrics = connection.get("/metrics").await.expect("answered");
        let metrics = String::from_utf8(metrics.body).expect("it is text");
        let is_it = |line: &&str| {
            line.starts_with(metric) && (metric.contains("watches") || line.contains(r#"state="waiting""#))
        };
        let now = metrics.lines().find(is_it).and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        if now == Some(count as f64) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{now:?} after {PATIENCE:?}, not {count}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
