//! Many clients that send a part of a large renewal and then stop.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::calm;
use crate::cluster::Cluster;
use crate::figures;
use crate::flood::{Connection, token};
use crate::steady::strict;

strict!(half_sent_renewals_stay_within_the_memory_budget,);

const SENDERS: usize = 600;
/// The announced length of a body, and the bytes that are sent.
const ANNOUNCED: usize = 2 << 20;
const SENT: usize = 1_200_000;
/// The node's memory budget for bodies, and the allowance per connection for sockets and the allocator.
const BUDGET: u64 = 64 << 20;
const EACH: u64 = 128 << 10;
/// How long the test observes the memory after the last byte. A body may take 10 s.
const LOOKED: Duration = Duration::from_secs(3);
const HONEST: usize = 20;

/// Opens a connection and sends as much of the body as the node accepts.
async fn send_half(node: &str) -> TcpStream {
    let mut stream = TcpStream::connect(node).await.expect("the node accepts connections");
    let head = format!(
        "POST /v1/renew HTTP/1.1\r\nhost: n\r\ncontent-type: application/json\r\ncontent-length: {ANNOUNCED}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("the node accepts the head");
    // A node that refuses the body closes the connection.
    let _ = stream.write_all(&vec![b' '; SENT]).await;
    stream
}

async fn half_sent_renewals_stay_within_the_memory_budget() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let node = cluster.client.endpoints().split(',').next().expect("a node").replace("http://", "");
    let mut connection = Connection::open(&node).await.expect("the node accepts connections");
    let held = connection.post("leases/held/acquire", r#"{"holder":"h","ttl_ms":60000}"#).await.expect("an answer");
    let renewal = format!(r#"{{"holder":"h","token":"{}"}}"#, token(&held));
    let memory = || figures::memory(cluster.nodes[&1].id());
    let before = memory();

    let senders = futures_util::stream::iter((0..SENDERS).map(|_| send_half(&node)));
    let half_sent: Vec<TcpStream> = senders.buffer_unordered(SENDERS).collect().await;
    let sent = Instant::now();
    let (mut most, mut statuses) = (memory(), Vec::new());
    while sent.elapsed() < LOOKED || (statuses.len() < 2 * HONEST && sent.elapsed() < 3 * LOOKED) {
        most = most.max(memory());
        if statuses.len() < 2 * HONEST {
            let claim = format!("leases/new-{}/acquire", statuses.len());
            let claimed = connection.post(&claim, r#"{"holder":"h","ttl_ms":60000}"#).await.expect("an answer");
            let renewed = connection.post("leases/held/renew", &renewal).await.expect("an answer");
            statuses.extend([claimed.status, renewed.status]);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!(
        "{SENDERS} half-sent renewals: memory {} MiB before, {} MiB at most; {} of {} claims and renewals served",
        before >> 20,
        most >> 20,
        statuses.iter().filter(|status| **status == 200).count(),
        statuses.len()
    );
    assert!(statuses.len() == 2 * HONEST && statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert!(most <= before + BUDGET + SENDERS as u64 * EACH, "{before} bytes before, {most} at most");
    drop(half_sent);
}
