//! Nodes of one cluster with different settings. Apply depends only on the log, so the replicas stay equal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::config::LeaseSettings;
use tenure::lease::{Acquire, Command, HolderLease, Limits, Machine, Outcome, Refusal, SnapshotHeader, StoredRecord};
use tenure::node::{Answer, Forward, Request};
use tenure::testing::{AppliedEntry, ApplyObserver, Cluster, Setup, TestNode};
use tenure::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};

/// Wait of each waiter in this test.
const WAIT_MS: u64 = 60_000;

fn limits(id: NodeId) -> Limits {
    let small = id as u32;
    let mut limits = Limits::default();
    (limits.max_waiters, limits.history) = (small, small);
    (limits.ended_keep, limits.waiter_timeout_ms) = (id, 60_000 * id);
    limits
}

/// The contents of a snapshot of one replica.
type Image = (SnapshotHeader, Vec<StoredRecord>);

/// The state after each log index at the first node that applied it, and the differences of other nodes.
#[derive(Default)]
struct Replicas {
    first: BTreeMap<u64, (NodeId, Image)>,
    applied: BTreeMap<NodeId, u64>,
    differences: Vec<String>,
}

struct Comparison {
    node: NodeId,
    replicas: Arc<Mutex<Replicas>>,
}

impl Comparison {
    fn compare(&self, index: u64, machine: &Machine) {
        let image = (machine.header(), machine.records().collect::<Vec<_>>());
        let mut replicas = self.replicas.lock().expect("no panic");
        replicas.applied.insert(self.node, index);
        let (by, first) = replicas.first.entry(index).or_insert_with(|| (self.node, image.clone())).clone();
        if first != image {
            replicas.differences.push(format!("at {index} node {by} has {first:?}, node {} has {image:?}", self.node));
        }
    }
}

impl ApplyObserver for Comparison {
    fn applied(&self, entry: &AppliedEntry<'_>) {
        self.compare(entry.position.index, entry.machine);
    }

    fn replaced(&self, index: u64, machine: &Machine) {
        self.compare(index, machine);
    }
}

async fn start(replicas: &Arc<Mutex<Replicas>>) -> Cluster {
    let lease = |id| {
        let mut settings = LeaseSettings::default();
        settings.limits = limits(id);
        settings
    };
    let replicas = replicas.clone();
    let observer = move |node| -> Arc<dyn ApplyObserver> { Arc::new(Comparison { node, replicas: replicas.clone() }) };
    let setup = Setup {
        lease_of: (1..=3).map(|id| (id, lease(id))).collect(),
        observer: Some(Arc::new(observer)),
        ..Setup::default()
    };
    Cluster::start_with(3, setup).await
}

async fn ask(node: &TestNode, request: Request) -> Answer {
    node.request(request, Forward::Never).await.expect("answered").answer
}

fn claim(by: &str, wait_ms: Option<u64>) -> Request {
    Request::Acquire(Acquire {
        name: LeaseName::new("job").expect("valid"),
        holder: HolderId::new(by).expect("valid"),
        ttl: Ttl::millis(600_000).expect("valid"),
        wait_ms,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

async fn hold(node: &TestNode, by: &str) -> HolderLease {
    match ask(node, claim(by, None)).await {
        Answer::Outcome(Outcome::Held { lease, .. }) => lease,
        other => panic!("not held: {other:?}"),
    }
}

async fn release(node: &TestNode, lease: HolderLease) {
    let release = Command::Release { name: lease.name, holder: lease.holder, token: lease.token };
    assert_eq!(ask(node, Request::Change(release)).await, Answer::Outcome(Outcome::Released(true)));
}

/// Exercises one leader. Its own limits apply from its first acquire.
async fn lead(node: &TestNode, max_waiters: u32) {
    let lease = hold(node, "a").await;
    let mut waiting = Vec::new();
    for number in 1..=max_waiters {
        let node = node.clone();
        let by = format!("w{number}");
        waiting.push(tokio::spawn(async move { ask(&node, claim(&by, Some(WAIT_MS))).await }));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let refused = ask(node, claim("late", Some(WAIT_MS))).await;
    assert_eq!(refused, Answer::Outcome(Outcome::Refused(Refusal::QueueFull { max_waiters })));
    release(node, lease).await;
    for waiter in waiting {
        match waiter.await.expect("no panic") {
            Answer::Outcome(Outcome::Held { lease, .. }) => release(node, lease).await,
            other => panic!("not granted: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_agree_though_settings_differ() {
    let replicas = Arc::new(Mutex::new(Replicas::default()));
    let cluster = start(&replicas).await;
    for to in [1, 3, 2, 1] {
        let leader = cluster.leader().await;
        if leader != to {
            cluster.node(leader).transfer_leadership_to(to).await.expect("handed on");
            cluster.leader().await;
        }
        lead(cluster.node(to), limits(to).max_waiters).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    {
        let replicas = replicas.lock().expect("no panic");
        let (last, (_, (header, _))) = replicas.first.last_key_value().expect("entries were applied");
        assert_eq!(header.limits, limits(1), "the limits of the last leader apply");
        assert!(
            replicas.applied.values().all(|applied| applied == last),
            "not all replicas were compared: {:?}",
            replicas.applied
        );
    }
    // A leader that shuts down transfers leadership, and the next leader sets its own limits.
    cluster.shutdown().await;
    assert_eq!(replicas.lock().expect("no panic").differences.first(), None, "replicas_agree");
}
