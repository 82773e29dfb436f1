//! The metrics of a process, and the texts that name them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::calm;
use crate::client::{Call, token};
use crate::cluster::{Cluster, NODES, POLL, SOON, place};
use crate::process::{Process, TENURE};
use crate::steady::{steady, strict};
use crate::tls;

steady!(blocked_log_blocks_no_node,);
strict!(
    metrics_of_a_process_name_its_node,
    failed_handshakes_are_counted,
    exported_metrics_have_help_and_documentation,
    dashboard_and_alerts_use_exported_metrics,
);

/// A node exits within this time after a signal, and waits this long for its last log lines.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A metric in the Prometheus text format.
#[derive(Debug, Default)]
struct Metric {
    help: String,
    kind: String,
    samples: usize,
}

/// The metrics of one node, by their names.
async fn metrics_of(cluster: &Cluster, id: u64) -> BTreeMap<String, Metric> {
    let endpoints = cluster.client.endpoints();
    let url = endpoints.split(',').nth(place(id)).expect("three nodes");
    let text = crate::plain_http::get(format!("{url}/metrics")).await.expect("an answer").text().await.expect("text");
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => metrics.entry(name.to_owned()).or_default().help = help.to_owned(),
            ["#", "TYPE", name, kind] => metrics.entry(name.to_owned()).or_default().kind = kind.to_owned(),
            _ => {
                let sample = line.split(['{', ' ']).next().expect("a name");
                metrics.entry(family(&metrics, sample).to_owned()).or_default().samples += 1;
            }
        }
    }
    metrics
}

/// The metric of a sample. A histogram and a summary have several samples with a suffix.
fn family<'n>(metrics: &BTreeMap<String, Metric>, sample: &'n str) -> &'n str {
    let is_split =
        |name: &&str| metrics.get(*name).is_some_and(|metric| metric.kind != "gauge" && metric.kind != "counter");
    let suffixes = ["_bucket", "_sum", "_count"].iter();
    suffixes.filter_map(|suffix| sample.strip_suffix(suffix)).find(is_split).unwrap_or(sample)
}

/// A cluster whose nodes accept TLS, and connections without it. No node runs yet.
async fn with_certificates(settings: &str) -> Cluster {
    let cluster = Cluster::new(&format!("{settings}{}mode = \"allow\"\n", tls::SETTINGS)).await;
    tls::make_certificates(&cluster);
    cluster
}

/// The metrics of a cluster that served each kind of request and changed its leader, by their names.
async fn exported() -> BTreeMap<String, Metric> {
    let backup = "[backup]\ndir = \"backups\"\nevery_ms = 1000\n";
    let mut cluster = with_certificates(&format!("{backup}{}", calm::SETTINGS)).await;
    cluster.launch_all().await;
    let client = &cluster.client;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    for first in [place(leader), place(follower)] {
        let held = token(&client.done(first, &Call::acquire("jobs", "a", 60_000)).await);
        client.done(first, &Call::renew("jobs", "a", held)).await;
        let refused =
            client.call_until_known(first, &Call::acquire("jobs", "b", 60_000)).await.expect_err("it is held");
        assert_eq!(refused["code"], "held");
        let waiting = tokio::spawn({
            let (client, wait) = (client.clone(), Call::wait("jobs", "b", 60_000, SOON));
            async move { client.done(first, &wait).await }
        });
        let began = Instant::now();
        while client.done(first, &Call::get("/v1/leases/jobs/queue")).await["waiters"] == json!([]) {
            assert!(began.elapsed() < SOON, "the claim does not wait");
        }
        client.done(first, &Call::release("jobs", "a", held)).await;
        let next = token(&waiting.await.expect("no panic"));
        for path in
            ["/v1/leases", "/v1/leases/jobs", "/v1/leases/jobs/history", "/v1/leases/jobs/explain", "/v1/cluster"]
        {
            client.done(first, &Call::get(path)).await;
        }
        let url = client.endpoints().split(',').nth(first).map(|url| format!("{url}/v1/watch")).expect("three nodes");
        assert_eq!(crate::plain_http::get(url).await.expect("an answer").status(), 200);
        client.done(first, &Call::release("jobs", "b", next)).await;
        let transfer = Call::post("/v1/cluster/transfer", json!({ "to": follower }));
        client.done(first, &transfer).await;
    }
    assert_eq!(cluster.leader().await, follower, "the leader changed");
    // The nodes set their gauges once per second.
    let began = Instant::now();
    loop {
        let mut metrics = BTreeMap::new();
        for id in NODES {
            metrics.append(&mut metrics_of(&cluster, id).await);
        }
        // The first backup and the gauges of the other members come last.
        let has_all = ["tenure_backup_age_seconds", "tenure_raft_member_lag_entries"].iter();
        if has_all.clone().all(|name| metrics.contains_key(*name)) {
            return metrics;
        }
        assert!(began.elapsed() < SOON, "no {has_all:?} in {metrics:?}");
        tokio::time::sleep(SOON / 100).await;
    }
}

/// A file of the repository.
fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of metrics in a text.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("tenure_") || word.starts_with("process_")).collect()
}

async fn exported_metrics_have_help_and_documentation() {
    let metrics = exported().await;
    for (name, metric) in &metrics {
        assert!(!metric.help.is_empty() && !metric.kind.is_empty() && metric.samples > 0, "{name}: {metric:?}");
        for unit in ["seconds", "bytes"] {
            let has_unit = metric.help.to_lowercase().contains(unit);
            assert!(has_unit || !name.trim_end_matches("_total").ends_with(unit), "{name} has no unit: {metric:?}");
        }
        assert_eq!(metric.kind == "counter", name.ends_with("_total"), "{name}: {metric:?}");
    }
    let page = file("docs/operations.md");
    let section = page.split("\n## ").find_map(|section| section.strip_prefix("Metrics\n")).expect("a section");
    let exported: BTreeSet<&str> = metrics.keys().map(String::as_str).collect();
    let documented = named(section);
    let difference: Vec<_> = exported.symmetric_difference(&documented).collect();
    assert!(difference.is_empty(), "either not exported or not in docs/operations.md: {difference:?}");
}

async fn dashboard_and_alerts_use_exported_metrics() {
    let metrics = exported().await;
    let dashboard: Value = serde_json::from_str(&file("deploy/grafana/tenure.json")).expect("JSON");
    let targets = dashboard["panels"].as_array().expect("panels").iter().map(|panel| &panel["targets"]);
    let queries: Vec<&str> = targets
        .flat_map(|targets| targets.as_array().expect("targets"))
        .map(|target| target["expr"].as_str().expect("a query"))
        .collect();
    assert!(queries.len() >= 20, "{queries:?}");
    let unnamed: Vec<_> = queries.iter().filter(|query| named(query).is_empty()).collect();
    assert!(unnamed.is_empty(), "these queries name no metric: {unnamed:?}");
    let tests = file("deploy/prometheus/tenure.tests.yml");
    let of_starts =
        |query: &&&str| ["tenure_raft_term", "tenure_lease_transitions_total"].iter().any(|name| query.contains(*name));
    for query in queries.iter().filter(of_starts) {
        let query = query.replace("$cluster", "a").replace("$__rate_interval", "1m");
        assert!(tests.contains(&format!("- expr: '{query}'\n")), "promtool does not test the query {query}");
    }
    for path in
        ["deploy/grafana/tenure.json", "deploy/prometheus/tenure.rules.yml", "deploy/prometheus/tenure.tests.yml"]
    {
        let text = file(path);
        let missing: Vec<_> =
            named(&text).into_iter().filter(|name| !metrics.contains_key(family(&metrics, name))).collect();
        assert!(missing.is_empty(), "{path} names metrics that no node exports: {missing:?}");
    }
}

async fn metrics_of_a_process_name_its_node() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    cluster.client.acquire("jobs", "a", 60_000).await;
    let endpoints = cluster.client.endpoints();
    let url = endpoints.split(',').nth(place(2)).expect("three nodes");
    let answer = crate::plain_http::get(format!("{url}/metrics")).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let content_type = answer.headers()["content-type"].to_str().expect("text").to_owned();
    assert!(content_type.starts_with("text/plain; version=0.0.4"), "{content_type}");
    let text = answer.text().await.expect("text");
    let samples: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let nameless = samples.iter().find(|sample| !sample.contains("node=\"2\""));
    assert_eq!(nameless, None, "each sample names its node");
    for histogram in ["tenure_http_request_seconds", "tenure_storage_sync_seconds"] {
        let bucket = format!("{histogram}_bucket{{");
        let largest = |sample: &&&str| sample.starts_with(&bucket) && sample.contains("le=\"60\"");
        assert!(samples.iter().any(|sample| largest(&sample)), "{histogram} has no bucket of 60 s:\n{text}");
    }
}

async fn failed_handshakes_are_counted() {
    let mut cluster = with_certificates("").await;
    // The other nodes do not run: a call that one of them gives up amid a handshake counts as failed, too.
    cluster.launch(1);
    cluster.status(1).await;
    let endpoints = cluster.client.endpoints();
    let url = endpoints.split(',').next().expect("an endpoint");
    let read = || async {
        let answer = crate::plain_http::get(format!("{url}/metrics")).await.expect("an answer");
        answer.text().await.expect("text")
    };
    let failures = |listener: &str, count: u64| {
        format!("tenure_tls_handshakes_failed_total{{node=\"1\",listener=\"{listener}\"}} {count}\n")
    };
    let failed = |text: &str| {
        let lines = text.lines().filter(|line| line.starts_with("tenure_tls_handshakes_failed_total"));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let before = failed(&read().await);
    assert!(before.contains(&failures("http", 0)) && before.contains(&failures("peer", 0)), "{before}");
    let http = url.trim_start_matches("http://").to_owned();
    for (listener, address) in [("http", http), ("peer", cluster.peer_address(1))] {
        // The first byte of a handshake, and then no valid message.
        let mut stream = TcpStream::connect(address).await.expect("the node listens");
        stream.write_all(&[0x16; 64]).await.expect("the connection is open");
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        let began = Instant::now();
        while !read().await.contains(&failures(listener, 1)) {
            assert!(began.elapsed() < SOON, "{listener}: {}", failed(&read().await));
        }
    }
}

/// All nodes write all log lines to pipes that no process reads.
async fn blocked_log_blocks_no_node() {
    let mut cluster = Cluster::new(calm::SETTINGS).await;
    for id in NODES {
        let process = logs_to(&cluster, id, cluster.config(), &cluster.folder().join(format!("log-{id}")));
        cluster.nodes.insert(id, process);
    }
    for id in NODES {
        cluster.ready(id).await;
    }
    for id in NODES {
        let started = Instant::now();
        while sample(&cluster, id, "tenure_log_lines_lost_total").await == 0 {
            assert!(started.elapsed() < 2 * SOON, "node {id} loses no lines");
            cluster.client.acquire("jobs", "a", 60_000).await;
            tokio::time::sleep(POLL).await;
        }
    }
    // The pipe stays full after the exit of the node.
    let pipe = cluster.folder().join("log-1");
    let full = fs::File::options().read(true).write(true).open(&pipe).expect("a pipe");
    let term = cluster.term(cluster.leader().await).await;
    cluster.client.acquire("jobs", "a", 60_000).await;
    for id in NODES {
        assert_eq!(cluster.term(id).await, term, "the leader stays");
        cluster.node(id).signal(Signal::TERM);
    }
    for id in NODES {
        let status = cluster.node(id).exit(SHUTDOWN_TIMEOUT + FLUSH_TIMEOUT).await;
        assert_eq!(status.code(), Some(0), "node {id}");
    }
    // A node that fails exits, although nothing reads the reason. The file of its configuration is no directory.
    let broken = cluster.folder().join("broken.toml");
    let text = fs::read_to_string(cluster.config()).expect("the configuration");
    fs::write(&broken, text.replace("data/1", "cluster.toml")).expect("writable");
    let mut failing = logs_to(&cluster, 1, &broken, &pipe);
    assert_eq!(failing.exit(SOON).await.code(), Some(1));
    drop(full);
}

/// Starts a node that writes all log lines to this pipe.
fn logs_to(cluster: &Cluster, id: u64, config: &Path, pipe: &Path) -> Process {
    let mut command = Command::new("sh");
    // A pipe that is opened for both directions has a reader.
    command.args(["-c", "test -p \"$0\" || mkfifo \"$0\"; exec \"$@\" 2<>\"$0\""]).arg(pipe).arg(TENURE);
    command.args(["serve", "--node", &id.to_string(), "--log", "trace", "--config"]).arg(config);
    Process::start(&format!("node {id}"), command, cluster.folder())
}

/// The sum of a metric's samples.
pub async fn sample(cluster: &Cluster, id: u64, name: &str) -> u64 {
    let endpoints = cluster.client.endpoints();
    let url = endpoints.split(',').nth(place(id)).expect("three nodes");
    let text = crate::plain_http::get(format!("{url}/metrics")).await.expect("an answer").text().await.expect("text");
    let labelled = format!("{name}{{");
    let samples = text.lines().filter(|line| line.starts_with(&labelled)).map(|line| line.rsplit(' ').next());
    samples.map(|count| count.and_then(|count| count.parse::<u64>().ok()).expect("a number")).sum()
}
