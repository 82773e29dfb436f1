//! A first start.

use std::time::Duration;

use crate::client::Call;
use crate::cluster::{Cluster, NODES, place};
use crate::steady::steady;

steady!(three_processes_form_a_cluster);

async fn three_processes_form_a_cluster() {
    let mut cluster = Cluster::new("").await;
    cluster.launch(1);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(cluster.ask(1, "/readyz").await.is_none(), "one of three is no majority");
    assert!(cluster.ask(1, "/livez").await.is_some(), "and no reason to restart it");
    cluster.launch(2);
    cluster.leader_within(Duration::from_secs(3)).await;
    cluster.launch(3);
    for id in NODES {
        cluster.ready(id).await;
        let status = cluster.ask(id, "/v1/cluster").await.expect("it is ready");
        assert_eq!(status["cluster_id"], "test");
        assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{status}");
    }
    let mut tokens = Vec::new();
    for id in NODES {
        let lease = cluster.client.done(place(id), &Call::acquire("jobs", "a", 60_000)).await;
        tokens.push(lease["token"].clone());
    }
    assert!(tokens.iter().all(|token| *token == tokens[0]), "any node serves the same lease: {tokens:?}");
}
