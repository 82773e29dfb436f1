//! A disk that hangs for a short and for a long time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::config::{LeaseSettings, RaftTimings};
use tenure::node::NodeFailure;
use tenure::testing::{Cluster, SyncMode, TestNode};
use tenure::types::DiskState;
use tokio::time::Instant;

use super::{acquire, held, start};

/// Longer than each test runs. While the lease is held, each node writes an entry every second.
const TTL_MS: u64 = 600_000;

async fn until_ready(node: &TestNode) {
    while node.health().not_ready.is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The disks of all members, as each node shows them, at most 2 s old.
async fn disks(cluster: &Cluster) -> BTreeSet<BTreeMap<u64, Option<DiskState>>> {
    let mut views = BTreeSet::new();
    for id in cluster.ids() {
        let members = cluster.node(id).status().await.members;
        views.insert(members.into_iter().map(|member| (member.id, member.disk)).collect());
    }
    views
}

/// The disks of all members, of which one has this state.
fn disks_with(cluster: &Cluster, at: u64, state: DiskState) -> BTreeMap<u64, Option<DiskState>> {
    cluster.ids().map(|id| (id, Some(if id == at { state } else { DiskState::Ok }))).collect()
}

async fn survives_a_stall(cluster: &Cluster, at: u64) {
    let node = cluster.node(at);
    cluster.hang_disk(at);
    tokio::time::sleep(Duration::from_secs(25)).await;
    let health = node.health();
    assert_eq!(health.failed, None, "the stall has not lasted for 30 s");
    assert!(health.not_ready.is_some_and(|why| why.contains("disk is stalled")), "{:?}", node.health());
    assert_eq!(disks(cluster).await, BTreeSet::from([disks_with(cluster, at, DiskState::Stalled)]));
    cluster.disk(at).set_mode(SyncMode::Inline);
    cluster.disk(at).sync();
    let ready = tokio::time::timeout(Duration::from_secs(5), until_ready(node)).await;
    assert!(ready.is_ok(), "the disk works again: {:?}", node.health());
    // A node asks the others each second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(disks(cluster).await, BTreeSet::from([disks_with(cluster, at, DiskState::Ok)]));
    let again = Instant::now();
    cluster.hang_disk(at);
    let failed = tokio::time::timeout(Duration::from_secs(60), node.wait_failed()).await;
    assert!(matches!(failed.expect("the node reports the stalled disk"), NodeFailure::DiskStalled(_)));
    let stalled = again.elapsed();
    let range = Duration::from_secs(30)..Duration::from_secs(32);
    assert!(range.contains(&stalled), "30 s, the time to the next write and one poll: {stalled:?}");
}

#[tokio::test(start_paused = true)]
async fn leader_survives_a_stall_below_30_s() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", TTL_MS, None)).await;
    survives_a_stall(&cluster, leader).await;
}

#[tokio::test(start_paused = true)]
async fn follower_survives_a_stall_below_30_s() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("job", "a", TTL_MS, None)).await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    survives_a_stall(&cluster, follower).await;
}

/// The last answer of a crashed member says nothing about its disk now.
#[tokio::test(start_paused = true)]
async fn disk_of_a_crashed_member_is_unknown() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let crashed = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let all_work = BTreeSet::from([disks_with(&cluster, crashed, DiskState::Ok)]);
    let known = async {
        while disks(&cluster).await != all_work {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), known).await.expect("a node asks the others each second");
    cluster.crash(crashed).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    for id in cluster.ids().filter(|id| *id != crashed) {
        for member in cluster.node(id).status().await.members {
            let expected = (member.id != crashed).then_some(DiskState::Ok);
            assert_eq!(member.disk, expected, "node {} as node {id} shows it", member.id);
        }
    }
    cluster.shutdown().await;
}

/// The default timings for several sites allow for such round trips.
#[tokio::test(start_paused = true)]
async fn disks_are_known_with_round_trips_of_300_ms() {
    let cluster = Cluster::start(3, RaftTimings::wan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let all_work = BTreeSet::from([disks_with(&cluster, leader, DiskState::Ok)]);
    let known = async {
        while disks(&cluster).await != all_work {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), known).await.expect("a node asks the others each second");
    for from in cluster.ids() {
        for to in cluster.ids().filter(|to| *to != from) {
            cluster.board.delay(from, to, Duration::from_millis(150));
        }
    }
    for second in 1..=5 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(disks(&cluster).await, all_work, "after {second} s");
    }
    cluster.shutdown().await;
}
