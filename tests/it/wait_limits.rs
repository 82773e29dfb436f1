//! Claims that wait and watches, up to their bounds and above.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::cluster::Cluster;
use crate::steady::strict;

strict!(claims_that_wait_are_bounded, watches_are_bounded, refused_request_leaves_its_connection_open);

/// Long enough that only a hang exceeds it.
const SOON: Duration = Duration::from_secs(20);

async fn claims_that_wait_are_bounded() {
    const MOST: usize = 2;
    let cluster = Cluster::start_with(|settings| settings.limits.max_waits = MOST).await;
    cluster.acquire("job", "a").await;
    let path = "/v1/leases/job/acquire";
    let wait = |holder: String| {
        let request = cluster.client.post(cluster.url(path)).json(&json!({"holder": holder, "wait_ms": 60000}));
        tokio::spawn(request.send())
    };
    let until = async |count: usize| {
        let counted = async { while cluster.get("/v1/leases/job/queue").await.1["total"] != json!(count) {} };
        tokio::time::timeout(SOON, counted).await.unwrap_or_else(|_| panic!("there are never {count} waiters"));
    };
    let mut waiting: Vec<_> = (0..MOST).map(|number| wait(format!("waits-{number}"))).collect();
    until(MOST).await;
    for _ in 0..3 {
        let (status, problem) = cluster.post(path, json!({"holder": "one-more", "wait_ms": 1000})).await;
        assert_eq!((status, &problem["code"]), (429, &json!("too_busy")), "{problem}");
        let detail = problem["detail"].as_str().expect("text");
        assert!(detail.contains(&format!("{MOST} waits")), "{detail}");
    }
    assert_eq!(cluster.post(path, json!({"holder": "b"})).await.1["code"], json!("held"), "it does not wait");
    cluster.acquire("other", "a").await;
    waiting.pop().expect("they wait").abort();
    until(MOST - 1).await;
    // The place is given back soon after the client hung up.
    let served = async {
        let mut code = json!("too_busy");
        while code == json!("too_busy") {
            code = cluster.post(path, json!({"holder": "one-more", "wait_ms": 1})).await.1["code"].clone();
        }
        code
    };
    let code = tokio::time::timeout(SOON, served).await.expect("the place is free again");
    assert_eq!(code, json!("wait_timeout"));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    cluster.end().await;
}

async fn watches_are_bounded() {
    const MOST: usize = 2;
    let cluster = Cluster::start_with(|settings| settings.limits.max_watches = MOST).await;
    let watch = || cluster.client.get(cluster.url("/v1/watch")).send();
    let mut open = Vec::new();
    for _ in 0..MOST {
        let stream = watch().await.expect("an answer");
        assert_eq!(stream.status(), 200);
        open.push(stream);
    }
    let refused = watch().await.expect("an answer");
    assert_eq!(refused.status(), 429);
    let problem: Value = refused.json().await.expect("JSON");
    assert_eq!(problem["code"], json!("too_busy"), "{problem}");
    drop(open.pop());
    let served = async { while watch().await.expect("an answer").status() != 200 {} };
    tokio::time::timeout(SOON, served).await.expect("the place is free again");
    cluster.end().await;
}

/// Sends a request and reads the response, on a connection that stays open. Returns the status line.
async fn send(connection: &mut BufReader<TcpStream>, request_line: &str, body: &str) -> String {
    let head = format!("host: t\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    let request = format!("{request_line} HTTP/1.1\r\n{head}{body}");
    connection.write_all(request.as_bytes()).await.expect("the connection is open");
    let (mut status, mut length) = (String::new(), 0);
    connection.read_line(&mut status).await.expect("an answer");
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).await.expect("an answer");
        if line.trim().is_empty() {
            break;
        }
        if let Some(bytes) = line.strip_prefix("content-length: ") {
            length = bytes.trim().parse().expect("a number");
        }
    }
    connection.read_exact(&mut vec![0; length]).await.expect("an answer with its body");
    status
}

async fn refused_request_leaves_its_connection_open() {
    let cluster =
        Cluster::start_with(|settings| (settings.limits.max_waits, settings.limits.max_watches) = (0, 0)).await;
    let connection = TcpStream::connect(cluster.address).await.expect("it listens");
    let mut connection = BufReader::new(connection);
    let claim = json!({"holder": "a", "wait_ms": 1000}).to_string();
    for (request_line, body) in [("POST /v1/leases/job/acquire", claim.as_str()), ("GET /v1/watch", "")] {
        let refused = send(&mut connection, request_line, body).await;
        assert!(refused.starts_with("HTTP/1.1 429"), "{request_line}: {refused}");
        let next = send(&mut connection, "GET /livez", "").await;
        assert!(next.starts_with("HTTP/1.1 200"), "after {request_line}: {next:?}");
    }
    cluster.end().await;
}
