//! Tests of SIGTERM.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::calm;
use crate::client::Call;
use crate::cluster::{Cluster, NODES, SOON, place};
use crate::figures;
use crate::prober::Prober;
use crate::steady::steady;

steady!(
    sigterm_transfers_leadership_and_ends_in_time,
    sigterm_to_all_nodes_ends_all_in_time,
    second_sigterm_ends_the_process_at_once,
    incomplete_request_delays_the_end_until_the_limit,
    sigterm_ends_a_waiting_request_and_transfers_leadership,
);

/// The shutdown limit in `tenure serve --help`.
const STOPS_WITHIN: Duration = Duration::from_secs(10);
/// Below the shortest election timeout. Only a leadership transfer can meet it.
const LONGEST_GAP: Duration = Duration::from_millis(290);

async fn sigterm_transfers_leadership_and_ends_in_time() {
    let mut cluster = Cluster::start(calm::SETTINGS).await;
    let client = cluster.client.clone();
    let token = client.acquire("jobs", "a", 60_000).await;
    let prober = Prober::start(client.clone()).await;
    let (mut gaps, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let leader = cluster.leader().await;
        let asked = Instant::now();
        cluster.node(leader).signal(Signal::TERM);
        let status = cluster.node(leader).exit(STOPS_WITHIN).await;
        ends.push(asked.elapsed());
        let said = cluster.node(leader).said();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("leadership transferred"), "{said}");
        assert_ne!(cluster.leader().await, leader, "another node leads");
        prober.serves(&client).await;
        client.done(0, &Call::renew("jobs", "a", token)).await;
        gaps.push(prober.longest_pause(asked));
        cluster.launch(leader);
        cluster.ready(leader).await;
        cluster.caught_up(leader).await;
    }
    figures::print("from SIGTERM to the end of the process", &mut ends);
    figures::print("gap in service at a planned end of the leader", &mut gaps);
    assert!(figures::percentile(&gaps, 50) < LONGEST_GAP, "{gaps:?}");
}

async fn sigterm_ends_a_waiting_request_and_transfers_leadership() {
    let mut cluster = Cluster::start(calm::SETTINGS).await;
    let client = cluster.client.clone();
    client.acquire("jobs", "a", 60_000).await;
    let leader = cluster.leader().await;
    let waits = client.clone();
    let waiting = tokio::spawn(async move {
        waits.attempt(place(leader), &Call::wait("jobs", "b", 60_000, Duration::from_secs(60))).await
    });
    let queue = Call::get("/v1/leases/jobs/queue");
    while client.done(0, &queue).await["waiters"].as_array().is_none_or(|waiters| waiters.is_empty()) {}
    let asked = Instant::now();
    cluster.node(leader).signal(Signal::TERM);
    let status = cluster.node(leader).exit(STOPS_WITHIN + SOON).await;
    let (took, said) = (asked.elapsed(), cluster.node(leader).said());
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(took < STOPS_WITHIN / 2 && said.contains("leadership transferred"), "after {took:?}: {said}");
    waiting.await.expect("no panic");
}

async fn sigterm_to_all_nodes_ends_all_in_time() {
    let mut cluster = Cluster::start("").await;
    let token = cluster.client.acquire("jobs", "a", 600_000).await;
    for id in NODES {
        cluster.node(id).signal(Signal::TERM);
    }
    for id in NODES {
        let status = cluster.node(id).exit(STOPS_WITHIN).await;
        assert_eq!(status.code(), Some(0), "node {id}");
    }
    cluster.launch_all().await;
    cluster.client.done(0, &Call::renew("jobs", "a", token)).await;
}

/// A request whose body is not complete delays the end of the first shutdown until its limit.
async fn second_sigterm_ends_the_process_at_once() {
    let mut cluster = Cluster::start("").await;
    let stops = cluster.follower().await;
    let endpoints = cluster.client.endpoints();
    let url = endpoints.split(',').nth(place(stops)).expect("three nodes");
    let mut request = TcpStream::connect(url.trim_start_matches("http://")).await.expect("the node listens");
    let head = "POST /v1/leases/jobs/acquire HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n";
    let head = format!("{head}content-length: 9\r\nexpect: 100-continue\r\n\r\n");
    request.write_all(head.as_bytes()).await.expect("the node reads");
    // The node sends this when it begins to read the body.
    let mut start = [0; 12];
    let read = tokio::time::timeout(SOON, request.read_exact(&mut start)).await.expect("the node answers");
    assert_eq!((read.is_ok(), &start), (true, b"HTTP/1.1 100"));
    let process = cluster.node(stops);
    process.signal(Signal::TERM);
    let began = Instant::now();
    while !process.said().contains("shutting down") {
        assert!(began.elapsed() < SOON, "{}", process.said());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    process.signal(Signal::TERM);
    let said = process.failure(STOPS_WITHIN / 4).await;
    assert!(said.contains("second SIGTERM: exiting at once"), "{said}");
}

/// A node waits for the rest of a request head for a minute.
async fn incomplete_request_delays_the_end_until_the_limit() {
    let mut cluster = Cluster::start("").await;
    let stops = cluster.follower().await;
    let endpoints = cluster.client.endpoints();
    let url = endpoints.split(',').nth(place(stops)).expect("three nodes");
    let mut request = TcpStream::connect(url.trim_start_matches("http://")).await.expect("the node listens");
    request.write_all(b"GET /livez HTTP/1.1\r\n").await.expect("the connection is open");
    let began = Instant::now();
    while !is_read(&request) {
        assert!(began.elapsed() < SOON, "the node does not read");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let process = cluster.node(stops);
    let asked = Instant::now();
    process.signal(Signal::TERM);
    let status = process.exit(STOPS_WITHIN + SOON / 2).await;
    let (took, said) = (asked.elapsed(), process.said());
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(took >= STOPS_WITHIN, "after {took:?}: {said}");
    assert!(said.contains("the shutdown is not complete after 10s"), "{said}");
}

/// Whether the other end of a connection on this machine has read all bytes.
fn is_read(stream: &TcpStream) -> bool {
    let port = |address: std::io::Result<std::net::SocketAddr>| address.expect("connected").port();
    let [client, node] = [stream.local_addr(), stream.peer_addr()].map(|address| format!(":{:04X}", port(address)));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    table.lines().any(|line| {
        // The local and the remote address, the state, and the bytes in the queues.
        let fields: Vec<&str> = line.split_whitespace().skip(1).take(4).collect();
        let [local, remote, _, queues] = fields[..] else { return false };
        local.ends_with(&node) && remote.ends_with(&client) && queues.ends_with(":00000000")
    })
}
