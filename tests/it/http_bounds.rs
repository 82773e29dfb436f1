//! Headers and bounds that docs/http.md documents, one test per sentence.

use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tenure::http::Settings;
use tower::ServiceExt;

use crate::cluster::{Cluster, SOON, read};

/// The first chunk of a stream.
async fn first_chunk(request: reqwest::RequestBuilder) -> String {
    let mut response = request.send().await.expect("an answer");
    let chunk = tokio::time::timeout(SOON, response.chunk()).await.expect("the first chunk arrives in time");
    String::from_utf8(chunk.expect("the stream is readable").expect("the stream has a chunk").to_vec()).expect("text")
}

#[tokio::test]
async fn last_event_id_counts_before_after() {
    let cluster = Cluster::start().await;
    cluster.acquire("job", "a").await;
    let watch = |query: &str| cluster.client.get(cluster.url(&format!("/v1/watch{query}")));
    assert_eq!(first_chunk(watch("?after=0").header("last-event-id", "1")).await.lines().next(), Some("id: 1"));
    assert_eq!(first_chunk(watch("").header("last-event-id", "1")).await.lines().next(), Some("id: 1"));
    assert_eq!(first_chunk(watch("?after=1")).await.lines().next(), Some("id: 1"));
    cluster.end().await;
}

#[tokio::test]
async fn last_event_id_that_is_no_position_is_invalid() {
    let cluster = Cluster::start().await;
    for id in [&b"x"[..], b"\xff"] {
        let watch = cluster.client.get(cluster.url("/v1/watch?after=0")).header("last-event-id", id);
        let answer = tokio::time::timeout(SOON, read(watch)).await;
        let (status, problem) = answer.unwrap_or_else(|_| panic!("a stream for {id:?}"));
        assert_eq!((status, &problem["code"]), (400, &Value::from("invalid")), "{id:?}: {problem}");
    }
    cluster.end().await;
}

/// Without a socket, each chunk arrives as the node made it.
#[tokio::test]
async fn resumed_watch_comes_in_chunks_of_16_kib() {
    const GRANTS: usize = 200;
    let cluster = Cluster::start().await;
    for number in 0..GRANTS {
        cluster.acquire(&format!("{number:0>150}"), &"h".repeat(200)).await;
    }
    let request = Request::get("/v1/watch?after=0").body(Body::empty()).expect("a valid request");
    let Ok(response) = cluster.node.router_with(Settings::new(1)).oneshot(request).await;
    let mut chunks = response.into_body().into_data_stream();
    let mut shown = 0;
    while shown < GRANTS {
        let chunk = tokio::time::timeout(SOON, chunks.next()).await.expect("a chunk in time");
        let chunk = chunk.expect("the stream goes on").expect("the stream is readable");
        // An event of this test has less than 1 KiB.
        assert!(chunk.len() < 17 << 10, "a chunk of {} bytes, after {shown} events", chunk.len());
        shown += std::str::from_utf8(&chunk).expect("text").matches("event: granted").count();
    }
    cluster.end().await;
}

#[tokio::test]
async fn only_stale_reads_report_their_maximum_age() {
    let cluster = Cluster::start().await;
    cluster.acquire("job", "a").await;
    for (consistency, is_stale) in [("stale", true), ("leader", false), ("linearizable", false)] {
        let url = cluster.url(&format!("/v1/leases/job?consistency={consistency}"));
        let answer = cluster.client.get(url).send().await.expect("an answer");
        let age = answer.headers().get("x-tenure-stale-ms").map(|age| age.to_str().expect("text").parse::<u64>());
        assert_eq!((answer.status().as_u16(), age.is_some()), (200, is_stale), "{consistency}");
        assert!(age.is_none_or(|age| age.is_ok()), "{consistency}: milliseconds");
    }
    cluster.end().await;
}

#[tokio::test]
async fn claim_of_more_than_32_kib_is_too_large() {
    let cluster = Cluster::start().await;
    let claim = |bytes: usize| {
        let json = json!({"holder": "a"}).to_string();
        let body = format!("{json}{}", " ".repeat(bytes - json.len()));
        let request = cluster.client.post(cluster.url("/v1/leases/job/acquire"));
        read(request.header("content-type", "application/json").body(body))
    };
    let (status, problem) = claim((32 << 10) + 1).await;
    assert_eq!((status, &problem["code"]), (413, &Value::from("too_large")), "{problem}");
    assert_eq!(claim(32 << 10).await.0, 200);
    cluster.end().await;
}
