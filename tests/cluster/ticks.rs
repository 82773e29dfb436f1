//! Log entries that only advance cluster time.

use std::time::Duration;

use tenure::config::{LeaseSettings, RaftTimings};
use tenure::testing::Cluster;

use super::{acquire, held};

/// Longer than each test runs, so only ticks add entries.
const TTL_MS: u64 = 600_000;

async fn start(tick_ms: u64) -> Cluster {
    let mut settings = LeaseSettings::default();
    settings.tick_ms = tick_ms;
    Cluster::start(3, RaftTimings::lan(), settings).await
}

/// Number of entries that the leader applies in 10 s.
async fn entries(cluster: &Cluster) -> u64 {
    let leader = cluster.leader().await;
    let before = cluster.node(leader).status().await.applied;
    tokio::time::sleep(Duration::from_secs(10)).await;
    cluster.node(leader).status().await.applied - before
}

#[tokio::test(start_paused = true)]
async fn ticks_come_at_the_configured_interval() {
    for (tick_ms, expected) in [(50, 180..=210), (1_000, 9..=11), (60_000, 0..=1)] {
        let cluster = start(tick_ms).await;
        let leader = cluster.leader().await;
        held(cluster.node(leader), acquire("job", "a", TTL_MS, None)).await;
        let entries = entries(&cluster).await;
        assert!(expected.contains(&entries), "tick_ms {tick_ms}: {entries} entries in 10 s");
        cluster.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn idle_cluster_writes_no_ticks() {
    let cluster = start(50).await;
    cluster.leader().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(entries(&cluster).await, 0);
    cluster.shutdown().await;
}
