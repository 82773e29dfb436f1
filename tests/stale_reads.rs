//! `reads_are_current`, in the two schedules in which openraft as it comes answers a leader's local read from the
//! past; each run with its safeguard and without it, so that the test is known to see what it looks for.

use std::time::Duration;

use tenure::config::{LeaseSettings, RaftTimings};
use tenure::lease::{Acquire, Command, Outcome};
use tenure::node::{Answer, Consistency, Forward, Query, Request};
use tenure::testing::{Cluster, Safeguards, TestNode};
use tenure::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};

/// How many schedules of each kind are tried; they differ in when things happen.
const SCHEDULES: u64 = 24;

fn name() -> LeaseName {
    LeaseName::new("job").expect("valid")
}

fn acquire(by: &str) -> Request {
    Request::Acquire(Acquire {
        name: name(),
        holder: HolderId::new(by).expect("valid"),
        ttl: Ttl::Infinite,
        wait_ms: None,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

async fn start() -> (Cluster, NodeId, NodeId, NodeId) {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let mut others = cluster.ids().filter(|id| *id != leader);
    let (second, third) = (others.next().expect("three"), others.next().expect("three"));
    hold(cluster.node(leader), "old").await;
    // Everybody has it, and nothing is written any more: the lease has no deadline.
    tokio::time::sleep(Duration::from_millis(300)).await;
    (cluster, leader, second, third)
}

async fn hold(node: &TestNode, by: &str) {
    let held = node.request(acquire(by), Forward::Once).await.expect("answered");
    assert!(matches!(held.answer, Answer::Outcome(Outcome::Held { .. })), "{held:?}");
}

/// What the node says from its own memory, if it answers within a moment.
async fn read_at(node: &TestNode) -> Option<String> {
    let read = Request::Read { query: Query::Lease(name()), consistency: Consistency::Leader };
    let answered = tokio::time::timeout(Duration::from_millis(1), node.request(read, Forward::Never)).await;
    match answered.ok()?.ok()?.answer {
        Answer::Lease(leases) => leases.first().map(|lease| lease.holder.to_string()),
        other => panic!("{other:?}"),
    }
}

/// Gives the lease to another holder at whichever of `at` leads first, then reads at `old` until `old` would have had
/// to stop. Whether that read told the past.
async fn overtake_and_read(cluster: &Cluster, at: &[NodeId], old: NodeId) -> bool {
    let revoke = || Request::Change(Command::Revoke { name: name(), reason: "test".into() });
    let deadline = tokio::time::Instant::now() + RaftTimings::lan().leadership_lease();
    while tokio::time::Instant::now() < deadline {
        for &id in at {
            let revoked = cluster.node(id).request(revoke(), Forward::Never);
            let revoked = tokio::time::timeout(Duration::from_millis(20), revoked).await;
            if matches!(revoked, Ok(Ok(_))) {
                hold(cluster.node(id), "new").await;
                return read_at(cluster.node(old)).await.is_some_and(|holder| holder == "old");
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// A follower restarts inside the leadership lease that it granted, while its leader is cut off: with a third node
/// that heard nothing for longer it can elect another, and the old leader still trusts its last acknowledgement.
async fn restarted_follower(schedule: u64, safeguards: Safeguards) -> bool {
    let (mut cluster, leader, second, third) = start().await;
    cluster.board.isolate(third, cluster.ids());
    tokio::time::sleep(RaftTimings::lan().leadership_lease() + Duration::from_millis(10 * schedule)).await;
    cluster.crash(second).await;
    cluster.board.heal();
    cluster.board.isolate(leader, cluster.ids());
    cluster.restart_without(second, safeguards).await;
    let stale = overtake_and_read(&cluster, &[second, third], leader).await;
    cluster.shutdown().await;
    stale
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_when_a_follower_restarts_inside_its_promise() {
    for schedule in 0..SCHEDULES {
        assert!(!restarted_follower(schedule, Safeguards::default()).await, "a stale read in schedule {schedule}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_quarantine_a_restarted_follower_makes_reads_stale() {
    let mut stale = 0;
    for schedule in 0..SCHEDULES {
        stale +=
            u64::from(restarted_follower(schedule, Safeguards { quarantine: false, ..Safeguards::default() }).await);
    }
    println!("stale reads without the quarantine: {stale} of {SCHEDULES}");
    assert!(stale > 0, "the schedule no longer shows what the quarantine is for");
}

/// A leader hands its leadership on and crashes at once. Restored without an election it has forgotten that it did,
/// and a follower that has not yet voted acknowledges it once more.
async fn restored_leader(schedule: u64, safeguards: Safeguards) -> bool {
    let (mut cluster, leader, second, third) = start().await;
    // The successor's call for votes is slow to reach the third node, and cannot reach the old leader.
    cluster.board.cut(second, leader);
    cluster.board.delay(second, third, Duration::from_millis(10 + 10 * schedule));
    let old = cluster.node(leader).clone();
    let handing = tokio::spawn(async move { old.hand_leadership_to(second).await });
    tokio::time::sleep(Duration::from_millis(3)).await;
    cluster.crash(leader).await;
    handing.abort();
    cluster.restart_without(leader, safeguards).await;
    let deadline = tokio::time::Instant::now() + RaftTimings::lan().leadership_lease();
    while cluster.node(second).status().await.leader != Some(second) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    cluster.board.delay(second, third, Duration::from_micros(200));
    let stale = overtake_and_read(&cluster, &[second], leader).await;
    cluster.shutdown().await;
    stale
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_when_a_leader_crashes_while_it_hands_leadership_on() {
    for schedule in 0..SCHEDULES {
        assert!(!restored_leader(schedule, Safeguards::default()).await, "a stale read in schedule {schedule}");
        let quick = Safeguards { quarantine: false, ..Safeguards::default() };
        assert!(!restored_leader(schedule, quick).await, "a stale read in schedule {schedule} without a quarantine");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_restored_without_an_election_makes_reads_stale() {
    let mut stale = 0;
    for schedule in 0..SCHEDULES {
        let restored = Safeguards { quarantine: false, reelection: false, ..Safeguards::default() };
        stale += u64::from(restored_leader(schedule, restored).await);
    }
    println!("stale reads with a restored leader: {stale} of {SCHEDULES}");
    assert!(stale > 0, "the schedule no longer shows what the election after a restart is for");
}
