//! The metrics of a process.

use crate::cluster::{Cluster, place};
use crate::steady::strict;

strict!(metrics_of_a_process_name_its_node);

async fn metrics_of_a_process_name_its_node() {
    let cluster = Cluster::start("").await;
    cluster.client.acquire("jobs", "a", 60_000).await;
    let endpoints = cluster.client.endpoints();
    let url = endpoints.split(',').nth(place(2)).expect("three nodes");
    let answer = crate::plain_http::get(format!("{url}/metrics")).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let content_type = answer.headers()["content-type"].to_str().expect("text").to_owned();
    assert!(content_type.starts_with("text/plain; version=0.0.4"), "{content_type}");
    let text = answer.text().await.expect("text");
    let samples: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let nameless = samples.iter().find(|sample| !sample.contains("node=\"2\""));
    assert_eq!(nameless, None, "each sample names its node");
    for histogram in ["tenure_http_request_seconds", "tenure_storage_sync_seconds"] {
        let bucket = format!("{histogram}_bucket{{");
        let largest = |sample: &&&str| sample.starts_with(&bucket) && sample.contains("le=\"60\"");
        assert!(samples.iter().any(|sample| largest(&sample)), "{histogram} has no bucket of 60 s:\n{text}");
    }
}
