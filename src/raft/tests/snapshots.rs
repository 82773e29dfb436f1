//! Snapshot transfers between nodes, in in-memory clusters under a paused clock.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::super::wire::{self, Append, AppendReply, Call, Reply};
use crate::config::{LeaseSettings, RaftTimings};
use crate::lease::{Acquire, Command, Outcome};
use crate::node::{Answer, Consistency, Forward, Query, Request, StartError};
use crate::peer::{Lane, Payload, PeerRefusal, Transport};
use crate::storage::{Storage, VoteRecord};
use crate::testing::{Cluster, TestNode};
use crate::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};

/// More entries than openraft needs before it takes a snapshot and purges the log.
const ENTRIES: u64 = 500;
const SOON: Duration = Duration::from_secs(30);
const TIMINGS: RaftTimings = RaftTimings {
    heartbeat_interval_ms: 75,
    election_timeout_min_ms: 225,
    election_timeout_max_ms: 325,
    drift_permille: 10,
    snapshot_every: 100,
    snapshot_keep: 0,
};

/// A snapshot in transfer.
struct SentSnapshot {
    vote: VoteRecord,
    bytes: Bytes,
    crc: u32,
}

async fn start() -> (Cluster, NodeId, [NodeId; 2]) {
    start_with(TIMINGS).await
}

async fn start_with(timings: RaftTimings) -> (Cluster, NodeId, [NodeId; 2]) {
    let cluster = Cluster::start(3, timings, LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let others: Vec<NodeId> = cluster.ids().filter(|id| *id != leader).collect();
    (cluster, leader, [others[0], others[1]])
}

fn name() -> LeaseName {
    LeaseName::new("job").expect("valid")
}

async fn hold(node: &TestNode, by: &str) {
    let acquire = Request::Acquire(Acquire {
        name: name(),
        holder: HolderId::new(by).expect("valid"),
        ttl: Ttl::INFINITE,
        wait_ms: None,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    });
    let held = node.request(acquire, Forward::Once).await.expect("answered");
    assert!(matches!(held.answer, Answer::Outcome(Outcome::Held { .. })), "{held:?}");
}

/// Writes entries until each running node has purged all entries that the leader has applied at the call. Each repeated
/// acquire by the current holder is one entry.
async fn purge(cluster: &Cluster, leader: NodeId, by: &str) {
    let last = applied(cluster.node(leader));
    for _ in 0..ENTRIES {
        hold(cluster.node(leader), by).await;
    }
    let purged = |id| cluster.disk(id).log_bounds().0.is_some_and(|floor| floor.index > last);
    until("a purge", || cluster.ids().filter(|id| cluster.running(*id).is_some()).all(purged)).await;
}

/// The holder in a node's memory.
async fn holder_at(node: &TestNode) -> String {
    let read = Request::Read { query: Query::Lease(name()), consistency: Consistency::Stale };
    match node.request(read, Forward::Never).await.expect("answered").answer {
        Answer::Lease(leases) => leases[0].holder.to_string(),
        other => panic!("{other:?}"),
    }
}

async fn until(event: &str, mut is_reached: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_reached() {
        assert!(began.elapsed() < SOON, "{event}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn applied(node: &TestNode) -> u64 {
    node.raft().replica().progress().borrow().applied.index
}

/// The node's own snapshot and vote, as the node would send them now.
fn own_snapshot(cluster: &Cluster, id: NodeId) -> SentSnapshot {
    let disk = cluster.disk(id);
    let manifest = disk.snapshot().expect("a snapshot");
    let chunks = (0..manifest.chunks).flat_map(|chunk| disk.read_snapshot(manifest.id, chunk).expect("a chunk"));
    let (vote, bytes) = (disk.vote().expect("a vote"), chunks.collect());
    SentSnapshot { vote, bytes, crc: manifest.crc }
}

async fn send(cluster: &Cluster, from: NodeId, to: NodeId, call: Call) -> Reply {
    let payload = Payload::Raft(wire::encode(&call));
    let answer = cluster.board.transport(from).call(to, "in memory", Lane::Snapshot, payload, SOON).await;
    wire::decode(&answer.expect("answered")).expect("readable")
}

/// Sends a snapshot as its leader does. If a message of another leader interrupts the transfer, it retries.
async fn send_snapshot(cluster: &Cluster, from: NodeId, to: NodeId, sent: &SentSnapshot) -> VoteRecord {
    for _ in 0..10 {
        send(cluster, from, to, Call::SnapshotBegin).await;
        send(cluster, from, to, Call::SnapshotBytes(sent.bytes.clone())).await;
        let end = Call::SnapshotEnd { vote: sent.vote, crc: sent.crc };
        if let Reply::SnapshotEnd { vote } = send(cluster, from, to, end).await {
            return vote;
        }
    }
    panic!("the follower accepted no snapshot");
}

/// A deposed leader's snapshot arrives after the follower applied a newer leader's entries. By then, the follower has a
/// newer snapshot and has purged the log up to it.
#[tokio::test(start_paused = true)]
async fn late_snapshot_of_a_deposed_leader_changes_nothing() {
    let (mut cluster, old, [follower, _]) = start().await;
    hold(cluster.node(old), "old").await;
    purge(&cluster, old, "old").await;
    let late = own_snapshot(&cluster, old);
    cluster.crash(old).await;
    let next = cluster.leader_except(&[old]).await;
    let revoke = Request::Change(Command::Revoke { name: name(), reason: "test".into() });
    cluster.node(next).request(revoke, Forward::Never).await.expect("answered");
    hold(cluster.node(next), "new").await;
    purge(&cluster, next, "new").await;
    let (before, at) = (cluster.disk(follower).snapshot(), applied(cluster.node(follower)));

    let vote = send_snapshot(&cluster, old, follower, &late).await;
    assert!(vote.term > late.vote.term, "the reply names the newer leader");
    assert!(applied(cluster.node(follower)) >= at, "the follower's state is older than before");
    assert_eq!(holder_at(cluster.node(follower)).await, "new");
    assert_eq!(cluster.disk(follower).snapshot(), before, "the late snapshot replaced the stored one");
    cluster.shutdown().await;
}

/// The leader purges entries that a stopped follower lacks. Only the snapshot gives the follower the joined members:
/// since its restart, the follower has not connected to any.
#[tokio::test(start_paused = true)]
async fn joined_members_survive_snapshot_install() {
    let (mut cluster, leader, [follower, wiped]) = start().await;
    hold(cluster.node(leader), "a").await;
    let joined = |node: &TestNode| node.raft().replica().read(|state| state.joined.clone());
    let members = joined(cluster.node(leader));
    assert_eq!(members.len(), 3, "{members:?}");
    cluster.crash(follower).await;
    purge(&cluster, leader, "a").await;
    let purged = applied(cluster.node(leader));
    cluster.board.isolate(wiped, [follower]);
    cluster.restart(follower).await;
    let disk = cluster.disk(follower);
    until("the install", || disk.snapshot().is_some() && applied(cluster.node(follower)) >= purged).await;
    assert_eq!(joined(cluster.node(follower)), members);

    cluster.crash(wiped).await;
    cluster.replace_disk(wiped);
    cluster.board.heal();
    cluster.board.isolate(wiped, [leader]);
    assert_refused(&mut cluster, wiped).await;
    cluster.shutdown().await;
}

/// The transfer to a follower fails in different ways. Each snapshot has several chunks.
#[tokio::test(start_paused = true)]
async fn failed_transfer_leaves_no_chunks() {
    let (cluster, leader, [follower, other]) = start().await;
    let metadata = Metadata::new([("text".to_owned(), "x".repeat(4_000))].into()).expect("valid");
    for number in 0..20 {
        let acquire = Request::Acquire(Acquire {
            name: LeaseName::new(format!("job-{number}")).expect("valid"),
            holder: HolderId::new("a").expect("valid"),
            ttl: Ttl::INFINITE,
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: metadata.clone(),
        });
        cluster.node(leader).request(acquire, Forward::Once).await.expect("answered");
    }
    purge(&cluster, leader, "a").await;
    until("the same state", || applied(cluster.node(follower)) == applied(cluster.node(leader))).await;
    let SentSnapshot { vote, bytes, crc } = own_snapshot(&cluster, leader);
    let (disk, own) = (cluster.disk(follower), cluster.disk(follower).chunks());
    let half = bytes.slice(..bytes.len() / 2);
    let begin = async |from| {
        send(&cluster, from, follower, Call::SnapshotBegin).await;
        send(&cluster, from, follower, Call::SnapshotBytes(half.clone())).await;
        assert!(disk.chunks() > own, "the transfer has chunks");
    };
    let assert_fails = async |call| {
        let reply = send(&cluster, leader, follower, call).await;
        assert!(matches!(reply, Reply::Failed(_)), "{reply:?}");
        assert_eq!(disk.chunks(), own, "{reply:?}");
    };
    // A changed byte of the metadata leaves all records readable.
    let mut changed = bytes.to_vec();
    let text = changed.windows(100).position(|part| part == [b'x'; 100]).expect("the snapshot has the metadata");
    changed[text] = b'y';
    send(&cluster, leader, follower, Call::SnapshotBegin).await;
    let received = send(&cluster, leader, follower, Call::SnapshotBytes(changed.into())).await;
    assert!(matches!(received, Reply::SnapshotContinue), "{received:?}");
    assert_fails(Call::SnapshotEnd { vote, crc }).await;
    begin(leader).await;
    assert_fails(Call::SnapshotEnd { vote, crc }).await;
    begin(leader).await;
    assert_fails(Call::SnapshotEnd { vote, crc: crc32fast::hash(&half) }).await;
    begin(leader).await;
    assert_fails(Call::SnapshotBytes(vec![255; half.len()].into())).await;
    assert_fails(Call::SnapshotBytes(half.clone())).await;
    begin(leader).await;
    assert!(matches!(send(&cluster, leader, follower, Call::SnapshotBegin).await, Reply::SnapshotContinue));
    assert_eq!(disk.chunks(), own, "a transfer that starts again");
    begin(other).await;
    until("the next heartbeat of the leader", || disk.chunks() == own).await;
    cluster.shutdown().await;
}

/// Between the two halves of a snapshot, its sender replicates an entry and sends heartbeats.
#[tokio::test(start_paused = true)]
async fn appends_of_its_sender_keep_the_received_half() {
    let (cluster, leader, [follower, _]) = start().await;
    purge(&cluster, leader, "a").await;
    let SentSnapshot { vote, bytes, crc } = own_snapshot(&cluster, leader);
    let (first, second) = (bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..));
    let take = async |call| {
        let reply = send(&cluster, leader, follower, call).await;
        assert!(matches!(reply, Reply::SnapshotContinue), "{reply:?}");
    };
    take(Call::SnapshotBegin).await;
    take(Call::SnapshotBytes(first)).await;
    hold(cluster.node(leader), "a").await;
    let last = applied(cluster.node(leader));
    until("the new entry", || applied(cluster.node(follower)) >= last).await;
    tokio::time::sleep(4 * Duration::from_millis(TIMINGS.heartbeat_interval_ms)).await;
    take(Call::SnapshotBytes(second)).await;
    let reply = send(&cluster, leader, follower, Call::SnapshotEnd { vote, crc }).await;
    assert!(matches!(reply, Reply::SnapshotEnd { .. }), "{reply:?}");
    cluster.shutdown().await;
}

async fn assert_refused(cluster: &mut Cluster, wiped: NodeId) {
    match cluster.launch(wiped).await {
        Err(StartError::Refused(PeerRefusal::OtherDisk { node, .. })) => assert_eq!(node, wiped),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("node {wiped} runs on an empty disk"),
    }
}

/// After a purge of the log, only the snapshots have the disk with which each voter joined.
#[tokio::test(start_paused = true)]
async fn wiped_voter_is_refused_after_log_purge() {
    let (mut cluster, leader, others) = start().await;
    hold(cluster.node(leader), "a").await;
    purge(&cluster, leader, "a").await;
    let wiped = others[0];
    for id in cluster.ids() {
        cluster.crash(id).await;
    }
    cluster.replace_disk(wiped);
    for id in [leader, others[1]] {
        cluster.restart(id).await;
    }
    assert_refused(&mut cluster, wiped).await;
    cluster.shutdown().await;
}

/// The leader takes a snapshot while a follower is down, and keeps the entries that the follower lacks. The install of a
/// snapshot would purge the follower's log up to it.
#[tokio::test(start_paused = true)]
async fn follower_within_snapshot_keep_catches_up_by_its_log() {
    let timings = RaftTimings { snapshot_every: 300, snapshot_keep: 200, ..TIMINGS };
    let (mut cluster, leader, [follower, _]) = start_with(timings).await;
    let write = async |cluster: &Cluster, entries| {
        for _ in 0..entries {
            hold(cluster.node(leader), "a").await;
        }
    };
    write(&cluster, 500).await;
    until("all entries", || applied(cluster.node(follower)) == applied(cluster.node(leader))).await;
    let crashed_at = applied(cluster.node(follower));
    let disk = cluster.disk(leader);
    let before = disk.snapshot().expect("a snapshot");
    cluster.crash(follower).await;
    write(&cluster, 150).await;
    until("the next snapshot", || disk.snapshot().is_some_and(|next| next.id > before.id)).await;
    // The purge follows the snapshot.
    write(&cluster, 10).await;
    let floor = |cluster: &Cluster, id| cluster.disk(id).log_bounds().0.map_or(0, |floor| floor.index);
    until("a purge", || floor(&cluster, leader) > 0).await;
    cluster.restart(follower).await;
    let last = applied(cluster.node(leader));
    until("the follower catches up", || applied(cluster.node(follower)) >= last).await;
    for id in [leader, follower] {
        let floor = floor(&cluster, id);
        assert!(floor <= crashed_at, "node {id} has no entry up to {floor}; the follower crashed at {crashed_at}");
    }
    cluster.shutdown().await;
}

/// The sender asks again while a slow disk installs its snapshot, and sends nothing twice.
#[tokio::test(start_paused = true)]
async fn sender_learns_the_end_of_a_long_installation() {
    let (mut cluster, leader, [slow, third]) = start().await;
    hold(cluster.node(leader), "a").await;
    cluster.crash(slow).await;
    purge(&cluster, leader, "a").await;
    // The test sends in place of the leader.
    cluster.board.cut(leader, slow);
    cluster.restart(slow).await;
    let sent = own_snapshot(&cluster, leader);
    let end = |crc| Call::SnapshotEnd { vote: sent.vote, crc };
    send(&cluster, third, slow, Call::SnapshotBegin).await;
    send(&cluster, third, slow, Call::SnapshotBytes(sent.bytes.clone())).await;
    let before = applied(cluster.node(slow));
    let (resume, resumed) = tokio::sync::oneshot::channel::<()>();
    let raft = cluster.node(slow).raft().raft();
    let stall = raft.external_state_machine_request(|_| Box::pin(async { _ = resumed.await }));
    stall.await.expect("Raft runs");
    let mut ends = Box::pin(async {
        tokio::join!(send(&cluster, third, slow, end(sent.crc)), send(&cluster, third, slow, end(sent.crc)))
    });
    tokio::time::timeout(Duration::from_secs(5), &mut ends).await.expect_err("the installation waits");
    resume.send(()).expect("the state machine waits");
    let (first, second) = ends.await;
    assert!(matches!(first, Reply::SnapshotEnd { .. }) && matches!(second, Reply::SnapshotEnd { .. }), "{second:?}");
    assert!(applied(cluster.node(slow)) > before, "the snapshot is installed");
    let later = send(&cluster, third, slow, end(sent.crc)).await;
    assert!(matches!(later, Reply::SnapshotEnd { .. }), "{later:?}");
    for (from, crc) in [(third, !sent.crc), (leader, sent.crc)] {
        cluster.board.heal();
        let unknown = send(&cluster, from, slow, end(crc)).await;
        assert!(matches!(unknown, Reply::Failed(_)), "another snapshot, or another sender: {unknown:?}");
    }
    cluster.shutdown().await;
}

/// The sender is a deposed leader that sends the same snapshot again. A message of the new leader arrives before the end of
/// the second transfer.
#[tokio::test(start_paused = true)]
async fn deposed_sender_of_an_installed_snapshot_gets_the_higher_vote() {
    let (mut cluster, leader, [slow, third]) = start().await;
    hold(cluster.node(leader), "a").await;
    cluster.crash(slow).await;
    purge(&cluster, leader, "a").await;
    // The test sends in place of the leader, and of the next one.
    cluster.board.cut(leader, slow);
    cluster.restart(slow).await;
    let sent = own_snapshot(&cluster, leader);
    assert_eq!(send_snapshot(&cluster, third, slow, &sent).await, sent.vote);
    send(&cluster, third, slow, Call::SnapshotBegin).await;
    send(&cluster, third, slow, Call::SnapshotBytes(sent.bytes.clone())).await;
    let vote = VoteRecord { term: sent.vote.term + 10, candidate: Some(leader), committed: true };
    let append = Call::Append(Append { vote, previous: None, commit: None, entries: Vec::new() });
    cluster.board.heal();
    let followed = send(&cluster, leader, slow, append).await;
    assert!(matches!(followed, Reply::Append(AppendReply::Success)), "{followed:?}");
    let Reply::SnapshotEnd { vote: answered } =
        send(&cluster, third, slow, Call::SnapshotEnd { vote: sent.vote, crc: sent.crc }).await
    else {
        panic!("the snapshot is installed");
    };
    assert!(answered.term > sent.vote.term, "{answered:?}: a leader of {:?} leads", vote.term);
    cluster.shutdown().await;
}

/// A leader repeats a message that fails many times a second.
#[cfg(feature = "cli")]
mod unreadable {
    use super::*;
    use crate::storage::Position;
    use crate::telemetry::tests::capture;

    /// The follower reads an entry of its leader.
    async fn follow(cluster: &Cluster, leader: NodeId, follower: NodeId) {
        hold(cluster.node(leader), "a").await;
        let last = applied(cluster.node(leader));
        until("the next entry", || applied(cluster.node(follower)) >= last).await;
    }

    #[tokio::test(start_paused = true)]
    async fn unreadable_snapshot_is_logged_once() {
        let (cluster, leader, [follower, _]) = start().await;
        purge(&cluster, leader, "a").await;
        let SentSnapshot { vote, bytes, .. } = own_snapshot(&cluster, leader);
        let (written, _logged_here) = capture();
        let attempt = async |bytes: Bytes| {
            let crc = crc32fast::hash(&bytes);
            send(&cluster, leader, follower, Call::SnapshotBegin).await;
            match send(&cluster, leader, follower, Call::SnapshotBytes(bytes)).await {
                Reply::SnapshotContinue => send(&cluster, leader, follower, Call::SnapshotEnd { vote, crc }).await,
                failed => failed,
            }
        };
        let half = bytes.slice(..bytes.len() / 2);
        for (unreadable, logged) in [(Bytes::from(vec![255; 100]), 1), (half, 2)] {
            for _ in 0..3 {
                let reply = attempt(unreadable.clone()).await;
                assert!(matches!(reply, Reply::Failed(_)), "{reply:?}");
            }
            let lines = written.text();
            assert_eq!(lines.matches("cannot read the snapshot of its leader").count(), logged, "{lines}");
            follow(&cluster, leader, follower).await;
        }
        cluster.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn unreadable_entries_are_logged_once_between_heartbeats() {
        let (cluster, leader, [follower, _]) = start().await;
        // The leader has an entry for each member.
        until("all entries", || cluster.node(leader).raft().replica().read(|state| state.joined.len()) == 3).await;
        follow(&cluster, leader, follower).await;
        let vote = cluster.disk(leader).vote().expect("a vote");
        let append = async |entries| {
            let append = Append { vote, previous: None, commit: None, entries };
            send(&cluster, leader, follower, Call::Append(append)).await
        };
        let (written, _logged_here) = capture();
        for logged in 1..=2 {
            for _ in 0..3 {
                let unreadable = (Position { term: vote.term, index: 1 }, Bytes::from_static(&[99, 99]));
                let refused = append(vec![unreadable]).await;
                assert!(matches!(refused, Reply::Failed(_)), "{refused:?}");
                let heartbeat = append(Vec::new()).await;
                assert!(matches!(heartbeat, Reply::Append(AppendReply::Success)), "{heartbeat:?}");
            }
            let lines = written.text();
            assert_eq!(lines.matches("cannot read the entries of its leader").count(), logged, "{lines}");
            follow(&cluster, leader, follower).await;
        }
        cluster.shutdown().await;
    }
}
