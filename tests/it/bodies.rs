//! Bodies that come slowly, from more clients than the node carries out requests for, and what that costs the others.

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cluster::{Cluster, SOON};
use crate::steady::steady;

steady!(slow_bodies_cost_other_requests_no_turn, large_bodies_without_room_are_refused_small_ones_served,);

/// More than the 256 requests that a node carries out at a time with its default limits.
const SLOW_CLAIMS: usize = 300;
const OTHERS: usize = 58;

/// A claim whose head and first byte are sent. Returns when the node has begun to read the body, or has refused it.
async fn begin_claim(cluster: &Cluster, number: usize) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(cluster.address).await.expect("it listens");
    let head = format!(
        "POST /v1/leases/slow-{number}/acquire HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: 100\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.expect("it takes the head");
    let mut status = [0; 12];
    let read = tokio::time::timeout(SOON, stream.read_exact(&mut status)).await;
    read.expect("it is answered in time").expect("an answer");
    (stream, String::from_utf8_lossy(&status).into_owned())
}

async fn slow_bodies_cost_other_requests_no_turn() {
    let cluster = Cluster::start().await;
    let claims = futures_util::stream::iter((0..SLOW_CLAIMS).map(|number| begin_claim(&cluster, number)));
    let slow: Vec<(TcpStream, String)> = claims.buffer_unordered(SLOW_CLAIMS).collect().await;
    let reading = slow.iter().filter(|(_, status)| status == "HTTP/1.1 100").count();
    let others = (0..OTHERS).map(|number| {
        let (cluster, path) = (&cluster, format!("/v1/leases/other-{number}/acquire"));
        async move { cluster.post(&path, json!({"holder": "h"})).await.0 }
    });
    let statuses: Vec<u16> = futures_util::future::join_all(others).await;
    let refused = statuses.iter().filter(|status| **status == 429).count();
    println!("{reading} of {SLOW_CLAIMS} slow bodies are read, and {refused} of {OTHERS} other requests are refused");
    assert_eq!((reading, refused), (SLOW_CLAIMS, 0));
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    drop(slow);
    cluster.end().await;
}

/// Half of a small budget is taken by a renewal that never ends. Another large one is refused, and what is small or has a
/// share to itself is carried out.
async fn large_bodies_without_room_are_refused_small_ones_served() {
    let cluster = Cluster::start_with(|settings| settings.limits.body_budget_mib = 4).await;
    let token = cluster.acquire("held", "h").await;
    let mut slow = TcpStream::connect(cluster.address).await.expect("it listens");
    let head =
        "POST /v1/renew HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: 2000000\r\n\r\n";
    slow.write_all(head.as_bytes()).await.expect("it takes the head");
    slow.write_all(&vec![b' '; 1_500_000]).await.expect("there is room");
    let leases: Vec<Value> = (0..10_000).map(|_| json!({"name": "n".repeat(150), "token": token})).collect();
    let large = json!({"holder": "h", "leases": leases});
    let refused = async {
        loop {
            let request = cluster.client.post(cluster.url("/v1/renew")).json(&large);
            let answer = request.send().await.expect("an answer");
            if answer.status() == 429 {
                return answer;
            }
        }
    };
    let refused = tokio::time::timeout(SOON, refused).await.expect("the slow body has arrived soon");
    assert!(refused.headers().contains_key("retry-after"));
    let problem: Value = refused.json().await.expect("a problem");
    assert_eq!((&problem["code"], &problem["retry_after_ms"]), (&json!("too_busy"), &json!(250)), "{problem}");
    let (status, renewed) = cluster.post("/v1/leases/held/renew", json!({"holder": "h", "token": token})).await;
    assert_eq!(status, 200, "{renewed}");
    let claim = json!({"holder": "h", "metadata": {"text": "x".repeat(4_000)}});
    assert_eq!(cluster.post("/v1/leases/other/acquire", claim).await.0, 200, "claims have a share to themselves");
    drop(slow);
    let served = async { while cluster.post("/v1/renew", large.clone()).await.0 != 200 {} };
    tokio::time::timeout(SOON, served).await.expect("the room is free again");
    cluster.end().await;
}
