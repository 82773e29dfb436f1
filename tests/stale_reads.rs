//! `reads_are_current`, in the four schedules in which openraft as it comes answers a leader's local read from the
//! past; each run with its safeguard and without it, so that the test is known to see what it looks for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::clock::Clock;
use tenure::config::{LeaseSettings, RaftTimings};
use tenure::lease::{Acquire, Command, Outcome, Refusal};
use tenure::node::{Answer, Consistency, Forward, Query, Request};
use tenure::testing::{Cluster, Cut, ForNode, NodeTime, Safeguards, Setup, SuspendedClock, TestNode, TokioClock};
use tenure::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};
use tokio::task::JoinSet;

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
    start_with(Setup { timings: RaftTimings::lan(), lease: LeaseSettings::default(), ..Setup::default() }).await
}

async fn start_with(setup: Setup) -> (Cluster, NodeId, NodeId, NodeId) {
    let cluster = Cluster::start_with(3, setup).await;
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

/// The holder that a linearizable read tells, if it has an answer.
async fn read_linearizable(node: &TestNode, forward: Forward) -> Option<String> {
    let read = Request::Read { query: Query::Lease(name()), consistency: Consistency::Linearizable };
    match node.request(read, forward).await.ok()?.answer {
        Answer::Lease(leases) => leases.first().map(|lease| lease.holder.to_string()),
        other => panic!("{other:?}"),
    }
}

/// Whom the node names as the holder when it refuses a claim, if it does so within a moment.
async fn refused_at(node: &TestNode) -> Option<String> {
    let refused = tokio::time::timeout(Duration::from_millis(1), node.request(acquire("newcomer"), Forward::Never));
    match refused.await.ok()?.ok()?.answer {
        Answer::Outcome(Outcome::Refused(Refusal::Held { holder, .. })) => Some(holder.to_string()),
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

/// A node restarts with a shorter leadership lease than it promised before, and its clock is as fast as the drift allows.
/// The promise may be in force for its whole length in true time, also after a crash in the quarantine.
#[tokio::test(start_paused = true)]
async fn quarantine_outlasts_each_promise_on_a_fast_clock() {
    let (long, short) = (RaftTimings::wan(), RaftTimings::lan());
    let pace = NodeTime::new(tokio::time::Instant::now(), 1.0 + long.drift_permille as f64 / 1000.0);
    let setup = Setup { timings: long, paces: [(1, pace)].into(), ..Setup::default() };
    let mut cluster = Cluster::start_with(1, setup).await;
    cluster.leader().await;
    cluster.crash(1).await;
    cluster.set_timings(1, short);
    for waited in [short.leadership_lease(), long.leadership_lease() / 2] {
        let start = cluster.launch(1, Safeguards::default());
        assert!(tokio::time::timeout(waited, start).await.is_err(), "it started within {waited:?}");
        assert!(cluster.cut_power(1, Cut::Keep(0)).is_none(), "it did not start");
    }
    let began = tokio::time::Instant::now();
    cluster.restart(1).await;
    let (promise, kept_still) = (long.leadership_lease(), began.elapsed());
    assert!(kept_still >= promise, "it kept still for {kept_still:?}, and promised {promise:?}");
    assert!(kept_still < promise * 11 / 10, "it kept still for {kept_still:?}, and promised only {promise:?}");
    cluster.shutdown().await;
}

/// A leader hands its leadership on and crashes at once. Restored without an election it has forgotten that it did,
/// and a follower that has not yet voted acknowledges it once more.
async fn restored_leader(schedule: u64, safeguards: Safeguards) -> bool {
    let (mut cluster, leader, second, third) = start().await;
    // The successor's call for votes is slow to reach the third node, and cannot reach the old leader.
    cluster.board.cut(second, leader);
    cluster.board.delay(second, third, Duration::from_millis(10 + 10 * schedule));
    let old = cluster.node(leader).clone();
    let handing = tokio::spawn(async move { old.transfer_leadership_to(second).await });
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

/// The leader's machine is suspended, with its process and its monotonic clock, while the others elect another leader
/// and write. Then it goes on, cut off. Whether a read there told the past.
async fn suspended_leader(schedule: u64, counts_suspend: bool) -> bool {
    let began = tokio::time::Instant::now();
    let paces: BTreeMap<NodeId, NodeTime> = (1..=3).map(|id| (id, NodeTime::new(began, 1.0))).collect();
    let machines = paces.clone();
    let clock: ForNode<dyn Clock> = Arc::new(move |id| {
        if counts_suspend { Arc::new(SuspendedClock::new(machines[&id].clone())) } else { Arc::new(TokioClock::new()) }
    });
    let setup = Setup { timings: RaftTimings::lan(), clock, paces: paces.clone(), ..Setup::default() };
    let (cluster, leader, second, third) = start_with(setup).await;
    tokio::time::sleep(Duration::from_millis(schedule)).await;
    cluster.board.isolate(leader, cluster.ids());
    cluster.board.stop(leader);
    paces[&leader].suspend();
    let next = cluster.leader_except(&[leader]).await;
    let revoke = Request::Change(Command::Revoke { name: name(), reason: "test".into() });
    cluster.node(next).request(revoke, Forward::Never).await.expect("answered");
    hold(cluster.node(next), "new").await;
    paces[&leader].go_on();
    cluster.board.go_on(leader);
    // A look at the clock must not use the suspend up: the second read is as old as the first.
    let said = [read_at(cluster.node(leader)).await, read_at(cluster.node(leader)).await];
    let stale = Request::Read { query: Query::Lease(name()), consistency: Consistency::Stale };
    let age = cluster.node(leader).request(stale, Forward::Never).await.expect("answered").served.stale_ms;
    assert!(!counts_suspend || age >= Some(325), "it says that it was suspended for {age:?} ms");
    cluster.board.heal();
    cluster.leader().await;
    for id in [leader, second, third] {
        assert_eq!(read_forwarded(cluster.node(id)).await, "new");
    }
    cluster.shutdown().await;
    said.into_iter().flatten().any(|holder| holder == "old")
}

/// A leader gives a hand-over up, and its call to the target arrives later: the target is elected at once, although the
/// others promised the old leader not to. With `overlapping` an earlier hand-over is still waited for. Whether a read at
/// the old leader told the past.
async fn late_transfer(schedule: u64, overlapping: bool) -> bool {
    let (cluster, leader, second, _) = start().await;
    cluster.board.cut(second, leader);
    cluster.board.delay(leader, second, Duration::from_millis(30 + 2 * schedule));
    let old = cluster.node(leader).clone();
    let transfer_leadership = |timeout| {
        let old = old.clone();
        tokio::spawn(async move { old.transfer_leadership_within(second, timeout).await })
    };
    let earlier = overlapping.then(|| transfer_leadership(Duration::from_secs(60)));
    let given_up = transfer_leadership(Duration::from_millis(10));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let stale = overtake_and_read(&cluster, &[second], leader).await;
    earlier.into_iter().chain([given_up]).for_each(|task| task.abort());
    cluster.board.calm();
    cluster.board.heal();
    cluster.leader().await;
    cluster.shutdown().await;
    stale
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_when_a_transfer_arrives_late() {
    let mut stale = 0;
    for schedule in 0..SCHEDULES {
        stale += u64::from(late_transfer(schedule, false).await);
    }
    assert_eq!(stale, 0, "stale reads of {SCHEDULES} schedules");
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_when_transfers_overlap() {
    let mut stale = 0;
    for schedule in 0..SCHEDULES {
        stale += u64::from(late_transfer(schedule, true).await);
    }
    assert_eq!(stale, 0, "stale reads of {SCHEDULES} schedules");
}

/// A leader is cut off, and the others elect another, which gives the lease to another holder. Whether the old leader
/// tells the past, in a read or in a refusal, at any time until long after it had to stop.
async fn cut_off_leader(schedule: u64) -> bool {
    let (cluster, leader, ..) = start().await;
    tokio::time::sleep(Duration::from_millis(5 * schedule)).await;
    let began = tokio::time::Instant::now();
    cluster.board.isolate(leader, cluster.ids());
    let next = cluster.leader_except(&[leader]).await;
    let revoke = Request::Change(Command::Revoke { name: name(), reason: "test".into() });
    cluster.node(next).request(revoke, Forward::Never).await.expect("answered");
    hold(cluster.node(next), "new").await;
    let mut told = Vec::new();
    let mut confirmed = JoinSet::new();
    while began.elapsed() < RaftTimings::lan().isolation() * 2 {
        let old = cluster.node(leader);
        told.extend(read_at(old).await.into_iter().chain(refused_at(old).await));
        for forward in [Forward::Never, Forward::Once] {
            let old = old.clone();
            confirmed.spawn(async move { read_linearizable(&old, forward).await });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.board.heal();
    told.extend(confirmed.join_all().await.into_iter().flatten());
    cluster.shutdown().await;
    told.contains(&"old".to_owned())
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_after_the_leader_was_cut_off() {
    let mut stale = 0;
    for schedule in (0..SCHEDULES).step_by(3) {
        stale += u64::from(cut_off_leader(schedule).await);
    }
    assert_eq!(stale, 0, "schedules with a stale read or refusal");
}

/// What the cluster says, asked at `node`.
async fn read_forwarded(node: &TestNode) -> String {
    let read = Request::Read { query: Query::Lease(name()), consistency: Consistency::Leader };
    match node.request(read, Forward::Once).await.expect("answered").answer {
        Answer::Lease(leases) => leases[0].holder.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_after_the_leader_was_suspended() {
    let mut stale = 0;
    for schedule in 0..SCHEDULES {
        stale += u64::from(suspended_leader(schedule, true).await);
    }
    assert_eq!(stale, 0, "stale reads of {SCHEDULES} schedules");
}

#[tokio::test(start_paused = true)]
async fn without_the_suspend_meter_a_suspended_leader_makes_reads_stale() {
    let mut stale = 0;
    for schedule in 0..SCHEDULES {
        stale += u64::from(suspended_leader(schedule, false).await);
    }
    println!("stale reads without the suspend meter: {stale} of {SCHEDULES}");
    assert!(stale > 0, "the schedule no longer shows what the suspend meter is for");
}
