//! The first start of a cluster: node crashes, power cuts and lost disks while the cluster forms.

use std::time::Duration;

use tenure::node::{Answer, Consistency, Query, Request};
use tenure::storage::Storage;
use tenure::testing::{Cut, SyncMode};

use crate::{acquire, ask, held, holder, name, start};

#[tokio::test(start_paused = true)]
async fn first_node_crashed_before_forming_forms_after_restart() {
    for delay_ms in (0..80).step_by(4) {
        let mut cluster = start().await;
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        cluster.crash(1).await;
        cluster.restart(1).await;
        cluster.leader().await;
        held(cluster.node(1), acquire("job", "a", 10_000, None)).await;
        cluster.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn power_cut_during_forming_leaves_cluster_formable() {
    for kept in 0..3 {
        let mut cluster = start().await;
        cluster.hang_disk(1);
        let disk = cluster.disk(1);
        tokio::time::timeout(Duration::from_secs(5), disk.wait_unsynced())
            .await
            .expect("the first node forms the cluster");
        // The two writes are the membership entry and then the vote.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(disk.unsynced(), 2);
        let _ = cluster.cut_power(1, Cut::Keep(kept));
        cluster.disk(1).set_mode(SyncMode::Inline);
        cluster.restart(1).await;
        cluster.leader().await;
        held(cluster.node(1), acquire("job", "a", 10_000, None)).await;
        cluster.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn first_node_alone_forms_no_cluster() {
    let mut cluster = start().await;
    cluster.leader().await;
    held(cluster.node(1), acquire("job", "a", 60_000, None)).await;
    for id in cluster.ids() {
        cluster.crash(id).await;
    }
    cluster.restart_wiped(1).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(cluster.disk(1).is_empty(), "the node formed a second cluster");
    // One other member of the cluster is enough for the wiped node to learn that it exists.
    cluster.restart(2).await;
    assert_eq!(cluster.leader().await, 2);
    let read = Request::Read { query: Query::Lease(name("job")), consistency: Consistency::Linearizable };
    let Answer::Lease(leases) = ask(cluster.node(2), read).await.expect("answered").answer else { panic!("leases") };
    assert_eq!(leases[0].holder, holder("a"), "the lease survived");
    cluster.shutdown().await;
}

/// The stores of the two other nodes are a majority, but the third one has the cluster's data.
#[tokio::test(start_paused = true)]
async fn first_node_forms_no_cluster_beside_a_member_with_data() {
    let mut cluster = start().await;
    cluster.leader().await;
    held(cluster.node(1), acquire("job", "a", 60_000, None)).await;
    // The third node, too, gets the entry.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for id in cluster.ids() {
        cluster.crash(id).await;
    }
    cluster.restart_wiped(2).await;
    cluster.restart(3).await;
    cluster.restart_wiped(1).await;
    assert_eq!(cluster.leader().await, 3, "only the third node has a log");
    let read = Request::Read { query: Query::Lease(name("job")), consistency: Consistency::Linearizable };
    let Answer::Lease(leases) = ask(cluster.node(1), read).await.expect("answered").answer else { panic!("leases") };
    assert_eq!(leases[0].holder, holder("a"), "the lease survived");
    cluster.shutdown().await;
}
