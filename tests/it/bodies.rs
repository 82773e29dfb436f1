//! Slow and large request bodies, and their effect on other requests.

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cluster::{Cluster, SOON};
use crate::steady::steady;

steady!(slow_bodies_do_not_block_other_requests, large_bodies_above_the_budget_are_refused,);

/// More than the 256 concurrent requests of the default limits.
const SLOW_CLAIMS: usize = 300;
const OTHER_CLAIMS: usize = 58;

/// Sends the head and the first byte of a claim. Returns when the node starts to read the body, or refuses it.
async fn begin_claim(cluster: &Cluster, number: usize) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(cluster.address).await.expect("the listener accepts connections");
    let head = format!(
        "POST /v1/leases/slow-{number}/acquire HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: 100\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.expect("the listener reads the head");
    let mut status = [0; 12];
    let read = tokio::time::timeout(SOON, stream.read_exact(&mut status)).await;
    read.expect("the answer arrives in time").expect("an answer");
    (stream, String::from_utf8_lossy(&status).into_owned())
}

async fn slow_bodies_do_not_block_other_requests() {
    let cluster = Cluster::start().await;
    let claims = futures_util::stream::iter((0..SLOW_CLAIMS).map(|number| begin_claim(&cluster, number)));
    let slow: Vec<(TcpStream, String)> = claims.buffer_unordered(SLOW_CLAIMS).collect().await;
    let reading = slow.iter().filter(|(_, status)| status == "HTTP/1.1 100").count();
    let others = (0..OTHER_CLAIMS).map(|number| {
        let (cluster, path) = (&cluster, format!("/v1/leases/other-{number}/acquire"));
        async move { cluster.post(&path, json!({"holder": "h"})).await.0 }
    });
    let statuses: Vec<u16> = futures_util::future::join_all(others).await;
    let refused = statuses.iter().filter(|status| **status == 429).count();
    println!(
        "the node reads {reading} of {SLOW_CLAIMS} slow bodies and refuses {refused} of {OTHER_CLAIMS} other requests"
    );
    assert_eq!((reading, refused), (SLOW_CLAIMS, 0));
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    drop(slow);
    cluster.end().await;
}

/// A renewal with an incomplete body uses half of a small budget. The node refuses another large renewal. It serves
/// small requests and claims, which have their own share of the budget.
async fn large_bodies_above_the_budget_are_refused() {
    let cluster = Cluster::start_with(|settings| settings.limits.body_budget_mib = 4).await;
    let token = cluster.acquire("held", "h").await;
    let mut slow = TcpStream::connect(cluster.address).await.expect("the listener accepts connections");
    let head =
        "POST /v1/renew HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: 2000000\r\n\r\n";
    slow.write_all(head.as_bytes()).await.expect("the listener reads the head");
    slow.write_all(&vec![b' '; 1_500_000]).await.expect("the budget has room");
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
    let refused = tokio::time::timeout(SOON, refused).await.expect("the slow body uses the budget in time");
    assert!(refused.headers().contains_key("retry-after"));
    let problem: Value = refused.json().await.expect("a problem");
    assert_eq!((&problem["code"], &problem["retry_after_ms"]), (&json!("too_busy"), &json!(250)), "{problem}");
    let (status, renewed) = cluster.post("/v1/leases/held/renew", json!({"holder": "h", "token": token})).await;
    assert_eq!(status, 200, "{renewed}");
    let claim = json!({"holder": "h", "metadata": {"text": "x".repeat(4_000)}});
    assert_eq!(cluster.post("/v1/leases/other/acquire", claim).await.0, 200, "claims have their own share");
    drop(slow);
    let served = async { while cluster.post("/v1/renew", large.clone()).await.0 != 200 {} };
    tokio::time::timeout(SOON, served).await.expect("the budget is free again in time");
    cluster.end().await;
}
