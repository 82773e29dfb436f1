//! Nodes that fail or stop: their commands in flight, and their probes.

use super::*;

fn claim_without_a_wait(name: &str) -> Request {
    let Request::Acquire(claim) = waiting_claim() else { unreachable!("it is a claim") };
    Request::Acquire(Acquire { name: LeaseName::new(name).expect("valid"), wait_ms: None, ..claim })
}

/// A cluster of one node whose disk hangs, the node, and the release of a lease that it has granted before.
async fn node_with_a_hung_disk() -> (Cluster, TestNode, Command) {
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    cluster.leader().await;
    let node = cluster.node(1).clone();
    let held = node.request(claim_without_a_wait("held"), Forward::Once).await.expect("answered").answer;
    let Answer::Outcome(Outcome::Held { lease, .. }) = held else { panic!("{held:?}") };
    cluster.hang_disk(1);
    let release = Command::Release { name: lease.name, holder: lease.holder, token: lease.token };
    (cluster, node, release)
}

/// Urgent commands may wait for as long as they need, so the claim behind them has the first time limit.
#[tokio::test(start_paused = true)]
async fn claim_behind_an_urgent_command_is_refused_after_800_ms() {
    let (_cluster, node, release) = node_with_a_hung_disk().await;
    for request in [claim_without_a_wait("first"), claim_without_a_wait("second"), Request::Change(release)] {
        let node = node.clone();
        tokio::spawn(async move { node.request(request, Forward::Once).await });
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let began = Instant::now();
    let refused = node.request(claim_without_a_wait("late"), Forward::Once).await;
    assert_eq!(refused, Err(RequestError::Busy));
    let waited = began.elapsed();
    assert!((Duration::from_millis(800)..Duration::from_millis(850)).contains(&waited), "{waited:?}");
    node.kill().await;
}

/// A node has at most two entries in flight, so the last claim is still in the queue.
#[tokio::test(start_paused = true)]
async fn stopped_node_does_not_know_its_commands_in_flight() {
    let (_cluster, node, release) = node_with_a_hung_disk().await;
    let mut ended = Vec::new();
    for request in [claim_without_a_wait("first"), Request::Change(release), claim_without_a_wait("queued")] {
        let node = node.clone();
        ended.push(tokio::spawn(async move { node.request(request, Forward::Once).await }));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    node.kill().await;
    let [claim, release, queued] = ended.try_into().expect("three requests");
    for in_flight in [claim, release] {
        let answer = in_flight.await.expect("no panic");
        assert!(matches!(answer, Err(RequestError::Unknown(_))), "a restarted node has its entry: {answer:?}");
    }
    assert_eq!(queued.await.expect("no panic"), Err(RequestError::ShuttingDown));
}

/// The first attempt of the node to leave the queue reaches no leader.
#[tokio::test(start_paused = true)]
async fn node_shutdown_during_an_election_withdraws_its_waits() {
    // A split vote would outlast the time in which a node withdraws its waits.
    let _seeded = crate::testing::seed(1);
    let (mut cluster, leader, [follower, other]) = start().await;
    let holder = lease(&manager(cluster.node(other)));
    holder.acquire(Wait::No).await.expect("free");
    let node = cluster.node(follower).clone();
    let waiting = lease(&manager(&node));
    let waiting = tokio::spawn(async move { waiting.acquire(Wait::UpTo(TTL)).await.map(drop) });
    until_waiters(cluster.node(other), 1).await;
    cluster.crash(leader).await;
    // The leadership lease of the others is not over yet.
    tokio::time::sleep(Duration::from_millis(200)).await;
    node.shutdown().await;
    let left = cluster.node(other).raft().replica().read(|state| state.machine.counts().waiting);
    assert_eq!(left, 0, "the waiter stays in the queue");
    waiting.abort();
}

/// A client of another node waits with the same holder id.
#[tokio::test(start_paused = true)]
async fn node_shutdown_leaves_the_place_to_a_request_at_another_node() {
    for through_leader in [false, true] {
        let (cluster, leader, [follower, other]) = start().await;
        let holder = lease(&manager(cluster.node(other)));
        holder.acquire(Wait::No).await.expect("free");
        let node = cluster.node(if through_leader { leader } else { follower }).clone();
        let stays = cluster.node(other).clone();
        let stays = tokio::spawn(async move { stays.request(claim_of("shared"), Forward::Once).await });
        until_waiters(cluster.node(other), 1).await;
        let options = ManagerOptions::new().clock(std::sync::Arc::new(TokioClock::new()));
        let options = options.holder(HolderId::new("shared").expect("valid"));
        let local = lease(&LeaseManager::with_options(Local::new(node.clone()), options).expect("valid options"));
        let leaves = tokio::spawn(async move { local.acquire(Wait::UpTo(TTL)).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        node.shutdown().await;
        let ended = leaves.await.expect("no panic");
        let is_certain = matches!(ended, Err(CallError::Refused(_) | CallError::ShutDown));
        assert!(is_certain, "the outcome of the wait is certain: {ended:?}");
        assert_eq!(queue(cluster.node(other)).await, ["shared"]);
        holder.release().await.expect("released");
        let granted = stays.await.expect("no panic").expect("answered").answer;
        assert!(matches!(granted, Answer::Outcome(Outcome::Held { .. })), "{granted:?}");
        cluster.shutdown().await;
    }
}

async fn probe(url: &str, path: &str) -> (u16, serde_json::Value) {
    problem(plain_http::get(format!("{url}{path}")).await.expect("an answer")).await
}

#[tokio::test]
async fn failed_node_fails_both_probes() {
    let data = tempfile::tempdir().expect("a folder");
    let (node, url) = served(data.path(), LeaseSettings::default()).await;
    assert_eq!((probe(&url, "/livez").await.0, probe(&url, "/readyz").await.0), (200, 200));
    // The core accepts the request, and panics when it runs it.
    let _ = node.raft().raft().external_request(|_| panic!("the test stops Raft")).await;
    tokio::time::timeout(LONG, node.wait_failed()).await.expect("the node notices it");
    let stopping = tokio::spawn({
        let node = node.clone();
        async move { node.shutdown().await }
    });
    // A failed node that also shuts down needs a restart.
    for path in ["/livez", "/readyz"] {
        let (status, told) = probe(&url, path).await;
        assert_eq!((status, &told["code"]), (503, &"failed".into()), "{path}: {told}");
    }
    stopping.await.expect("no panic");
    let (status, told) = probe(&url, "/readyz").await;
    assert_eq!((status, &told["code"]), (503, &"failed".into()), "it also shuts down: {told}");
}

#[tokio::test]
async fn node_is_alive_while_it_shuts_down() {
    let data = tempfile::tempdir().expect("a folder");
    let (node, url) = served(data.path(), LeaseSettings::default()).await;
    // A held lease delays the end of the shutdown.
    node.request(claim_without_a_wait("held"), Forward::Once).await.expect("answered");
    let stopping = tokio::spawn({
        let node = node.clone();
        async move { node.shutdown().await }
    });
    while node.health().not_ready.is_none() {
        tokio::task::yield_now().await;
    }
    for when in ["during the shutdown", "afterwards"] {
        let ((alive, _), (ready, told)) = (probe(&url, "/livez").await, probe(&url, "/readyz").await);
        assert_eq!((alive, ready, &told["code"]), (200, 503, &"not_ready".into()), "{when}: {told}");
        if when == "during the shutdown" {
            while !stopping.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    stopping.await.expect("no panic");
}
