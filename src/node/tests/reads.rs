//! The state and the time that a read reflects.

use std::sync::Arc;

use super::*;
use crate::node::Response;

fn job() -> Query {
    Query::Lease(LeaseName::new("job").expect("valid"))
}

/// A thread reads while the node applies entries.
#[tokio::test]
async fn answer_names_the_last_entry_that_it_reflects() {
    const GRANTS: usize = 500;
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    let node = cluster.node(cluster.leader().await).clone();
    let (inner, writing) = (node.inner.clone(), Arc::new(()));
    let is_writing = Arc::downgrade(&writing);
    let reader = std::thread::spawn(move || {
        let mut reads = std::collections::BTreeSet::new();
        while is_writing.strong_count() > 0 {
            let read = inner.read_memory(job(), None);
            let Answer::Lease(leases) = read.answer else { panic!("{:?}", read.answer) };
            reads.extend(leases.first().map(|lease| (lease.token.index, read.served.applied)));
        }
        reads
    });
    let mut grants = Vec::new();
    let writes = async {
        for _ in 0..GRANTS {
            let granted = node.request(claim_of("a"), Forward::Once).await.expect("answered").answer;
            let Answer::Outcome(Outcome::Held { lease, fresh: true }) = granted else { panic!("{granted:?}") };
            grants.push(lease.token.index);
            let release = Command::Release { name: lease.name, holder: lease.holder, token: lease.token };
            node.request(Request::Change(release), Forward::Once).await.expect("answered");
        }
    };
    tokio::time::timeout(2 * LONG, writes).await.expect("the node answers");
    drop(writing);
    let reads = reader.join().expect("no panic");
    assert!(!reads.is_empty(), "control: the thread has read");
    for (token, applied) in reads {
        let last = grants.iter().rfind(|index| **index <= applied);
        assert_eq!(last, Some(&token), "the answer reflects entry {applied}");
    }
    cluster.shutdown().await;
}

/// The lease ends by a later entry before the answer to its claim is sent.
#[tokio::test(start_paused = true)]
async fn answer_to_a_change_names_its_own_entry() {
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    let node = cluster.node(cluster.leader().await).clone();
    // It now accepts requests.
    node.request(Request::Members, Forward::Never).await.expect("answered");
    let ask = |request: Request| {
        let inner = node.inner.clone();
        Box::pin(async move { inner.execute_as_leader(&Caller::Program, request).await.expect("answered") })
    };
    let held = |response: Response| match response.answer {
        Answer::Outcome(Outcome::Held { lease, .. }) => (lease, response.served.applied),
        other => panic!("{other:?}"),
    };
    let revoke = || {
        let name = LeaseName::new("job").expect("valid");
        Request::Change(Command::Revoke { name, reason: String::new() })
    };
    let mut granted = ask(claim_of("a"));
    assert!(granted.as_mut().now_or_never().is_none(), "its command is on the way");
    while node.inner.raft.replica().read(|state| state.machine.counts().held) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    ask(revoke()).await;
    let (lease, index) = held(granted.await);
    assert_eq!(index, lease.token.index, "the claim is granted at once");

    let (lease, _) = held(ask(claim_of("a")).await);
    let mut waits = ask(claim_of("b"));
    while waiters(&node).await == 0 {
        assert!(waits.as_mut().now_or_never().is_none(), "the lease is held");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    ask(Request::Change(Command::Release { name: lease.name, holder: lease.holder, token: lease.token })).await;
    ask(revoke()).await;
    let (lease, index) = held(waits.await);
    assert_eq!(index, lease.token.index, "the claim waits");
    cluster.shutdown().await;
}

/// A leader that regains its majority leads before it has applied the entries of its earlier clock.
#[tokio::test(start_paused = true)]
async fn answer_has_no_earlier_time_than_its_state() {
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    let node = cluster.node(cluster.leader().await).clone();
    tokio::time::sleep(Duration::from_secs(5)).await;
    node.request(Request::Change(Command::Tick), Forward::Once).await.expect("it leads");
    let (inner, clock) = (&node.inner, &node.inner.requests.clock);
    let applied = inner.raft.replica().read(|state| state.machine.now());
    let term = clock.leader_term().expect("it leads").term;
    let behind = clock.begin(term, applied - 1_000);
    assert_eq!(clock.now(&behind), applied - 1_000, "control: the clock is behind the state");
    assert_eq!(inner.read_memory(job(), None).served.now, applied);
    cluster.shutdown().await;
}
