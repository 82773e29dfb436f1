//! `reads_are_current` in schedules in which stock openraft serves stale local reads.
//!
//! Patches in `tests/mutants` remove one protection each. They show that the schedules still reproduce the hazards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::config::{LeaseSettings, RaftTimings};
use tenure::lease::{Acquire, Command, Outcome, Refusal};
use tenure::node::{Answer, Consistency, Forward, Query, Request};
use tenure::testing::{Cluster, Cut, NodeTime, Setup, SuspendedClock, TestNode};
use tenure::types::{HolderId, LeaseName, MemberChange, Metadata, NodeId, Ttl};
use tokio::task::{JoinHandle, JoinSet};

/// Number of schedules of each kind. They differ in the timing of events.
const SCHEDULES: u64 = 24;

fn name() -> LeaseName {
    LeaseName::new("job").expect("valid")
}

fn acquire(by: &str) -> Request {
    Request::Acquire(Acquire {
        name: name(),
        holder: HolderId::new(by).expect("valid"),
        ttl: Ttl::INFINITE,
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
    // All nodes apply the lease. Then no entry follows, because the lease has no deadline.
    tokio::time::sleep(Duration::from_millis(300)).await;
    (cluster, leader, second, third)
}

async fn hold(node: &TestNode, by: &str) {
    let held = node.request(acquire(by), Forward::Once).await.expect("answered");
    assert!(matches!(held.answer, Answer::Outcome(Outcome::Held { .. })), "{held:?}");
}

/// The holder that the node reads from its memory, if it answers within 1 ms.
async fn read_at(node: &TestNode) -> Option<String> {
    let read = Request::Read { query: Query::Lease(name()), consistency: Consistency::Leader };
    let answered = tokio::time::timeout(Duration::from_millis(1), node.request(read, Forward::Never)).await;
    match answered.ok()?.ok()?.answer {
        Answer::Lease(leases) => leases.first().map(|lease| lease.holder.to_string()),
        other => panic!("{other:?}"),
    }
}

/// The holder that a linearizable read returns, if the node answers.
async fn read_linearizable(node: &TestNode, forward: Forward) -> Option<String> {
    let read = Request::Read { query: Query::Lease(name()), consistency: Consistency::Linearizable };
    match node.request(read, forward).await.ok()?.answer {
        Answer::Lease(leases) => leases.first().map(|lease| lease.holder.to_string()),
        other => panic!("{other:?}"),
    }
}

/// The holder in the node's refusal of an acquire, if the node answers within 1 ms.
async fn refused_at(node: &TestNode) -> Option<String> {
    let refused = tokio::time::timeout(Duration::from_millis(1), node.request(acquire("newcomer"), Forward::Never));
    match refused.await.ok()?.ok()?.answer {
        Answer::Outcome(Outcome::Refused(Refusal::Held { holder, .. })) => Some(holder.to_string()),
        other => panic!("{other:?}"),
    }
}

/// Grants the lease to another holder at the first leader among `at`. Returns whether there was one within this time.
async fn overtake(cluster: &Cluster, at: &[NodeId], within: Duration) -> bool {
    let revoke = || Request::Change(Command::Revoke { name: name(), reason: "test".into() });
    let deadline = tokio::time::Instant::now() + within;
    while tokio::time::Instant::now() < deadline {
        for &id in at {
            let revoked = cluster.node(id).request(revoke(), Forward::Never);
            let revoked = tokio::time::timeout(Duration::from_millis(20), revoked).await;
            if matches!(revoked, Ok(Ok(_))) {
                hold(cluster.node(id), "new").await;
                return true;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// Grants the lease to another holder at the first leader among `at`, then reads at `old`. It gives up after one
/// leadership lease. Returns whether the read was stale.
async fn overtake_and_read(cluster: &Cluster, at: &[NodeId], old: NodeId) -> bool {
    overtake(cluster, at, RaftTimings::lan().leadership_lease()).await && reads_old(cluster.node(old)).await
}

async fn reads_old(node: &TestNode) -> bool {
    read_at(node).await.is_some_and(|holder| holder == "old")
}

/// A follower restarts within the leadership lease that it granted, while its leader is isolated. Together with a third
/// node, whose granted lease has expired, it could elect another leader. The old leader still relies on the follower's
/// last acknowledgement. Returns whether a read was stale.
async fn restarted_follower(schedule: u64) -> bool {
    let (mut cluster, leader, second, third) = start().await;
    cluster.board.isolate(third, cluster.ids());
    tokio::time::sleep(RaftTimings::lan().leadership_lease() + Duration::from_millis(10 * schedule)).await;
    cluster.crash(second).await;
    cluster.board.heal();
    cluster.board.isolate(leader, cluster.ids());
    cluster.restart(second).await;
    let stale = overtake_and_read(&cluster, &[second, third], leader).await;
    cluster.shutdown().await;
    stale
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_after_a_restart_inside_a_vote_lease() {
    for schedule in 0..SCHEDULES {
        assert!(!restarted_follower(schedule).await, "a stale read in schedule {schedule}");
    }
}

/// A node restarts with a shorter leadership lease than it granted before, and with the fastest clock within the drift.
/// The granted lease is in force for its whole length in true time. A crash during the quarantine does not shorten it.
#[tokio::test(start_paused = true)]
async fn quarantine_outlasts_each_vote_lease_on_a_fast_clock() {
    let (long, short) = (RaftTimings::wan(), RaftTimings::lan());
    let time = NodeTime::new(tokio::time::Instant::now(), 1.0 + long.drift_permille as f64 / 1000.0);
    let setup = Setup { timings: long, node_times: [(1, time)].into(), ..Setup::default() };
    let mut cluster = Cluster::start_with(1, setup).await;
    cluster.leader().await;
    cluster.crash(1).await;
    cluster.set_timings(1, short);
    for waited in [short.leadership_lease(), long.leadership_lease() / 2] {
        let start = cluster.launch(1);
        assert!(tokio::time::timeout(waited, start).await.is_err(), "the node started within {waited:?}");
        assert!(cluster.cut_power(1, Cut::Keep(0)).is_none(), "the node did not start");
    }
    let began = tokio::time::Instant::now();
    cluster.restart(1).await;
    let (vote_lease, quarantine) = (long.leadership_lease(), began.elapsed());
    assert!(quarantine >= vote_lease, "quarantine of {quarantine:?}: expected at least the lease of {vote_lease:?}");
    assert!(quarantine < vote_lease * 11 / 10, "quarantine of {quarantine:?} for a lease of only {vote_lease:?}");
    // The long vote lease is over, so later starts wait for the short one.
    cluster.crash(1).await;
    let began = tokio::time::Instant::now();
    cluster.restart(1).await;
    assert!(began.elapsed() < 2 * short.leadership_lease(), "the next start took {:?}", began.elapsed());
    cluster.shutdown().await;
}

/// A leader transfers its leadership and crashes at once. If it leads again without an election, it does not remember
/// the transfer, and a follower that has not voted yet acknowledges it again. Returns whether a read was stale.
async fn restored_leader(schedule: u64) -> bool {
    let (mut cluster, leader, second, third) = start().await;
    // The successor's vote request reaches the third node late, and never reaches the old leader.
    cluster.board.cut(second, leader);
    cluster.board.delay(second, third, Duration::from_millis(10 + 10 * schedule));
    let old = cluster.node(leader).clone();
    let transfer = tokio::spawn(async move { old.transfer_leadership_to(second).await });
    tokio::time::sleep(Duration::from_millis(3)).await;
    cluster.crash(leader).await;
    transfer.abort();
    cluster.restart(leader).await;
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
async fn reads_are_current_when_leader_crashes_during_transfer() {
    for schedule in 0..SCHEDULES {
        assert!(!restored_leader(schedule).await, "a stale read in schedule {schedule}");
    }
}

/// The leader's machine is suspended with its process and its monotonic clock. Meanwhile the other nodes elect another
/// leader and write. Then the machine resumes in isolation. Returns whether a read at the old leader was stale.
async fn suspended_leader(schedule: u64) -> bool {
    let began = tokio::time::Instant::now();
    let node_times: BTreeMap<NodeId, NodeTime> = (1..=3).map(|id| (id, NodeTime::new(began, 1.0))).collect();
    let machines = node_times.clone();
    let setup = Setup {
        timings: RaftTimings::lan(),
        clock: Arc::new(move |id| Arc::new(SuspendedClock::new(machines[&id].clone()))),
        node_times: node_times.clone(),
        ..Setup::default()
    };
    let (cluster, leader, second, third) = start_with(setup).await;
    tokio::time::sleep(Duration::from_millis(schedule)).await;
    cluster.board.isolate(leader, cluster.ids());
    cluster.board.pause(leader);
    node_times[&leader].suspend();
    let next = cluster.leader_except(&[leader]).await;
    let revoke = Request::Change(Command::Revoke { name: name(), reason: "test".into() });
    cluster.node(next).request(revoke, Forward::Never).await.expect("answered");
    hold(cluster.node(next), "new").await;
    node_times[&leader].resume();
    cluster.board.resume(leader);
    // The first read must not reset the detected suspend: the second read is as stale as the first.
    let holders = [read_at(cluster.node(leader)).await, read_at(cluster.node(leader)).await];
    let stale = Request::Read { query: Query::Lease(name()), consistency: Consistency::Stale };
    let age = cluster.node(leader).request(stale, Forward::Never).await.expect("answered").served.stale_ms;
    assert!(age >= Some(325), "stale_ms is {age:?}: expected at least 325 ms, the length of the leadership lease");
    cluster.board.heal();
    cluster.leader().await;
    for id in [leader, second, third] {
        assert_eq!(read_forwarded(cluster.node(id)).await, "new");
    }
    cluster.shutdown().await;
    holders.into_iter().flatten().any(|holder| holder == "old")
}

/// A transfer of leadership times out, and its call reaches the target later. The voters elect the target at once,
/// despite the leases that they granted to the old leader. With `overlapping`, an earlier transfer is still in
/// progress. Returns whether a read at the old leader was stale.
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
    let timed_out = transfer_leadership(Duration::from_millis(10));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let stale = overtake_and_read(&cluster, &[second], leader).await;
    earlier.into_iter().chain([timed_out]).for_each(|task| task.abort());
    cluster.board.clear_faults();
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

/// A leader is isolated. The other nodes elect another leader, which grants the lease to another holder. The test reads
/// at the old leader until well after the end of its leadership. Returns whether a read or a refusal was stale.
async fn isolated_leader(schedule: u64) -> bool {
    let (cluster, leader, ..) = start().await;
    tokio::time::sleep(Duration::from_millis(5 * schedule)).await;
    let began = tokio::time::Instant::now();
    cluster.board.isolate(leader, cluster.ids());
    let next = cluster.leader_except(&[leader]).await;
    let revoke = Request::Change(Command::Revoke { name: name(), reason: "test".into() });
    cluster.node(next).request(revoke, Forward::Never).await.expect("answered");
    hold(cluster.node(next), "new").await;
    let mut holders = Vec::new();
    let mut confirmed = JoinSet::new();
    while began.elapsed() < RaftTimings::lan().isolation() * 2 {
        let old = cluster.node(leader);
        holders.extend(read_at(old).await.into_iter().chain(refused_at(old).await));
        for forward in [Forward::Never, Forward::Once] {
            let old = old.clone();
            confirmed.spawn(async move { read_linearizable(&old, forward).await });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.board.heal();
    holders.extend(confirmed.join_all().await.into_iter().flatten());
    cluster.shutdown().await;
    holders.contains(&"old".to_owned())
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_after_the_leader_was_cut_off() {
    let mut stale = 0;
    for schedule in (0..SCHEDULES).step_by(3) {
        stale += u64::from(isolated_leader(schedule).await);
    }
    assert_eq!(stale, 0, "schedules with a stale read or refusal");
}

/// The holder that the cluster returns for a request to `node`.
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
        stale += u64::from(suspended_leader(schedule).await);
    }
    assert_eq!(stale, 0, "stale reads of {SCHEDULES} schedules");
}

/// The leader is removed, and another node takes over. It is no member any more, so it hears nothing of that. Returns
/// whether one of its reads was stale.
async fn removed_leader(schedule: u64) -> bool {
    let (cluster, leader, second, third) = start().await;
    tokio::time::sleep(Duration::from_millis(7 * schedule)).await;
    let remove = MemberChange::Remove { id: leader, force: false };
    let removed = cluster.node(second).change_members(remove).await;
    assert!(removed.is_ok(), "{removed:?}");
    let stale = overtake_and_read(&cluster, &[second, third], leader).await;
    cluster.shutdown().await;
    stale
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_when_the_leader_is_removed() {
    for schedule in 0..SCHEDULES {
        assert!(!removed_leader(schedule).await, "schedule {schedule}: a stale read");
    }
}

/// The node that stays with the leader during a replacement.
#[derive(Clone, Copy, Debug)]
enum Companion {
    Replaced,
    New,
}

/// A voter is replaced. At a moment of that, the leader and its companion lose the other two nodes. If these elect a
/// leader, it grants the lease to another holder. Returns whether a read at the old leader was stale, or `None` if there
/// was no other leader.
async fn replacement(companion: Companion, millis: u64) -> Option<bool> {
    const NEW: NodeId = 4;
    const SLOW: Duration = Duration::from_millis(4);
    let (mut cluster, leader, replaced, third) = start().await;
    let add = cluster.prepare_joining(NEW);
    cluster.restart(NEW).await;
    cluster.node(leader).change_members(add).await.expect("the node is added");
    if matches!(companion, Companion::New) {
        // The other two do not learn of the change at once, so that they can elect a leader by the old voters.
        for id in [replaced, third] {
            cluster.board.delay(leader, id, SLOW);
        }
    }
    // One attempt at a time, until the new node has caught up.
    let mut attempt: Option<JoinHandle<_>> = None;
    while !cluster.node(leader).changes_voters() {
        if attempt.as_ref().is_none_or(JoinHandle::is_finished) {
            let node = cluster.node(leader).clone();
            let replace = MemberChange::Replace { old: replaced, new: NEW };
            attempt = Some(tokio::spawn(async move { node.change_members(replace).await }));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(millis)).await;
    let (with, without) = match companion {
        Companion::Replaced => (replaced, [third, NEW]),
        Companion::New => (NEW, [replaced, third]),
    };
    for id in [leader, with] {
        cluster.board.isolate(id, without);
    }
    cluster.board.clear_faults();
    let mut stale = None;
    if overtake(&cluster, &without, RaftTimings::lan().leadership_lease() * 6).await {
        // A leader without a majority sends no heartbeats in every other interval.
        let began = tokio::time::Instant::now();
        while stale != Some(true) && began.elapsed() < RaftTimings::lan().isolation() * 2 {
            stale = Some(reads_old(cluster.node(leader)).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    cluster.shutdown().await;
    stale
}

#[tokio::test(start_paused = true)]
async fn reads_are_current_while_voters_are_replaced() {
    for companion in [Companion::Replaced, Companion::New] {
        let mut overtaken = 0;
        // The election timeouts are random, so another round can reach the case that the first one did not.
        for number in 0..100 {
            if number >= 10 && overtaken >= 2 {
                break;
            }
            let millis = number % 10;
            let stale = replacement(companion, millis).await;
            assert_ne!(stale, Some(true), "a stale read {millis} ms after the change began, beside {companion:?}");
            overtaken += u32::from(stale.is_some());
        }
        assert!(overtaken >= 2, "with {companion:?}, another leader was elected in only {overtaken} schedules");
    }
}
