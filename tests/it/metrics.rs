//! What an operator watches of a node: the metrics of docs/operations.md.
//!
//! A local recorder records on one thread, so each test has one.

use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::cluster::{Cluster, SOON};

/// The least time of a claim in the queue.
const LEAST_WAIT: Duration = Duration::from_millis(200);

/// The value of the series with these labels; 0 if there is no such series.
pub fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
    let is_series = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with([' ', '{'])) && labels.iter().all(|label| line.contains(label))
    };
    let found: Vec<&str> = text.lines().filter(is_series).collect();
    assert!(found.len() <= 1, "{name} has several series: {found:?}");
    found.first().map_or(0.0, |line| line.rsplit(' ').next().expect("a value").parse().expect("a number"))
}

/// Waits until a series has its value: some are set once a second.
async fn until(render: &PrometheusHandle, name: &str, labels: &[(&str, &str)], expected: f64) {
    let reached = async {
        while value(&render.render(), name, labels) != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let reached = tokio::time::timeout(SOON, reached).await;
    assert!(reached.is_ok(), "{name} {labels:?} is never {expected}:\n{}", render.render());
}

/// The series of a node that did one of each.
async fn node_in_use(cluster: &Cluster) -> (reqwest::Response, tokio::task::JoinHandle<()>) {
    let waits = |name: &str, holder: &str| {
        let request = cluster.client.post(cluster.url(&format!("/v1/leases/{name}/acquire")));
        let waiting = request.json(&json!({"holder": holder, "wait_ms": 60000})).send();
        tokio::spawn(async { drop(waiting.await) })
    };
    let queued =
        async |name: &str| while cluster.get(&format!("/v1/leases/{name}/queue")).await.1["total"] != json!(1) {};
    let released = cluster.acquire("released", "a").await;
    cluster.post("/v1/leases/released/release", json!({"holder": "a", "token": released})).await;
    let claim = json!({"holder": "a", "lock_delay_ms": 86_400_000});
    assert_eq!(cluster.post("/v1/leases/revoked/acquire", claim).await.0, 200);
    let revoked = cluster.client.delete(cluster.url("/v1/leases/revoked")).send().await.expect("an answer");
    assert_eq!(revoked.status(), 200);
    assert_eq!(cluster.post("/v1/leases/expired/acquire", json!({"holder": "a", "ttl_ms": 100})).await.0, 200);
    let expired = async { while cluster.get("/v1/leases/expired").await.1["state"] != json!("expired") {} };
    tokio::time::timeout(SOON, expired).await.expect("it expires");
    let handed = cluster.acquire("handed", "a").await;
    let waiting = waits("handed", "b");
    tokio::time::timeout(SOON, queued("handed")).await.expect("it waits");
    tokio::time::sleep(LEAST_WAIT).await;
    cluster.post("/v1/leases/handed/handover", json!({"holder": "a", "token": handed})).await;
    waiting.await.expect("no panic");
    cluster.acquire("held", "a").await;
    let waiting = waits("held", "b");
    tokio::time::timeout(SOON, queued("held")).await.expect("it waits");
    let (status, _) = cluster.post("/v1/leases/held/acquire", json!({"holder": "c", "wait_ms": 60000})).await;
    assert_eq!(status, 429, "max_waits is 1");
    let watch = || cluster.client.get(cluster.url("/v1/watch")).send();
    let stream = watch().await.expect("an answer");
    assert_eq!(watch().await.expect("an answer").status(), 429, "max_watches is 1");
    (stream, waiting)
}

#[tokio::test]
async fn metrics_of_a_node_tell_what_it_did() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let started = Instant::now();
    let cluster = Cluster::start_with(|settings| {
        settings.limits.max_waits = 1;
        settings.limits.max_watches = 1;
    })
    .await;
    let began = Instant::now();
    let (stream, waiting) = node_in_use(&cluster).await;
    for (state, count) in [("held", 2.0), ("waiting", 1.0), ("delayed", 1.0), ("ended", 4.0)] {
        until(&render, "tenure_leases", &[("state", state)], count).await;
    }
    for (change, count) in
        [("granted", 6.0), ("expired", 1.0), ("released", 1.0), ("revoked", 1.0), ("handed_over", 1.0)]
    {
        until(&render, "tenure_lease_transitions_total", &[("change", change)], count).await;
    }
    let (_, status) = cluster.get("/v1/cluster").await;
    let number = |value: &Value| value.as_u64().expect("a number") as f64;
    until(&render, "tenure_raft_leader", &[], 1.0).await;
    until(&render, "tenure_raft_term", &[], number(&status["term"])).await;
    for class in ["urgent", "ordinary"] {
        until(&render, "tenure_commands_waiting", &[("class", class)], 0.0).await;
    }
    let text = render.render();
    let applied = value(&text, "tenure_raft_applied_index", &[]);
    assert!(applied > 0.0 && applied <= number(&cluster.get("/v1/cluster").await.1["applied"]), "{applied}");
    // The time of a new cluster begins at 0.
    let (time, most) = (value(&text, "tenure_cluster_time_seconds", &[]), started.elapsed() + SOON);
    assert!(time > 0.0 && time < most.as_secs_f64(), "{time} s of at most {most:?}");
    assert!(value(&text, "tenure_raft_leader_contact_seconds", &[]) < SOON.as_secs_f64(), "{text}");
    assert_eq!(value(&text, "tenure_http_watches", &[]), 1.0);
    for (reason, count) in [("waits", 1.0), ("watches", 1.0), ("requests", 0.0), ("queue_full", 0.0)] {
        assert_eq!(value(&text, "tenure_refused_total", &[("reason", reason)]), count, "{reason}");
    }
    for (method, route, status, count) in [
        ("POST", "/v1/leases/{name}/acquire", "200", 6.0),
        ("POST", "/v1/leases/{name}/acquire", "429", 1.0),
        ("POST", "/v1/leases/{name}/release", "200", 1.0),
        ("POST", "/v1/leases/{name}/handover", "200", 1.0),
        ("DELETE", "/v1/leases/{name}", "200", 1.0),
        ("GET", "/v1/watch", "200", 1.0),
        ("GET", "/v1/watch", "429", 1.0),
    ] {
        let labels = [("method", method), ("route", route), ("status", status)];
        assert_eq!(value(&text, "tenure_http_requests_total", &labels), count, "{labels:?}:\n{text}");
    }
    let labels = [("method", "POST"), ("route", "/v1/leases/{name}/acquire")];
    assert_eq!(value(&text, "tenure_http_request_seconds_count", &labels), 7.0, "{text}");
    // At most two claims are in progress at a time.
    let (seconds, most) = (value(&text, "tenure_http_request_seconds_sum", &labels), 2 * began.elapsed());
    assert!((LEAST_WAIT.as_secs_f64()..most.as_secs_f64()).contains(&seconds), "{seconds} s of at most {most:?}");
    drop(stream);
    until(&render, "tenure_http_watches", &[], 0.0).await;
    waiting.abort();
    until(&render, "tenure_leases", &[("state", "waiting")], 0.0).await;
    cluster.end().await;
}

#[tokio::test]
async fn head_request_counts_as_a_get_of_its_route() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let cluster = Cluster::start().await;
    let head = cluster.client.head(cluster.url("/livez")).send().await.expect("an answer");
    assert_eq!(head.status(), 200);
    let labels = [("method", "GET"), ("route", "/livez"), ("status", "200")];
    until(&render, "tenure_http_requests_total", &labels, 1.0).await;
    cluster.end().await;
}

#[tokio::test]
async fn metrics_of_a_listener_count_its_connections() {
    const MOST: usize = 8;
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let cluster = Cluster::start_with(|settings| settings.limits.max_connections = MOST).await;
    let own = value(&render.render(), "tenure_http_connections", &[]);
    let mut open = Vec::new();
    while own as usize + open.len() < MOST {
        open.push(TcpStream::connect(cluster.address).await.expect("it listens"));
    }
    until(&render, "tenure_http_connections", &[], MOST as f64).await;
    assert_eq!(value(&render.render(), "tenure_http_connections_refused_total", &[]), 0.0);
    for refused in 1..=3 {
        let _one_more = TcpStream::connect(cluster.address).await.expect("it listens");
        until(&render, "tenure_http_connections_refused_total", &[], f64::from(refused)).await;
    }
    drop(open);
    until(&render, "tenure_http_connections", &[], own).await;
    // This one ends with an error: it is reset in the middle of a request.
    let mut reset = TcpStream::connect(cluster.address).await.expect("it listens");
    reset.write_all(b"GET /livez HTTP/1.1\r\nhost").await.expect("the connection is open");
    until(&render, "tenure_http_connections", &[], own + 1.0).await;
    reset.set_zero_linger().expect("a socket");
    drop(reset);
    until(&render, "tenure_http_connections", &[], own).await;
    cluster.end().await;
}

/// A client can send any method and any path.
#[tokio::test]
async fn requests_without_a_route_share_their_series() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let cluster = Cluster::start_with(|_| {}).await;
    let series = || render.render().lines().filter(|line| line.starts_with("tenure_http_requests_total{")).count();
    let before = series();
    for (method, path, expected) in
        [("PROPFIND", "/v1/leases", 405), ("FOO", "/v2", 404), ("BAR", "/v2", 404), ("GET", "/v3", 404)]
    {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let answer = cluster.client.request(method.clone(), cluster.url(path)).send().await.expect("an answer");
        assert_eq!(answer.status(), expected, "{method} {path}");
    }
    for (status, count) in [("405", 1.0), ("404", 3.0)] {
        let labels = [("method", "none"), ("route", "none"), ("status", status)];
        assert_eq!(value(&render.render(), "tenure_http_requests_total", &labels), count, "{}", render.render());
    }
    assert_eq!(series(), before + 2, "{}", render.render());
    cluster.end().await;
}
