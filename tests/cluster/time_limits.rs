//! How long a node waits for a leader: the timings that docs/operations.md and docs/http.md document.

use std::time::Duration;

use tenure::config::RaftTimings;
use tenure::lease::Command;
use tenure::node::{Request, RequestError};
use tenure::testing::{Cluster, Setup};
use tokio::time::Instant;

use super::{acquire, ask, held, holder, name, start};

/// A node checks the end of the time at its next attempt.
const PAUSE: Duration = Duration::from_millis(50);

/// The timings, the time without a leader after which a request fails, and the time without a commit after which its
/// outcome is unknown.
fn profiles() -> [(RaftTimings, Duration, Duration); 2] {
    let lan = (RaftTimings::lan(), Duration::from_millis(1_300), Duration::from_secs(5));
    let wan = (RaftTimings::wan(), Duration::from_secs(16), Duration::from_secs(12));
    [lan, wan]
}

#[tokio::test(start_paused = true)]
async fn no_leader_comes_after_the_documented_time() {
    for (timings, leaderless, _) in profiles() {
        let mut cluster = Cluster::prepare(3, Setup { timings, ..Setup::default() });
        cluster.restart(1).await;
        let began = Instant::now();
        let refused = ask(cluster.node(1), acquire("job", "a", 10_000, None)).await;
        let took = began.elapsed();
        assert_eq!(refused, Err(RequestError::NoLeader), "after {took:?}");
        assert!((leaderless..=leaderless + PAUSE).contains(&took), "{took:?}, not {leaderless:?}");
    }
}

/// The follower's release reaches the leader, and its answer is lost.
#[tokio::test(start_paused = true)]
async fn unknown_outcome_comes_after_the_documented_time() {
    for (timings, _, uncommitted) in profiles() {
        let cluster = Cluster::start_with(3, Setup { timings, ..Setup::default() }).await;
        let leader = cluster.leader().await;
        let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
        let lease = held(cluster.node(follower), acquire("job", "a", 600_000, None)).await;
        cluster.board.cut(leader, follower);
        let release = Command::Release { name: name("job"), holder: holder("a"), token: lease.token };
        let began = Instant::now();
        let answer = ask(cluster.node(follower), Request::Change(release)).await;
        let took = began.elapsed();
        assert!(matches!(answer, Err(RequestError::Unknown(_))), "after {took:?}: {answer:?}");
        assert!((uncommitted..=uncommitted + PAUSE).contains(&took), "{took:?}, not {uncommitted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn status_waits_at_most_250_ms_for_a_frozen_leader() {
    let cluster = start().await;
    let leader = cluster.leader().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    cluster.board.pause(leader);
    let began = Instant::now();
    let status = cluster.node(follower).status().await;
    let took = began.elapsed();
    assert!(took <= Duration::from_millis(260), "{took:?}");
    assert_eq!((status.leader, status.members.len()), (None, 3), "{status:?}");
    assert!(status.members.iter().all(|member| member.lag.is_none()), "{status:?}");
}
