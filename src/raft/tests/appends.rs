//! Appends of deposed leaders, and the age of a follower's state, in an in-memory cluster under a paused clock.

use std::time::Duration;

use tokio::time::Instant;

use super::super::level::FeatureLevel;
use super::super::wire::{self, Append, AppendReply, Call, ProcessTime, Reply, TransferCall};
use crate::config::{LeaseSettings, RaftTimings};
use crate::lease::{Batch, Command, Stamp};
use crate::node::{Consistency, Forward, Query, Request};
use crate::peer::{Lane, Payload, Transport};
use crate::raft::Proposal;
use crate::raft::types::position;
use crate::storage::{Storage, VoteRecord};
use crate::testing::{Cluster, Setup};
use crate::types::{LeaseName, NodeId};

const SOON: Duration = Duration::from_secs(30);
/// At least three intervals between heartbeats.
const HEARTBEATS: Duration = Duration::from_millis(250);
/// Highest age of the state of a follower in an idle cluster: a heartbeat echoes the time of the answer to the second one
/// before it, because a majority has acknowledged the one between them.
const IDLE_AGE: Duration = Duration::from_millis(235);

/// A follower that only a deposed leader reaches reports the age of its data, and knows no leader.
#[tokio::test(start_paused = true)]
async fn refused_append_does_not_refresh_leader_contact() {
    const CUT_OFF: Duration = Duration::from_secs(3);
    let mut cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let old = cluster.leader().await;
    let vote = cluster.disk(old).vote().expect("the leader voted for itself");
    // The followers learn that they have all that is committed.
    tokio::time::sleep(HEARTBEATS).await;
    cluster.crash(old).await;
    let next = cluster.leader_except(&[old]).await;
    let follower = cluster.ids().find(|id| ![old, next].contains(id)).expect("three nodes");
    cluster.board.isolate(follower, [next]);
    let cut = Instant::now();
    while cut.elapsed() < CUT_OFF {
        let append = Call::Append(Append { vote, previous: None, commit: None, entries: Vec::new() });
        let payload = Payload::Raft(wire::encode(&append));
        let answer = cluster.board.transport(old).call(follower, "in memory", Lane::Log, payload, SOON).await;
        let reply = wire::decode(&answer.expect("answered")).expect("readable");
        assert!(matches!(&reply, Reply::Append(AppendReply::HigherVote(newer)) if newer.term > vote.term), "{reply:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let query = Query::Lease(LeaseName::new("job").expect("valid"));
    let read = Request::Read { query, consistency: Consistency::Stale };
    let served = cluster.node(follower).request(read, Forward::Never).await.expect("answered").served;
    let stale = served.stale_ms.map(Duration::from_millis);
    assert!(stale >= Some(CUT_OFF), "{stale:?}");
    assert_eq!(cluster.node(follower).health().not_ready.as_deref(), Some("no leader is known"));
    cluster.shutdown().await;
}

/// Before its first commit, a new leader may know less than an earlier one has committed.
#[tokio::test(start_paused = true)]
async fn commit_of_an_earlier_term_does_not_refresh_the_age_of_the_state() {
    const HEARD: Duration = Duration::from_secs(3);
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    tokio::time::sleep(HEARTBEATS).await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let other = cluster.ids().find(|id| ![leader, follower].contains(id)).expect("three nodes");
    cluster.board.isolate(follower, [leader]);
    let commit = cluster.node(follower).raft().replica().read(|state| state.applied.as_ref().map(position));
    let before = cluster.disk(follower).vote().expect("it voted");
    let vote = VoteRecord { term: before.term + 1, candidate: Some(other), committed: true };
    let began = Instant::now();
    while began.elapsed() < HEARD {
        let append = Call::Append(Append { vote, previous: commit, commit, entries: Vec::new() });
        let payload = Payload::Raft(wire::encode(&append));
        let answer = cluster.board.transport(other).call(follower, "in memory", Lane::Log, payload, SOON).await;
        let reply = wire::decode(&answer.expect("answered")).expect("readable");
        assert!(matches!(reply, Reply::Append(AppendReply::Success)), "{reply:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let raft = cluster.node(follower).raft();
    assert!(raft.last_contact() < Some(HEARTBEATS), "{:?}", raft.last_contact());
    assert!(raft.state_age() >= Some(HEARD), "{:?}", raft.state_age());
    cluster.shutdown().await;
}

/// Heartbeats need neither the disk nor the state machine of a follower.
#[tokio::test(start_paused = true)]
async fn follower_that_does_not_apply_reports_the_age_of_its_state() {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let follower = cluster.node(cluster.ids().find(|id| *id != leader).expect("three nodes")).clone();
    let tick = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands: vec![Command::Tick] };
    let raft = cluster.node(leader).raft();
    let write = async || raft.propose(raft.leadership().term, Proposal::leases(&tick)).await.expect("it leads");
    write().await;
    tokio::time::sleep(HEARTBEATS).await;
    let age = || follower.raft().state_age().expect("it was complete");
    assert!(age() < IDLE_AGE, "{:?}", age());
    assert_eq!(follower.health().not_ready, None);
    let (resume, resumed) = tokio::sync::oneshot::channel::<()>();
    let stall = follower.raft().raft().external_state_machine_request(|_| Box::pin(async { _ = resumed.await }));
    stall.await.expect("Raft runs");
    for _ in 0..5 {
        write().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(follower.raft().last_contact() < Some(Duration::from_millis(100)), "its leader sends heartbeats");
    assert!((Duration::from_secs(5)..Duration::from_secs(5) + IDLE_AGE).contains(&age()), "{:?}", age());
    assert_eq!(follower.health().not_ready.as_deref(), Some("this node has not caught up with the leader"));
    resume.send(()).expect("the state machine waits");
    tokio::time::sleep(HEARTBEATS).await;
    assert!(age() < IDLE_AGE, "{:?}", age());
    assert_eq!(follower.health().not_ready, None);
    cluster.shutdown().await;
}

/// The followers have applied and shown an entry that the leader has not applied yet.
#[tokio::test(start_paused = true)]
async fn leader_that_does_not_apply_reports_the_age_of_its_state() {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.node(cluster.leader().await).clone();
    tokio::time::sleep(HEARTBEATS).await;
    let age = || leader.raft().state_age().expect("it was complete");
    assert!(age() < IDLE_AGE, "{:?}", age());
    let (resume, resumed) = tokio::sync::oneshot::channel::<()>();
    let stall = leader.raft().raft().external_state_machine_request(|_| Box::pin(async { _ = resumed.await }));
    stall.await.expect("Raft runs");
    let (writer, term) = (leader.clone(), leader.leadership().term);
    let tick = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands: vec![Command::Tick] };
    let write = tokio::spawn(async move { writer.raft().propose(term, Proposal::leases(&tick)).await });
    tokio::time::sleep(HEARTBEATS).await;
    let shown = cluster.ids().map(|id| cluster.node(id).raft().replica().applied_index());
    assert!(shown.max() > Some(leader.raft().replica().applied_index()), "the followers have applied it");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!((Duration::from_secs(5)..Duration::from_secs(5) + 2 * HEARTBEATS).contains(&age()), "{:?}", age());
    resume.send(()).expect("the state machine waits");
    write.await.expect("no panic").expect("it leads");
    assert!(age() < IDLE_AGE, "{:?}", age());
    cluster.shutdown().await;
}

/// After a transfer, the next leader waits for no leadership lease. The first leader and one follower do not hear of it.
#[tokio::test(start_paused = true)]
async fn follower_of_a_leader_that_was_replaced_knows_the_age_of_its_state() {
    let cluster = Cluster::start(5, RaftTimings::lan(), LeaseSettings::default()).await;
    let old = cluster.leader().await;
    tokio::time::sleep(2 * HEARTBEATS).await;
    let others: Vec<NodeId> = cluster.ids().filter(|id| *id != old).collect();
    let [follower, others @ ..] = &others[..] else { unreachable!("five nodes") };
    for other in others {
        cluster.board.cut(*other, old);
        cluster.board.isolate(*other, [*follower]);
    }
    let from = cluster.disk(old).vote().expect("the leader voted for itself");
    let (next, last) =
        (others[0], cluster.node(old).raft().replica().read(|state| state.applied.as_ref().map(position)));
    let transfer = Payload::Raft(wire::encode(&Call::Transfer(TransferCall { from, to: next, last })));
    let old_transport = cluster.board.transport(old);
    let transferred =
        tokio::spawn(async move { old_transport.call(next, "in memory", Lane::Control, transfer, SOON).await });
    let began = Instant::now();
    while cluster.node(next).raft().quorum_age().is_none() {
        assert!(began.elapsed() < Duration::from_millis(100), "the election takes no timeout");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (raft, tick) = (cluster.node(next).raft(), vec![Command::Tick]);
    let batch = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands: tick };
    raft.propose(raft.leadership().term, Proposal::leases(&batch)).await.expect("it leads");
    let shown = Instant::now();
    let follower = cluster.node(*follower).raft();
    // Less than a leadership lease.
    while shown.elapsed() < Duration::from_millis(300) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let age = follower.state_age().expect("it was complete");
        assert!(age >= shown.elapsed(), "{age:?} after {:?}", shown.elapsed());
        assert!(follower.last_contact() < Some(HEARTBEATS), "{:?}", follower.last_contact());
    }
    transferred.abort();
    cluster.shutdown().await;
}

/// The lowest and the highest age of the state of a follower, whose leader's messages take 40 ms.
async fn ages_behind_a_slow_link(older: &[NodeId]) -> [Duration; 2] {
    const WAY: Duration = Duration::from_millis(40);
    let levels = older.iter().map(|id| (*id, FeatureLevel::FIRST)).collect();
    let cluster = Cluster::start_with(3, Setup { levels, ..Setup::default() }).await;
    let leader = cluster.leader().await;
    // The leader raises the level within a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    cluster.board.delay(leader, follower, WAY);
    tokio::time::sleep(HEARTBEATS).await;
    let (began, mut ages) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_secs(1) {
        ages.push(cluster.node(follower).raft().state_age().expect("it was complete"));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(cluster.node(leader).raft().leadership().leader, Some(leader), "one leader during the test");
    cluster.shutdown().await;
    [ages.iter().min(), ages.iter().max()].map(|age| *age.expect("1,000 ages"))
}

#[tokio::test(start_paused = true)]
async fn age_of_a_state_includes_the_way_of_a_message() {
    let [youngest, oldest] = ages_behind_a_slow_link(&[]).await;
    assert!(youngest >= Duration::from_millis(40) && oldest < IDLE_AGE + HEARTBEATS, "{youngest:?} to {oldest:?}");
}

/// An older program cannot read a dated message.
#[tokio::test(start_paused = true)]
async fn cluster_with_an_older_member_sends_no_dated_messages() {
    let [youngest, _] = ages_behind_a_slow_link(&[3]).await;
    assert!(youngest < Duration::from_millis(40), "{youngest:?}");
}

/// A message can wait for long: in the network, or while the process of the follower stands still.
#[tokio::test(start_paused = true)]
async fn delayed_message_leaves_the_state_old() {
    const DELAY: Duration = Duration::from_secs(3);
    let mut cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    tokio::time::sleep(HEARTBEATS).await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    cluster.board.isolate(follower, cluster.ids().filter(|id| ![leader, follower].contains(id)));
    let vote = cluster.disk(leader).vote().expect("the leader voted for itself");
    let commit = cluster.node(follower).raft().replica().read(|state| state.applied.as_ref().map(position));
    cluster.crash(leader).await;
    let deliver = async |echo: Option<ProcessTime>| {
        let append = Append { vote, previous: commit, commit, entries: Vec::new() };
        let shown = commit.map(|commit| commit.index);
        let payload = Payload::Raft(wire::encode(&Call::DatedAppend { append, echo, shown }));
        let answer = cluster.board.transport(leader).call(follower, "in memory", Lane::Log, payload, SOON).await;
        match wire::decode(&answer.expect("answered")).expect("readable") {
            Reply::DatedAppend { reply: AppendReply::Success, at } => at,
            other => panic!("{other:?}"),
        }
    };
    let age = || cluster.node(follower).raft().state_age().expect("it was complete");
    let answered = deliver(None).await;
    deliver(Some(answered)).await;
    assert!(age() < Duration::from_millis(5), "{:?}", age());
    tokio::time::sleep(DELAY).await;
    let ProcessTime { process, ms } = answered;
    let now = ms + DELAY.as_millis() as u64;
    for (echo, what) in [
        (None, "a message without a time"),
        (Some(answered), "an old message"),
        (Some(ProcessTime { process: process ^ 1, ms: now }), "a message to an earlier process of the node"),
        (Some(ProcessTime { process, ms: now + 60_000 }), "a time in the future"),
    ] {
        deliver(echo).await;
        assert!(age() >= DELAY, "{what}: {:?}", age());
    }
    let answered = deliver(None).await;
    deliver(Some(answered)).await;
    assert!(age() < Duration::from_millis(5), "{:?}", age());
    cluster.shutdown().await;
}
