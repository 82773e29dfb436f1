//! The first start of a cluster.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::Call;
use crate::cluster::{Cluster, NODES, SOON, place};
use crate::steady::{steady, strict};

steady!(three_processes_form_a_cluster);
strict!(first_node_killed_in_its_first_start_forms_later, first_node_stopped_in_its_first_start_forms_later,);

/// The delays between the marker file of the first node and its end.
const DELAYS_MS: [u64; 6] = [0, 20, 50, 100, 200, 300];

async fn three_processes_form_a_cluster() {
    let mut cluster = Cluster::new("").await;
    cluster.launch(1);
    cluster.status(1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(cluster.ask(1, "/readyz").await.is_none(), "one of three nodes is no majority");
    let began = Instant::now();
    while cluster.ask(1, "/livez").await.is_none() {
        assert!(began.elapsed() < SOON, "a node without a majority is alive");
    }
    cluster.launch(2);
    cluster.status(2).await;
    cluster.leader_within(Duration::from_secs(3)).await;
    cluster.launch(3);
    for id in NODES {
        cluster.ready(id).await;
        let status = cluster.status(id).await;
        assert_eq!(status["cluster_id"], "test");
        assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{status}");
    }
    let mut tokens = Vec::new();
    for id in NODES {
        let lease = cluster.client.done(place(id), &Call::acquire("jobs", "a", 60_000)).await;
        tokens.push(lease["token"].clone());
    }
    assert!(tokens.iter().all(|token| *token == tokens[0]), "all nodes show the same lease: {tokens:?}");
}

async fn first_node_killed_in_its_first_start_forms_later() {
    for delay_ms in DELAYS_MS {
        ends_during_its_first_start(delay_ms, Signal::KILL).await;
    }
}

async fn first_node_stopped_in_its_first_start_forms_later() {
    for delay_ms in DELAYS_MS {
        ends_during_its_first_start(delay_ms, Signal::TERM).await;
    }
}

/// Ends node 1 shortly after it initialized its data directory. After a restart the node must form the cluster.
async fn ends_during_its_first_start(delay_ms: u64, signal: Signal) {
    let mut cluster = Cluster::new("").await;
    let marker = cluster.data(1).join("TENURE");
    cluster.launch(1);
    let began = Instant::now();
    while !marker.exists() {
        assert!(began.elapsed() < SOON, "node 1 wrote no marker");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The other nodes start later, so that node 1 is often alone when it ends.
    cluster.launch(2);
    cluster.launch(3);
    tokio::time::sleep(Duration::from_millis(delay_ms)).await;
    cluster.node(1).signal(signal);
    cluster.node(1).exit(SOON).await;
    cluster.launch(1);
    for id in NODES {
        cluster.ready(id).await;
    }
    cluster.client.acquire("jobs", "a", 60_000).await;
}
