//! The messages of Raft for each write.

use std::time::Duration;

use tenure::testing::Cluster;

use super::{acquire, ask, start};

const TTL_MS: u64 = 600_000;
const WRITES: usize = 100;

/// Writes one after the other at the leader, each after a pause. Returns the number of appends that were sent for them.
async fn appends(cluster: &Cluster, pause: Duration) -> usize {
    let leader = cluster.leader().await;
    // The first entries of the term precede it.
    ask(cluster.node(leader), acquire("first", "a", TTL_MS, None)).await.expect("the cluster answers");
    tokio::time::sleep(Duration::from_millis(20)).await;
    let before = cluster.board.appends();
    for number in 0..WRITES {
        ask(cluster.node(leader), acquire(&number.to_string(), "a", TTL_MS, None)).await.expect("the cluster answers");
        tokio::time::sleep(pause).await;
    }
    cluster.board.appends() - before
}

/// A write without a pause announces the commit of the write before it, so each follower receives one append.
#[tokio::test(start_paused = true)]
async fn write_takes_one_append_to_each_follower() {
    let cluster = start().await;
    let without_pauses = appends(&cluster, Duration::ZERO).await;
    assert!((2 * WRITES..2 * WRITES + 5).contains(&without_pauses), "{without_pauses} appends");
    let with_pauses = appends(&cluster, Duration::from_millis(20)).await;
    assert!(
        (4 * WRITES - 5..4 * WRITES + 5).contains(&with_pauses),
        "{with_pauses} appends, half of them with a commit"
    );
    cluster.shutdown().await;
}

/// The next heartbeat would announce it after up to 75 ms.
#[tokio::test(start_paused = true)]
async fn followers_apply_a_lone_write_at_once() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    for number in 0..WRITES {
        ask(cluster.node(leader), acquire(&number.to_string(), "a", TTL_MS, None)).await.expect("the cluster answers");
        // One message, and the wait for another write.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let written = cluster.node(leader).status().await.applied;
        for id in cluster.ids() {
            assert_eq!(cluster.node(id).status().await.applied, written, "node {id}, write {number}");
        }
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    cluster.shutdown().await;
}
