//! The status of the cluster at a node that does not reach its leader.

use std::time::Duration;

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
