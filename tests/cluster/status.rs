//! The status of a cluster as each of its nodes sees it.

use std::time::Duration;

use tenure::config::RaftTimings;
use tenure::node::ClusterStatus;
use tenure::testing::Cluster;
use tenure::types::{MemberState, Role};
use tokio::time::Instant;

use super::{acquire, held, start};

#[tokio::test(start_paused = true)]
async fn isolated_follower_knows_the_last_contact_of_each_member() {
    const ISOLATED_MS: u64 = 5_000;
    let cluster = start().await;
    let leader = cluster.leader().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (follower, third) = (others.next().expect("three"), others.next().expect("three"));
    cluster.board.isolate(follower, cluster.ids());
    tokio::time::sleep(Duration::from_millis(ISOLATED_MS)).await;
    let status = cluster.node(follower).status().await;
    assert_eq!((status.leader, status.quorum), (None, false), "it may not lead any more: {status:?}");
    assert!(status.members.iter().all(|member| member.role == Role::Follower), "{status:?}");
    let contact = |id| status.members.iter().find(|member| member.id == id).expect("a member").last_contact_ms;
    for other in [leader, third] {
        let heard = contact(other).expect("the leader has told the follower of both");
        assert!((ISOLATED_MS - 1_000..ISOLATED_MS + 1_500).contains(&heard), "{heard} ms since the last contact");
    }
    assert_eq!(contact(follower), Some(0), "{status:?}");
    assert!(status.members.iter().all(|member| member.lag.is_none()), "only the leader knows lags: {status:?}");
    cluster.board.heal();
    cluster.shutdown().await;
}

/// The follower hears its leader, which does not hear the follower.
#[tokio::test(start_paused = true)]
async fn contact_with_the_leader_is_not_that_with_another_member() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (follower, third) = (others.next().expect("three"), others.next().expect("three"));
    cluster.board.cut(follower, leader);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let contact = async || {
        let status = cluster.node(follower).status().await;
        let of = |id| status.members.iter().find(|member| member.id == id).expect("a member");
        (of(leader).last_contact_ms, of(third).last_contact_ms, of(third).state)
    };
    assert!(matches!(contact().await, (Some(..1_000), Some(0), MemberState::Ok)), "{:?}", contact().await);
    cluster.board.isolate(follower, [third]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let seen = contact().await;
    assert!(matches!(seen, (Some(..1_000), Some(3_000..4_500), MemberState::Unreachable)), "{seen:?}");
    cluster.shutdown().await;
}

/// The states of the members, in the order of their ids.
fn states(status: &ClusterStatus) -> Vec<MemberState> {
    status.members.iter().map(|member| member.state).collect()
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
    assert_eq!((status.node, status.leader, status.quorum), (follower, None, false));
    assert!(status.members.iter().all(|member| member.lag.is_none()), "only the leader knows the lag: {status:?}");
    let unreachable = |id| if id == leader { MemberState::Unreachable } else { MemberState::Ok };
    assert_eq!(states(&status), cluster.ids().map(unreachable).collect::<Vec<_>>(), "the third node answers");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn each_node_remembers_the_leaders_since_its_start() {
    let mut cluster = start().await;
    let first = cluster.leader().await;
    cluster.crash(first).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let second = cluster.leader().await;
    for id in cluster.ids().filter(|id| *id != first) {
        let status = cluster.node(id).status().await;
        let leaders: Vec<_> = status.leader_changes.iter().map(|change| change.leader).collect();
        assert!(leaders.ends_with(&[first, second]), "{status:?}");
        let last = status.leader_changes.last().expect("the cluster has a leader");
        assert_eq!(last.term, status.term, "{status:?}");
        let age = status.wall_ms - last.wall_ms;
        assert!((3_000..5_000).contains(&age), "an election takes less than 2 s: {status:?}");
        assert!(status.leader_changes.is_sorted_by_key(|change| (change.term, change.wall_ms)), "{status:?}");
    }
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn node_remembers_the_last_32_leaders() {
    let cluster = start().await;
    for _ in 0..40 {
        let leader = cluster.leader().await;
        let next = cluster.ids().find(|id| *id != leader).expect("three nodes");
        // The next leader needs the first entry of this term.
        tokio::time::sleep(Duration::from_millis(100)).await;
        cluster.node(leader).transfer_leadership_to(next).await.expect("another node leads");
    }
    let leader = cluster.leader().await;
    // The nodes record the last leader.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for id in cluster.ids() {
        let status = cluster.node(id).status().await;
        assert_eq!(status.leader_changes.len(), 32, "at node {id}: {status:?}");
        let last = status.leader_changes.last().expect("it has 32");
        assert_eq!((last.leader, last.term), (leader, status.term), "at node {id}: {status:?}");
    }
    cluster.shutdown().await;
}

/// The follower lacks an entry, so it cannot win the election.
#[tokio::test(start_paused = true)]
async fn leader_that_is_elected_again_is_a_change() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (follower, third) = (others.next().expect("three"), others.next().expect("three"));
    cluster.board.isolate(follower, cluster.ids());
    held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    cluster.crash(third).await;
    cluster.crash(leader).await;
    cluster.board.heal();
    cluster.restart(leader).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let status = cluster.node(follower).status().await;
    let [.., before, after] = &status.leader_changes[..] else { panic!("two leaders: {status:?}") };
    assert_eq!((before.leader, after.leader), (leader, leader), "{status:?}");
    assert!(before.term < after.term && after.term == status.term, "{status:?}");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn status_shows_an_unreachable_member() {
    let mut cluster = start().await;
    let leader = cluster.leader().await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (dead, third) = (others.next().expect("three"), others.next().expect("three"));
    let seen = async |cluster: &Cluster, by| {
        let status = cluster.node(by).status().await;
        let state = |id| status.members.iter().find(|member| member.id == id).expect("a member").state;
        (status.quorum, state(leader), state(dead), state(third))
    };
    held(cluster.node(leader), acquire("job", "a", 60_000, None)).await;
    assert_eq!(seen(&cluster, third).await, (true, MemberState::Ok, MemberState::Ok, MemberState::Ok));
    cluster.crash(dead).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(seen(&cluster, third).await, (true, MemberState::Ok, MemberState::Unreachable, MemberState::Ok));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn survivor_of_three_reports_no_quorum() {
    for leads in [false, true] {
        let mut cluster = start().await;
        let leader = cluster.leader().await;
        let survivor = cluster.ids().find(|id| (*id == leader) == leads).expect("a leader and followers");
        let dead: Vec<_> = cluster.ids().filter(|id| *id != survivor).collect();
        for id in &dead {
            cluster.crash(*id).await;
        }
        // A leader leads until its leadership lease has expired.
        tokio::time::sleep(if leads { RaftTimings::lan().isolation() } else { Duration::ZERO }).await;
        let status = cluster.node(survivor).status().await;
        assert_eq!((status.quorum, status.leader), (false, None), "the survivor led: {leads}: {status:?}");
        for member in &status.members {
            let state = if member.id == survivor { MemberState::Ok } else { MemberState::Unreachable };
            assert_eq!((member.state, member.lag), (state, None), "the survivor led: {leads}: {member:?}");
        }
        for id in dead {
            cluster.restart(id).await;
        }
        // The new leader serves from the commit of its first entry on.
        held(cluster.node(survivor), acquire("job", "a", 1_000, None)).await;
        assert!(cluster.node(survivor).status().await.quorum);
        cluster.shutdown().await;
    }
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
