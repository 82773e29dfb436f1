//! Nodes whose disk does not finish a write.

use std::time::Duration;

use tenure::config::{LeaseSettings, RaftTimings};
use tenure::node::NodeFailure;
use tenure::storage::Storage;
use tenure::testing::{Cluster, SyncMode};
use tokio::time::Instant;

use crate::{acquire, ask, held, start};

#[tokio::test(start_paused = true)]
async fn leader_with_hung_disk_is_replaced() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let lease = held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    cluster.hang_disk(leader);
    let hung = Instant::now();
    let other = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let next = cluster.leader_except(&[leader]).await;
    let again = held(cluster.node(other), acquire("job", "a", 60_000, None)).await;
    assert_eq!(again.token, lease.token);
    assert!(hung.elapsed() < Duration::from_secs(6), "leader {next} after {:?}", hung.elapsed());
    assert!(cluster.node(leader).health().not_ready.is_some());
    let failed = tokio::time::timeout(Duration::from_secs(60), cluster.node(leader).wait_failed()).await;
    assert!(matches!(failed.expect("the node reports the stalled disk"), NodeFailure::DiskStalled(_)));
}

#[tokio::test(start_paused = true)]
async fn node_is_not_ready_while_a_write_hangs_for_2_s() {
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    cluster.leader().await;
    held(cluster.node(1), acquire("job", "a", 60_000, None)).await;
    let not_ready = || cluster.node(1).health().not_ready;
    assert_eq!(not_ready(), None);
    cluster.hang_disk(1);
    let node = cluster.node(1).clone();
    let write = tokio::spawn(async move { ask(&node, acquire("other", "a", 60_000, None)).await });
    let disk = cluster.disk(1);
    disk.wait_unsynced().await;
    tokio::time::sleep(Duration::from_millis(1_900)).await;
    assert_eq!(not_ready(), None, "the write hangs for less than 2 s");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(not_ready().as_deref(), Some("the disk is stalled: a write is not finished"));
    disk.set_mode(SyncMode::Inline);
    disk.sync();
    assert_eq!(not_ready(), None, "the write is finished");
    write.await.expect("no panic").expect("answered");
    cluster.shutdown().await;
}

/// A node without peers needs no acknowledgement. Its disk hangs at the first entry of its term.
#[tokio::test(start_paused = true)]
async fn leader_serves_after_it_has_applied_an_entry_of_its_term() {
    let mut cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    cluster.leader().await;
    for lease in ["job", "other", "third"] {
        held(cluster.node(1), acquire(lease, "a", 60_000, None)).await;
    }
    let before = cluster.node(1).leadership().term;
    cluster.crash(1).await;
    cluster.restart(1).await;
    cluster.hang_disk(1);
    let disk = cluster.disk(1);
    let first_entry = async {
        while disk.log_bounds().1.is_none_or(|last| last.term == before) {
            disk.sync();
            disk.wait_unsynced().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), first_entry).await.expect("the node elects itself");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(cluster.node(1).health().not_ready.as_deref(), Some("no leader is known"));
    disk.set_mode(SyncMode::Inline);
    disk.sync();
    held(cluster.node(1), acquire("job", "a", 60_000, None)).await;
    assert_eq!(cluster.node(1).health().not_ready, None);
    cluster.shutdown().await;
}

/// Raft's core waits for the disk during a purge. With these timings, the node still leads when the transfer begins.
#[tokio::test(start_paused = true)]
async fn disk_that_hangs_in_a_purge_is_reported() {
    let mut timings = RaftTimings::wan();
    (timings.snapshot_every, timings.snapshot_keep) = (300, 0);
    let cluster = Cluster::start(3, timings, LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let (node, disk) = (cluster.node(leader).clone(), cluster.disk(leader));
    let purged = disk.log_bounds().0;
    cluster.hang_disk(leader);
    let writes = tokio::spawn(async move {
        for number in 0.. {
            let _ = ask(&node, acquire(&format!("job-{number}"), "a", 60_000, None)).await;
        }
    });
    let purge = async {
        while disk.log_bounds().0 == purged {
            disk.sync();
            disk.wait_unsynced().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), purge).await.expect("the snapshot purges the log");
    let failed = tokio::time::timeout(Duration::from_secs(60), cluster.node(leader).wait_failed()).await;
    assert!(matches!(failed.expect("the node reports the stalled disk"), NodeFailure::DiskStalled(_)));
    writes.abort();
}

/// The transfer has a limit of two leadership leases, and no other node can take the leadership.
#[tokio::test(start_paused = true)]
async fn hung_disk_is_reported_after_30_s_also_during_a_transfer() {
    let mut timings = RaftTimings::wan();
    (timings.election_timeout_min_ms, timings.election_timeout_max_ms) = (20_000, 30_000);
    let cluster = Cluster::start(3, timings, LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    held(cluster.node(leader), acquire("first", "a", 60_000, None)).await;
    cluster.ids().for_each(|id| cluster.hang_disk(id));
    let node = cluster.node(leader).clone();
    let write = tokio::spawn(async move { drop(ask(&node, acquire("job", "a", 60_000, None)).await) });
    let unsynced = tokio::time::timeout(Duration::from_secs(60), cluster.disk(leader).wait_unsynced()).await;
    unsynced.expect("the leader writes the acquire");
    let hung = Instant::now();
    let failed = tokio::time::timeout(Duration::from_secs(200), cluster.node(leader).wait_failed()).await;
    assert!(matches!(failed.expect("the node reports the stalled disk"), NodeFailure::DiskStalled(_)));
    let reported = hung.elapsed();
    assert!(reported < Duration::from_secs(32), "reported after {reported:?}");
    write.abort();
}

/// A starved machine wakes no timer in time.
#[tokio::test(start_paused = true)]
async fn hung_disk_is_reported_although_each_timer_is_late() {
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    cluster.leader().await;
    cluster.hang_disk(1);
    let (node, disk) = (cluster.node(1).clone(), cluster.disk(1));
    let asked = node.clone();
    let write = tokio::spawn(async move { drop(ask(&asked, acquire("job", "a", 600_000, None)).await) });
    tokio::time::timeout(Duration::from_secs(60), disk.wait_unsynced()).await.expect("the leader writes the claim");
    let hung = Instant::now();
    while node.health().failed.is_none() {
        assert!(hung.elapsed() < Duration::from_secs(60), "the node does not look at its disk");
        tokio::time::advance(Duration::from_millis(600)).await;
        // Without a pause of the test, the clock moves only by its steps.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert!(matches!(node.wait_failed().await, NodeFailure::DiskStalled(_)));
    write.abort();
}

/// The process is stopped amid a write that the disk finishes. Then the timers run before the storage thread.
#[tokio::test(start_paused = true)]
async fn stopped_process_does_not_blame_its_disk() {
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    cluster.leader().await;
    let node = cluster.node(1).clone();
    held(&node, acquire("job", "a", 600_000, None)).await;
    cluster.hang_disk(1);
    let disk = cluster.disk(1);
    let asked = node.clone();
    let write = tokio::spawn(async move { drop(ask(&asked, acquire("other", "a", 600_000, None)).await) });
    tokio::time::timeout(Duration::from_secs(60), disk.wait_unsynced()).await.expect("the leader writes the claim");
    for _ in 0..2 {
        tokio::time::advance(Duration::from_secs(40)).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    disk.set_mode(SyncMode::Inline);
    disk.sync();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(node.health().failed, None, "the disk has finished the write");
    write.await.expect("no panic");
    held(&node, acquire("job", "a", 600_000, None)).await;
    cluster.shutdown().await;
}
