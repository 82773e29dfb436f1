//! A node that restarts after a while catches up.

use std::time::Instant;

use crate::client::{Call, Outcome, token};
use crate::cluster::{Cluster, NODES, SOON, place};
use crate::steady::strict;

strict!(returning_node_catches_up_from_the_log, returning_node_catches_up_from_a_snapshot,);

/// Frequent snapshots with few log entries behind them.
const SNAPSHOTS: &str = "[raft]\nsnapshot_every = 100\nsnapshot_keep = 10\n";

/// Acquires `count` leases. Each one needs at least one log entry.
async fn claim(cluster: &Cluster, prefix: &str, count: usize) -> Vec<(String, u64)> {
    let mut claimed = Vec::new();
    for number in 0..count {
        let name = format!("{prefix}-{number}");
        let token = cluster.client.acquire(&name, "a", 600_000).await;
        claimed.push((name, token));
    }
    claimed
}

/// Checks that node `id` has all these leases in its local state.
async fn check_local_state(cluster: &Cluster, id: u64, claimed: &[(String, u64)]) {
    for (name, expected) in claimed {
        let call = Call::get(format!("/v1/leases/{name}?consistency=stale"));
        let began = Instant::now();
        let lease = loop {
            match cluster.client.attempt(place(id), &call).await {
                Outcome::Done(lease) => break lease,
                Outcome::Refused(problem) => panic!("node {id} does not have {name}: {problem}"),
                other => assert!(began.elapsed() < SOON, "node {id} does not answer: {other:?}"),
            }
        };
        assert_eq!((lease["holder"].as_str(), token(&lease)), (Some("a"), *expected), "node {id}: {lease}");
    }
}

/// Checks that node `id` counts for the majority: each of the other nodes goes down once, and the cluster
/// still serves.
async fn check_majority_with(cluster: &mut Cluster, id: u64) {
    for other in NODES.into_iter().filter(|other| *other != id) {
        cluster.kill(other);
        claim(cluster, "two-of-three", 20).await;
        cluster.launch(other);
        cluster.ready(other).await;
        cluster.caught_up(other).await;
    }
}

async fn returning_node_catches_up_from_the_log() {
    let mut cluster = Cluster::start("").await;
    let away = cluster.follower().await;
    let before = claim(&cluster, "before", 20).await;
    cluster.kill(away);
    let meanwhile = claim(&cluster, "meanwhile", 200).await;
    cluster.launch(away);
    cluster.ready(away).await;
    cluster.caught_up(away).await;
    check_local_state(&cluster, away, &before).await;
    check_local_state(&cluster, away, &meanwhile).await;
    check_majority_with(&mut cluster, away).await;
}

async fn returning_node_catches_up_from_a_snapshot() {
    let mut cluster = Cluster::start(SNAPSHOTS).await;
    let away = cluster.follower().await;
    let before = claim(&cluster, "before", 20).await;
    cluster.kill(away);
    let meanwhile = claim(&cluster, "meanwhile", 700).await;
    cluster.launch(away);
    cluster.ready(away).await;
    cluster.caught_up(away).await;
    check_local_state(&cluster, away, &before).await;
    check_local_state(&cluster, away, &meanwhile).await;
    // The node got its state from a snapshot, so it does not know the events that led to it.
    let watch = Call { timeout: SOON, ..Call::get("/v1/watch?after=1") };
    let compacted = cluster.client.attempt(place(away), &watch).await;
    assert!(matches!(&compacted, Outcome::Refused(problem) if problem["code"] == "compacted"), "{compacted:?}");
    check_majority_with(&mut cluster, away).await;
    check_local_state(&cluster, away, &meanwhile).await;
    // The node restarts from its own snapshot.
    cluster.kill(away);
    cluster.launch(away);
    cluster.ready(away).await;
    cluster.caught_up(away).await;
    check_local_state(&cluster, away, &before).await;
    check_local_state(&cluster, away, &meanwhile).await;
}
