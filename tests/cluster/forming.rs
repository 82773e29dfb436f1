//! First starts: nodes that end, lose their power or lose their disk while the cluster forms.

use std::time::Duration;

use tenure::node::{Answer, Consistency, Query, Request};
use tenure::storage::Storage;
use tenure::testing::{Cut, SyncMode};

use crate::{acquire, ask, held, holder, name, start};

#[tokio::test(start_paused = true)]
async fn a_first_node_that_ends_before_it_forms_forms_later() {
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
async fn a_power_cut_while_the_cluster_forms_leaves_it_formable() {
    for kept in 0..3 {
        let mut cluster = start().await;
        cluster.hang_disk(1);
        let disk = cluster.disk(1);
        tokio::time::timeout(Duration::from_secs(5), disk.wait_unsynced()).await.expect("it forms the cluster");
        // The entry with the members, and behind it the vote.
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
async fn a_first_node_alone_forms_nothing() {
    let mut cluster = start().await;
    cluster.leader().await;
    held(cluster.node(1), acquire("job", "a", 60_000, None)).await;
    for id in cluster.ids() {
        cluster.crash(id).await;
    }
    cluster.restart_wiped(1).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(cluster.disk(1).is_empty(), "it formed a second cluster");
    // One other that belongs to the cluster is enough to know.
    cluster.restart(2).await;
    assert_eq!(cluster.leader().await, 2);
    let read = Request::Read { query: Query::Lease(name("job")), consistency: Consistency::Linearizable };
    let Answer::Lease(leases) = ask(cluster.node(2), read).await.expect("answered").answer else { panic!("leases") };
    assert_eq!(leases[0].holder, holder("a"), "nothing was lost");
    cluster.shutdown().await;
}
