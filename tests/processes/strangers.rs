//! Invalid connections to the peer ports: noise, partial handshakes, noise after a handshake, and more connections than
//! the limit. The nodes keep their leader and their memory use, serve clients, and log the source.
//!
//! These tests exclude a peer that speaks the whole protocol and lies. Nodes trust each other, and the network must
//! keep other hosts away (docs/operations.md).

use std::time::{Duration, Instant};

use rand::{Rng, RngExt};
use tenure::storage::codec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::client::{Call, Client};
use crate::cluster::{Cluster, NODES, SOON};
use crate::figures;
use crate::steady::strict;

strict!(peer_port_noise_is_logged_and_harmless,);

/// Long election timeouts: a busy machine must not look like a lost leader.
const WAN: &str = "[raft]\nprofile = \"wan\"\n";
const PROMISE_MS: u64 = 4_000;
/// The number of connections of each kind to each node.
const ROUNDS: u64 = 40;
/// More connections than the listener accepts at once.
const FLOOD: usize = 300;
/// The largest growth of a node.
const GROWTH_BYTES: u64 = 32 << 20;
/// The longest latency of an acquire.
const SERVED_WITHIN: Duration = Duration::from_secs(3);
/// The largest number of log lines about invalid connections.
const MAX_LINES: usize = 50;

async fn peer_port_noise_is_logged_and_harmless() {
    let mut cluster = Cluster::start(WAN).await;
    let leader = cluster.leader().await;
    let term = cluster.term(leader).await;
    let before = NODES.map(|id| figures::memory(cluster.node(id).id()));
    let served = tokio::spawn(acquire_repeatedly(cluster.client.clone()));

    let mut attacks = JoinSet::new();
    for id in NODES {
        let address = cluster.peer_address(id);
        for round in 0..ROUNDS {
            for bytes in noise(id, round) {
                let address = address.clone();
                attacks.spawn(async move { send(&address, &bytes).await });
            }
        }
    }
    let sent = attacks.len();
    let answered = attacks.join_all().await.into_iter().filter(|answered| *answered).count();
    eprintln!("{sent} attacks, {answered} with an answer");
    // A node answers a refused handshake with the reason.
    assert!(answered as u64 >= 2 * ROUNDS && answered < sent, "{answered} of {sent}");
    fill_connection_limit(&cluster).await;

    served.abort();
    let ended = served.await.expect_err("the task runs until it is aborted");
    assert!(ended.is_cancelled(), "{ended}");
    assert_eq!((cluster.leader().await, cluster.term(leader).await), (leader, term), "the leader or its term changed");
    for (id, before) in NODES.into_iter().zip(before) {
        let node = cluster.node(id);
        assert!(node.is_running(), "node {id} exited");
        let grown = figures::memory(node.id()).saturating_sub(before);
        let said = node.said();
        let lines = said.lines().filter(|line| line.contains("refused a peer connection")).count();
        eprintln!("node {id} has grown by {} KiB and said {lines} lines", grown >> 10);
        assert!(grown <= GROWTH_BYTES, "node {id} has grown by {grown} bytes");
        assert!(!said.contains("panicked"), "{said}");
        for what in ["reason=from 127.0.0.1: ", "belongs to cluster", "joined with another disk", "are open"] {
            assert!(said.contains(what), "the log of node {id} does not contain {what:?}");
        }
        assert!(
            (4..=MAX_LINES).contains(&lines),
            "{lines} lines about refused peer connections: expected 4 to {MAX_LINES}"
        );
    }
    // The nodes still accept members: a restarted node becomes ready.
    let follower = cluster.follower().await;
    cluster.kill(follower);
    cluster.launch(follower);
    cluster.ready(follower).await;
}

/// Acquires one name after the other. Each answer must come in time.
async fn acquire_repeatedly(client: Client) {
    for number in 0.. {
        let began = Instant::now();
        client.acquire(&format!("n{number}"), "honest", 60_000).await;
        let took = began.elapsed();
        assert!(took < SERVED_WITHIN, "a claim took {took:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Opens more connections than the limit and keeps them until the node closes them. Afterwards the node must serve.
async fn fill_connection_limit(cluster: &Cluster) {
    for id in NODES {
        let address = cluster.peer_address(id);
        let mut held = Vec::new();
        for _ in 0..FLOOD {
            held.push(TcpStream::connect(&address).await.expect("the node listens"));
        }
        let opened = Instant::now();
        for mut stream in held {
            let mut byte = [0];
            let ended = tokio::time::timeout(SOON, stream.read(&mut byte))
                .await
                .expect("the node closes the connection in time");
            assert!(!matches!(ended, Ok(1..)), "the node answered without a handshake");
        }
        assert!(opened.elapsed() < SOON, "the connections were open for {:?}", opened.elapsed());
        let call = Call::get("/livez");
        cluster.client.done(id as usize - 1, &call).await;
    }
}

/// Sends bytes. Returns whether an answer came before the connection was closed or the timeout ended.
async fn send(address: &str, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(address).await.expect("the node listens");
    // The node may close the connection before it has read all bytes.
    let _ = stream.write_all(bytes).await;
    let mut answer = [0; 64];
    let read = tokio::time::timeout(Duration::from_secs(3), stream.read(&mut answer)).await;
    matches!(read, Ok(Ok(1..)))
}

/// The byte sequences to send to a peer port.
fn noise(to: u64, round: u64) -> Vec<Vec<u8>> {
    let random = |most: usize| {
        let mut bytes = vec![0; rand::rng().random_range(1..most)];
        rand::rng().fill_bytes(&mut bytes);
        bytes
    };
    let stranger = hello("test", 1_000 + round, PROMISE_MS, to);
    let greeted = |rest: Vec<u8>| [stranger.clone(), rest].concat();
    let mut newer = stranger.clone();
    newer[7] = 3;
    let mut huge = stranger[..12].to_vec();
    huge[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    // No request kind has a number as high as the first byte.
    let request = frame(1, &[&[200][..], &random(2_000)].concat());
    vec![
        random(4_096),
        b"GET /v1/leases HTTP/1.1\r\nhost: t\r\n\r\n".to_vec(),
        stranger[..rand::rng().random_range(1..stranger.len())].to_vec(),
        newer,
        huge,
        hello("another", 1, PROMISE_MS, to),
        hello("test", 1_000, PROMISE_MS, to + 1),
        hello("test", if to == 1 { 2 } else { 1 }, PROMISE_MS, to),
        hello("test", 1_000, 1, to),
        greeted(random(4_096)),
        greeted([&u32::MAX.to_be_bytes()[..], &[1]].concat()),
        greeted([&(16u32 << 20).to_be_bytes()[..], &[1], &[0; 8], &[7; 4_096]].concat()),
        greeted(frame(2, b"an answer to nothing")),
        greeted(frame(9, b"of no kind")),
        greeted(frame(3, b"")),
        greeted(request[..request.len() / 2].to_vec()),
        greeted(request.repeat(50)),
    ]
}

/// A handshake for the lane of client requests.
fn hello(cluster: &str, from: u64, vote_lease_ms: u64, to: u64) -> Vec<u8> {
    let lane: u8 = 3;
    let refused: Option<u8> = None;
    let body = codec::encode(&(cluster, from, 7u64, vote_lease_ms, to, lane, refused));
    let mut bytes = b"TENUREp\x02".to_vec();
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (1 + 8 + body.len()) as u32;
    [&length.to_be_bytes()[..], &[kind], &7u64.to_be_bytes(), body].concat()
}
