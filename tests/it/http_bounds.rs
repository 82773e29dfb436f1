//! Headers and bounds that docs/http.md documents, one test per sentence.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use futures_util::StreamExt;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure::config::RaftTimings;
use tenure::http::Settings;
use tower::ServiceExt;

use crate::cluster::{Cluster, SOON, read};

/// The first chunk of a stream.
async fn first_chunk(request: reqwest::RequestBuilder) -> String {
    let mut response = request.send().await.expect("an answer");
    let chunk = tokio::time::timeout(SOON, response.chunk()).await.expect("the first chunk arrives in time");
    String::from_utf8(chunk.expect("the stream is readable").expect("the stream has a chunk").to_vec()).expect("text")
}

/// Opens a watch without a socket, so that each chunk arrives as the node made it.
async fn open(cluster: &Cluster, query: &str, settings: Settings) -> BodyDataStream {
    let request = Request::get(format!("/v1/watch?{query}")).body(Body::empty()).expect("a valid request");
    let Ok(response) = cluster.node.router_with(settings).oneshot(request).await;
    response.into_body().into_data_stream()
}

async fn next_chunk(chunks: &mut BodyDataStream) -> String {
    let chunk = tokio::time::timeout(SOON, chunks.next()).await.expect("a chunk in time");
    let chunk = chunk.expect("the stream goes on").expect("the stream is readable");
    String::from_utf8(chunk.to_vec()).expect("text")
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

#[tokio::test]
async fn resumed_watch_comes_in_chunks_of_16_kib() {
    const GRANTS: usize = 200;
    let cluster = Cluster::start().await;
    for number in 0..GRANTS {
        cluster.acquire(&format!("{number:0>150}"), &"h".repeat(200)).await;
    }
    let mut chunks = open(&cluster, "after=0", Settings::new(1)).await;
    let mut shown = 0;
    while shown < GRANTS {
        let chunk = next_chunk(&mut chunks).await;
        // An event of this test has less than 1 KiB.
        assert!(chunk.len() < 17 << 10, "a chunk of {} bytes, after {shown} events", chunk.len());
        shown += chunk.matches("event: granted").count();
    }
    cluster.end().await;
}

/// The keep-alive interval is longer than the test.
#[tokio::test]
async fn filtered_watch_reports_its_position_after_1_000_events() {
    let cluster = Cluster::start().await;
    let names: Vec<String> = (0..1_100).map(|number| format!("job-{number}")).collect();
    for some in names.chunks(50) {
        join_all(some.iter().map(|name| cluster.acquire(name, "a"))).await;
    }
    let mut settings = Settings::new(1);
    settings.watch_keep_alive = Duration::from_secs(3_600);
    let mut chunks = open(&cluster, "after=0&prefix=other", settings).await;
    assert_eq!(next_chunk(&mut chunks).await, "id: 0\n\n");
    let position = next_chunk(&mut chunks).await;
    assert!(position.starts_with("id: ") && !position.contains("data: "), "{position}");
    cluster.end().await;
}

/// The renewals cause no event, so the last event is older than the last snapshot.
#[tokio::test]
async fn watch_of_renewals_resumes_after_a_restart() {
    let mut timings = RaftTimings::lan();
    (timings.snapshot_every, timings.snapshot_keep) = (100, 10);
    let cluster = Cluster::start_node(|node| node.timings(timings)).await;
    let token = cluster.acquire("job", "a").await;
    for _ in 0..250 {
        let renewal = json!({"holder": "a", "token": token});
        let (status, renewed) = cluster.post("/v1/leases/job/renew", renewal).await;
        assert_eq!(status, 200, "{renewed}");
    }
    let applied = cluster.get("/v1/cluster").await.1["applied"].as_u64().expect("a log index");
    let mut settings = Settings::new(1);
    settings.watch_keep_alive = Duration::from_millis(50);
    let mut chunks = open(&cluster, "after=0", settings).await;
    let mut position = 0;
    let reading = async {
        while position < applied {
            let chunk = next_chunk(&mut chunks).await;
            let id = chunk.lines().rev().find_map(|line| line.strip_prefix("id: ")?.parse::<u64>().ok());
            position = id.unwrap_or(position);
        }
    };
    tokio::time::timeout(SOON, reading).await.expect("the position of the last renewal comes in time");
    drop(chunks);

    let cluster = cluster.restart(|node| node.timings(timings)).await;
    let watch = |after: u64| cluster.client.get(cluster.url(&format!("/v1/watch?after={after}")));
    let granted = token.parse::<u64>().expect("a number") & ((1 << 48) - 1);
    let refused = tokio::time::timeout(SOON, read(watch(granted))).await;
    let (status, problem) = refused.expect("the position of the last event is compacted");
    assert_eq!((status, &problem["code"]), (410, &Value::from("compacted")), "{problem}");
    assert_eq!(first_chunk(watch(position)).await.lines().next(), Some(format!("id: {position}").as_str()));
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
