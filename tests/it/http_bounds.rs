//! Headers and bounds that docs/http.md documents, one test per sentence.

use serde_json::{Value, json};

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
