//! The status of a cluster as each of its nodes sees it.

use std::time::Duration;

use tokio::time::Instant;

use super::start;

/// Without an answer of the leader, a follower knows only when the leader sent it a message.
#[tokio::test(start_paused = true)]
async fn isolated_follower_has_a_contact_time_of_its_leader_only() {
    const ISOLATED_MS: u64 = 5_000;
    let cluster = start().await;
    let leader = cluster.leader().await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (follower, third) = (others.next().expect("three"), others.next().expect("three"));
    cluster.board.isolate(follower, cluster.ids());
    tokio::time::sleep(Duration::from_millis(ISOLATED_MS)).await;
    let status = cluster.node(follower).status().await;
    assert_eq!(status.leader, Some(leader), "{status:?}");
    let contact = |id| status.members.iter().find(|member| member.id == id).expect("a member").last_contact_ms;
    let heard = contact(leader).expect("the follower has heard the leader");
    assert!((ISOLATED_MS - 1_000..ISOLATED_MS + 1_000).contains(&heard), "{heard} ms since the last message");
    assert_eq!((contact(follower), contact(third)), (Some(0), None), "{status:?}");
    assert!(status.members.iter().all(|member| member.lag.is_none()), "only the leader knows lags: {status:?}");
    cluster.board.heal();
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn status_waits_250_ms_for_the_leader() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    cluster.board.isolate(follower, [leader]);
    let began = Instant::now();
    let status = cluster.node(follower).status().await;
    let waited = began.elapsed();
    assert!((Duration::from_millis(250)..=Duration::from_millis(260)).contains(&waited), "{waited:?}");
    assert_eq!((status.node, status.leader, status.members.len()), (follower, Some(leader), 3));
    assert!(status.members.iter().all(|member| member.lag.is_none()), "only the leader knows the lag: {status:?}");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn idle_cluster_writes_nothing() {
    let cluster = start().await;
    cluster.leader().await;
    // The leader records the disks of its voters.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let applied = async || {
        let mut applied = Vec::new();
        for id in cluster.ids() {
            applied.push(cluster.node(id).status().await.applied);
        }
        applied
    };
    let before = applied().await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(applied().await, before);
    cluster.shutdown().await;
}
