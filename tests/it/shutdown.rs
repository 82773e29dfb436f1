//! The shutdown of a listener with open requests.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cluster::{Cluster, SOON};
use crate::steady::strict;

strict!(open_requests_are_answered_after_the_listener_stops, watch_ends_when_the_listener_stops);

/// Two requests are open: a claim that waits, and the release with an incomplete body that ends its wait.
async fn open_requests_are_answered_after_the_listener_stops() {
    let cluster = Cluster::start().await;
    let token = cluster.acquire("job", "a").await;
    let claim = cluster.client.post(cluster.url("/v1/leases/job/acquire"));
    let waiting = tokio::spawn(claim.json(&json!({"holder": "b", "wait_ms": 60000})).send());
    let queued = async { while cluster.get("/v1/leases/job/queue").await.1["total"] != json!(1) {} };
    tokio::time::timeout(SOON, queued).await.expect("the claim waits");

    let body = json!({"holder": "a", "token": token}).to_string();
    let mut release = TcpStream::connect(cluster.address).await.expect("the listener accepts connections");
    let head = format!(
        "POST /v1/leases/job/release HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    release.write_all(head.as_bytes()).await.expect("the listener reads the head");
    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut answer = vec![0; go_on.len()];
    release.read_exact(&mut answer).await.expect("the node reads the body");
    assert_eq!(answer, go_on);

    cluster.stop_listening();
    let stopped = async { while TcpStream::connect(cluster.address).await.is_ok() {} };
    tokio::time::timeout(SOON, stopped).await.expect("the listener accepts no more connections");

    release.write_all(body.as_bytes()).await.expect("the connection is open");
    let mut answer = String::new();
    let read = tokio::time::timeout(SOON, release.read_to_string(&mut answer)).await;
    read.expect("the connection closes after the answer").expect("text");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(r#"{"released":true}"#), "{answer}");
    let granted = tokio::time::timeout(SOON, waiting).await.expect("the claim is answered").expect("no panic");
    let granted: serde_json::Value = granted.expect("an answer").json().await.expect("JSON");
    assert_eq!(granted["holder"], json!("b"), "{granted}");
    cluster.end().await;
}

async fn watch_ends_when_the_listener_stops() {
    let cluster = Cluster::start().await;
    let mut stream = cluster.client.get(cluster.url("/v1/watch")).send().await.expect("a stream");
    stream.chunk().await.expect("the stream is readable").expect("the stream begins with its position");
    cluster.stop_listening();
    let ended = async { while stream.chunk().await.expect("the stream has a complete end").is_some() {} };
    tokio::time::timeout(SOON, ended).await.expect("the stream ends in time");
    assert_eq!(cluster.node.health().not_ready, None, "the node does not end with its listener");
    cluster.end().await;
}
