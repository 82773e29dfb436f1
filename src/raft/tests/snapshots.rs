//! Snapshots between nodes: whole clusters in memory, under a paused clock.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::super::wire::{self, Call, Reply};
use crate::config::{LeaseSettings, RaftTimings};
use crate::lease::{Acquire, Command, Outcome};
use crate::node::{Answer, Consistency, Forward, Query, Request, StartError};
use crate::peer::{Lane, Refusal, Transport};
use crate::raft::Safeguards;
use crate::storage::{Storage, VoteRecord};
use crate::testing::{Cluster, TestNode};
use crate::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};

/// More than openraft needs to take a snapshot and to purge the log behind it.
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

/// A snapshot as it travels.
struct Sent {
    vote: VoteRecord,
    bytes: Bytes,
    crc: u32,
}

async fn start() -> (Cluster, NodeId, [NodeId; 2]) {
    let cluster = Cluster::start(3, TIMINGS, LeaseSettings::default()).await;
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
        ttl: Ttl::Infinite,
        wait_ms: None,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    });
    let held = node.request(acquire, Forward::Once).await.expect("answered");
    assert!(matches!(held.answer, Answer::Outcome(Outcome::Held { .. })), "{held:?}");
}

/// Writes entries until each running node has purged all that the leader has applied now. Each claim of the present holder is an entry.
async fn purge(cluster: &Cluster, leader: NodeId, by: &str) {
    let last = applied(cluster.node(leader));
    for _ in 0..ENTRIES {
        hold(cluster.node(leader), by).await;
    }
    let purged = |id| cluster.disk(id).log_bounds().0.is_some_and(|floor| floor.index > last);
    until("a purge", || cluster.ids().filter(|id| cluster.running(*id).is_some()).all(purged)).await;
}

/// The holder that a node has in its memory.
async fn holder_at(node: &TestNode) -> String {
    let read = Request::Read { query: Query::Lease(name()), consistency: Consistency::Stale };
    match node.request(read, Forward::Never).await.expect("answered").answer {
        Answer::Lease(leases) => leases[0].holder.to_string(),
        other => panic!("{other:?}"),
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn applied(node: &TestNode) -> u64 {
    node.raft().replica().progress().borrow().applied.index
}

/// The node's own snapshot and vote, as the node would send them now.
fn own_snapshot(cluster: &Cluster, id: NodeId) -> Sent {
    let disk = cluster.disk(id);
    let manifest = disk.snapshot().expect("a snapshot");
    let chunks = (0..manifest.chunks).flat_map(|chunk| disk.read_snapshot(manifest.id, chunk).expect("a chunk"));
    let (vote, bytes) = (disk.vote().expect("a vote"), chunks.collect());
    Sent { vote, bytes, crc: manifest.crc }
}

async fn send(cluster: &Cluster, from: NodeId, to: NodeId, call: Call) -> Reply {
    let body = wire::encode(&call);
    let answer = cluster.board.transport(from).call(to, "in memory", Lane::Snapshot, body, SOON).await;
    wire::decode(&answer.expect("answered")).expect("readable")
}

/// Sends a snapshot as its leader does, and again if a message of another leader came in between.
async fn send_snapshot(cluster: &Cluster, from: NodeId, to: NodeId, sent: &Sent) -> VoteRecord {
    for _ in 0..10 {
        send(cluster, from, to, Call::SnapshotBegin).await;
        send(cluster, from, to, Call::SnapshotBytes(sent.bytes.clone())).await;
        let end = Call::SnapshotEnd { vote: sent.vote, crc: sent.crc };
        if let Reply::SnapshotEnd { vote } = send(cluster, from, to, end).await {
            return vote;
        }
    }
    panic!("the follower took no snapshot");
}

/// A deposed leader's snapshot arrives after a newer leader's entries were applied. The follower has a newer snapshot
/// then, and has purged the log behind that.
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
    assert!(vote.term > late.vote.term, "the sender learns of the newer leader");
    assert!(applied(cluster.node(follower)) >= at, "its state went back");
    assert_eq!(holder_at(cluster.node(follower)).await, "new");
    assert_eq!(cluster.disk(follower).snapshot(), before, "its stored snapshot was replaced");
    cluster.shutdown().await;
}

/// A follower was down while the entries that it lacks were purged. Only the snapshot tells it the members that the
/// leader met: it met none itself since its restart.
#[tokio::test(start_paused = true)]
async fn members_met_survive_the_install_of_a_snapshot() {
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

async fn assert_refused(cluster: &mut Cluster, wiped: NodeId) {
    match cluster.launch(wiped, Safeguards::default()).await {
        Err(StartError::Refused(Refusal::OtherDisk { node, .. })) => assert_eq!(node, wiped),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("node {wiped} runs on an empty disk"),
    }
}

/// After the log was purged, only the snapshots tell which disk each voter joined with.
#[tokio::test(start_paused = true)]
async fn wiped_voter_is_refused_by_what_a_snapshot_has() {
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
