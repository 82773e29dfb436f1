//! Waits and releases while nodes stop, are isolated or shut down: clusters in memory, under a paused clock.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::{Answer, Forward, Local, Query, Request, RequestError};
use crate::access::Caller;
use crate::api::Code;
use crate::client::{CallError, Coordinator, LeaseManager, LeaseOptions, ManagerOptions, RetryBudget, Wait};
use crate::config::{LeaseSettings, RaftTimings};
use crate::lease::{Acquire, Batch, Command, Limits, MAX_RETAINED_NAME_BYTES, Outcome, Refusal, Stamp};
use crate::node::Consistency;
use crate::node::request::call::{NodeCall, NodeReply, NodeService};
use crate::node::request::propose::ProposeError;
use crate::peer::{Service, Services};
use crate::raft::Proposal;
use crate::storage::codec;
use crate::testing::{Cluster, Setup, TestNode, TokioClock};
use crate::types::{HolderId, LeaseName, MAX_LIMIT, Metadata, NodeId, Ttl};

mod access;
mod counted;
mod level;
mod members;
#[path = "../../tests/support/plain_http.rs"]
mod plain_http;
mod reads;
mod shutdown;
mod waits;

/// Less than `waiter_timeout_ms`, after which the leader drops a waiter without a request.
const SOON: Duration = Duration::from_secs(3);
const TTL: Duration = Duration::from_secs(60);

async fn start() -> (Cluster, NodeId, [NodeId; 2]) {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let others: Vec<NodeId> = cluster.ids().filter(|id| *id != leader).collect();
    (cluster, leader, [others[0], others[1]])
}

fn manager(node: &TestNode) -> LeaseManager {
    let options = ManagerOptions::new().clock(std::sync::Arc::new(TokioClock::new()));
    LeaseManager::with_options(Local::new(node.clone()), options).expect("valid options")
}

fn lease(manager: &LeaseManager) -> crate::client::Lease {
    manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("valid")
}

fn waiting_claim() -> Request {
    Request::Acquire(Acquire {
        name: LeaseName::new("job").expect("valid"),
        holder: HolderId::new("waits").expect("valid"),
        ttl: Ttl::millis(60_000).expect("valid"),
        wait_ms: Some(60_000),
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

async fn waiters(node: &TestNode) -> usize {
    let query = Query::Queue(LeaseName::new("job").expect("valid"));
    let read = Request::Read { query, consistency: Consistency::Leader };
    match node.request(read, Forward::Once).await.expect("answered").answer {
        Answer::Queue(waiters) => waiters.len(),
        other => panic!("{other:?}"),
    }
}

async fn until_waiters(node: &TestNode, count: usize) -> Duration {
    let begun = Instant::now();
    while waiters(node).await != count {
        assert!(begun.elapsed() < SOON, "no {count} waiters within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn isolated_node_resumes_its_wait_after_it_reconnects() {
    let (cluster, leader, [follower, _]) = start().await;
    let (holder, waits) = (manager(cluster.node(leader)), manager(cluster.node(follower)));
    lease(&holder).acquire(Wait::No).await.expect("free");
    let (waiting, node) = (lease(&waits), cluster.node(leader).clone());
    let waiting = tokio::spawn(async move { waiting.acquire(Wait::UpTo(TTL)).await });
    until_waiters(&node, 1).await;
    cluster.board.isolate(follower, cluster.ids());
    let left = until_waiters(&node, 0).await;
    assert!(left <= Duration::from_secs(2), "after the leaderless time plus one poll: {left:?}");
    cluster.board.heal();
    until_waiters(&node, 1).await;
    lease(&holder).release().await.expect("released");
    assert!(waiting.await.expect("the task does not panic").is_ok(), "the reconnected node waits again");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn leader_withdraws_the_waits_of_a_silent_node() {
    let (cluster, leader, [follower, _]) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    let inner = node.inner.clone();
    let waiting =
        tokio::spawn(async move { inner.execute_for_peer(follower, None, &Caller::Program, waiting_claim()).await });
    until_waiters(&node, 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(waiters(&node).await, 1, "the follower is connected");
    cluster.board.isolate(follower, cluster.ids());
    let left = until_waiters(&node, 0).await;
    // Four leadership leases since the last acknowledgement, which is at most one heartbeat old.
    assert!(left >= Duration::from_millis(1_200), "before the leaderless time: {left:?}");
    assert!(left <= Duration::from_secs(2), "after the leaderless time plus one poll: {left:?}");
    assert!(matches!(waiting.await.expect("the task does not panic"), NodeReply::StillWaits));
    assert!(holder.is_held());
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn wait_dropped_before_it_is_queued_leaves_the_queue() {
    let (cluster, leader, others) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    others.into_iter().for_each(|other| cluster.board.delay(leader, other, Duration::from_millis(40)));
    let inner = node.inner.clone();
    let waiting = tokio::spawn(async move { inner.execute_as_leader(&Caller::Program, waiting_claim()).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(node.inner.raft.replica().read(|state| state.machine.counts().waiting), 0, "the entry is in flight");
    waiting.abort();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(holder.is_held());
    assert_eq!(waiters(&node).await, 0);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn node_shutdown_withdraws_its_own_waits_first() {
    for through_leader in [true, false] {
        let (cluster, leader, [follower, other]) = start().await;
        let holder = lease(&manager(cluster.node(other)));
        holder.acquire(Wait::No).await.expect("free");
        let node = cluster.node(if through_leader { leader } else { follower }).clone();
        let waiting = lease(&manager(&node));
        let waiting = tokio::spawn(async move { waiting.acquire(Wait::UpTo(TTL)).await });
        until_waiters(cluster.node(other), 1).await;
        node.shutdown().await;
        let ended = waiting.await.expect("the task does not panic");
        let is_certain = matches!(ended, Err(CallError::Refused(_) | CallError::ShutDown));
        assert!(is_certain, "the outcome of the wait is certain: {ended:?}");
        assert_eq!(waiters(cluster.node(other)).await, 0);
        cluster.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn manager_shutdown_withdraws_an_unpolled_acquire() {
    let (cluster, leader, [follower, _]) = start().await;
    let holder = lease(&manager(cluster.node(leader)));
    holder.acquire(Wait::No).await.expect("free");
    let waits = manager(cluster.node(follower));
    let waiting = lease(&waits);
    let mut acquire = Box::pin(waiting.acquire(Wait::UpTo(TTL)));
    while waiters(cluster.node(leader)).await == 0 {
        assert!(acquire.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(waits.shutdown().await, []);
    assert_eq!(waiters(cluster.node(leader)).await, 0, "the shutdown returned after the withdrawal");
    assert_eq!(acquire.await, Err(CallError::ShutDown));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_that_cannot_leave_the_queue_says_unknown() {
    let (cluster, leader, [follower, other]) = start().await;
    let holder = lease(&manager(cluster.node(leader)));
    holder.acquire(Wait::No).await.expect("free");
    let waits = manager(cluster.node(follower));
    let waiting = lease(&waits);
    let acquire = tokio::spawn(async move { waiting.acquire(Wait::UpTo(TTL)).await });
    until_waiters(cluster.node(other), 1).await;
    cluster.board.isolate(follower, cluster.ids());
    let failed = waits.shutdown().await;
    assert!(failed.iter().any(|(name, _)| name.as_str() == "job"), "{failed:?}");
    let ended = acquire.await.expect("the task does not panic");
    assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
}

/// The isolated follower has applied the grant, and does not know whether the others have ended it since.
#[tokio::test(start_paused = true)]
async fn reads_at_an_isolated_follower_fail() {
    let (cluster, _, [follower, _]) = start().await;
    let node = cluster.node(follower);
    let (manager, local) = (manager(node), Local::new(node.clone()));
    let lease = lease(&manager);
    lease.acquire(Wait::No).await.expect("free");
    let begun = Instant::now();
    while node.raft().replica().read(|state| state.machine.counts().held) == 0 {
        assert!(begun.elapsed() < SOON, "no grant at the follower within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    cluster.board.isolate(follower, cluster.ids());
    let budget = RetryBudget::within(SOON);
    let checked = lease.check().await;
    assert!(matches!(checked, Err(CallError::Unavailable(_))), "{checked:?}");
    let listed = local.held(String::new(), budget).await;
    assert!(matches!(listed, Err(CallError::Unavailable(_))), "{listed:?}");
    let explained = local.explain(lease.name().clone(), lease.holder().clone(), budget).await;
    assert!(matches!(explained, Err(CallError::Unavailable(_))), "{explained:?}");
    cluster.board.heal();
    cluster.leader().await;
    assert_eq!(lease.check().await, Ok(true));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn release_is_repeated_at_the_next_leader() {
    let (cluster, leader, [follower, _]) = start().await;
    let manager = manager(cluster.node(follower));
    let guard = lease(&manager).guard(Wait::No).await.expect("free");
    cluster.board.pause(leader);
    let begun = Instant::now();
    assert_eq!(guard.release().await, Ok(true));
    assert!(begun.elapsed() < SOON, "the release takes one election: {:?}", begun.elapsed());
    cluster.board.resume(leader);
    cluster.leader().await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn failed_guard_release_can_be_repeated() {
    let (cluster, _, [follower, _]) = start().await;
    let manager = manager(cluster.node(follower));
    let guard = lease(&manager).guard(Wait::No).await.expect("free");
    cluster.board.isolate(follower, cluster.ids());
    let failed = guard.release().await;
    assert!(matches!(failed, Err(CallError::Unknown { .. } | CallError::Unavailable(_))), "{failed:?}");
    assert!(!guard.is_held());
    cluster.board.heal();
    cluster.leader().await;
    assert_eq!(guard.release().await, Ok(true));
    assert_eq!(guard.release().await, Ok(false));
    cluster.shutdown().await;
}

/// Each claim waits, or would wait if the cluster did not answer it at once.
#[tokio::test(start_paused = true)]
async fn ended_waits_leave_no_entry() {
    let limits = Limits { max_waiters: 1, ..Limits::default() };
    let settings = LeaseSettings { limits, ..LeaseSettings::default() };
    let cluster = Cluster::start(3, RaftTimings::lan(), settings).await;
    let leader = cluster.leader().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let entries = || {
        let of = |id| {
            let requests = &cluster.node(id).inner.requests;
            requests.waits.ids().len() + requests.local_waits.ids().len()
        };
        cluster.ids().map(of).sum::<usize>()
    };
    let refusal = |refused: Result<_, CallError>| match refused {
        Err(CallError::Refused(problem)) => problem.code,
        other => panic!("not refused: {other:?}"),
    };
    for at in [leader, follower] {
        let (holder, node) = (lease(&manager(cluster.node(leader))), cluster.node(at).clone());
        let waits = || lease(&manager(&node));
        let wait = || {
            let lease = waits();
            tokio::spawn(async move { lease.acquire(Wait::UpTo(TTL)).await.map(|_| lease) })
        };
        holder.acquire(Wait::No).await.expect("free");
        assert_eq!(refusal(waits().acquire(Wait::UpTo(SOON)).await), Code::WaitTimeout);
        assert_eq!(entries(), 0, "the wait is over");
        let options = LeaseOptions::new().ttl(TTL).limit(2);
        let other_limit = manager(&node).lease_with("job", options).expect("valid");
        assert_eq!(refusal(other_limit.acquire(Wait::UpTo(TTL)).await), Code::LimitDiffers);
        assert_eq!(entries(), 0, "refused");
        let waiting = wait();
        until_waiters(&node, 1).await;
        assert_eq!(entries(), 2, "at the leader, and at the node with the request");
        assert_eq!(refusal(waits().acquire(Wait::UpTo(TTL)).await), Code::QueueFull);
        assert_eq!(entries(), 2, "the queue is full");
        waiting.abort();
        until_waiters(&node, 0).await;
        assert_eq!(entries(), 0, "dropped");
        let waiting = wait();
        until_waiters(&node, 1).await;
        holder.release().await.expect("released");
        let granted = waiting.await.expect("no panic").expect("granted");
        assert_eq!(entries(), 0, "granted");
        granted.release().await.expect("released");
        granted.acquire(Wait::UpTo(TTL)).await.expect("free");
        assert_eq!(entries(), 0, "granted at once");
        granted.release().await.expect("released");
    }
    cluster.shutdown().await;
}

/// Claims that arrive when a leader begins share its first entry.
#[tokio::test(start_paused = true)]
async fn first_claims_of_a_term_meet_the_limits_of_its_leader() {
    const CLIENTS: usize = 64;
    let settings = |max_leases| {
        let limits = Limits { max_leases, ..Limits::default() };
        LeaseSettings { limits, ..LeaseSettings::default() }
    };
    let lease_of = [(1, settings(1_000)), (2, settings(1))].into();
    let cluster = Cluster::start_with(2, Setup { lease_of, ..Setup::default() }).await;
    let claim = |name: String| {
        let Request::Acquire(claim) = waiting_claim() else { unreachable!("it is a claim") };
        Request::Acquire(Acquire { name: LeaseName::new(name).expect("valid"), wait_ms: None, ..claim })
    };
    for round in 0..4 {
        if cluster.leader().await != 1 {
            cluster.node(2).transfer_leadership_to(1).await.expect("handed on");
        }
        let held = cluster.node(1).request(claim("held".to_owned()), Forward::Once).await.expect("answered").answer;
        assert!(matches!(held, Answer::Outcome(Outcome::Held { .. })), "{held:?}");
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (inner, claim) = (cluster.node(2).inner.clone(), claim(format!("job-{round}-{client}")));
                let mut leads = inner.requests.clock.changes();
                tokio::spawn(async move {
                    leads.wait_for(Option::is_some).await.expect("the node runs");
                    inner.execute_as_leader(&Caller::Program, claim).await.map(|response| response.answer)
                })
            })
            .collect();
        cluster.node(1).transfer_leadership_to(2).await.expect("handed on");
        for client in clients {
            let refused = Answer::Outcome(Outcome::Refused(Refusal::TooManyLeases { max_leases: 1 }));
            assert_eq!(client.await.expect("no panic"), Ok(refused), "round {round}");
        }
    }
    cluster.shutdown().await;
}

/// Another guard of the process takes a part of the wait, and the queue takes the rest.
#[tokio::test(start_paused = true)]
async fn guard_waits_once_for_its_whole_wait() {
    const WAIT: Duration = Duration::from_secs(10);
    let (cluster, leader, _) = start().await;
    let node = cluster.node(leader);
    let (mine, other) = (manager(node), lease(&manager(node)));
    let first = lease(&mine).guard(Wait::No).await.expect("free");
    let next = tokio::spawn(async move { other.acquire(Wait::UpTo(TTL)).await.map(|_| other) });
    until_waiters(node, 1).await;
    let (began, second) = (Instant::now(), lease(&mine));
    let second = tokio::spawn(async move { second.guard(Wait::UpTo(WAIT)).await.map(drop) });
    tokio::time::sleep(WAIT * 3 / 5).await;
    first.release().await.expect("released");
    let next = next.await.expect("the task does not panic").expect("it is the first in the queue");
    let refused = second.await.expect("the task does not panic").expect_err("the next holder keeps the lease");
    assert!(matches!(&refused, CallError::Refused(problem) if problem.code == Code::WaitTimeout), "{refused}");
    let waited = began.elapsed();
    assert!(next.is_held() && (WAIT..WAIT + Duration::from_secs(1)).contains(&waited), "{waited:?}");
    cluster.shutdown().await;
}

fn claim_of(holder: &str) -> Request {
    let Request::Acquire(claim) = waiting_claim() else { unreachable!("it is a claim") };
    Request::Acquire(Acquire { holder: HolderId::new(holder).expect("valid"), ..claim })
}

async fn queue(node: &TestNode) -> Vec<String> {
    let query = Query::Queue(LeaseName::new("job").expect("valid"));
    let read = Request::Read { query, consistency: Consistency::Leader };
    match node.request(read, Forward::Once).await.expect("answered").answer {
        Answer::Queue(waiters) => waiters.into_iter().map(|waiter| waiter.holder.to_string()).collect(),
        other => panic!("{other:?}"),
    }
}

/// The second request of the first waiter comes before the node has given up the place of the first request.
#[tokio::test(start_paused = true)]
async fn claim_that_comes_back_at_once_keeps_its_place() {
    let (cluster, leader, _) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    let claim = |by: &str| {
        let (inner, claim) = (node.inner.clone(), claim_of(by));
        Box::pin(async move { inner.execute_as_leader(&Caller::Program, claim).await })
    };
    let mut first = claim("first");
    while waiters(&node).await == 0 {
        assert!(first.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let _second = tokio::spawn(claim("second"));
    until_waiters(&node, 2).await;
    drop(first);
    let mut again = claim("first");
    assert!(again.as_mut().now_or_never().is_none(), "it waits");
    let again = tokio::spawn(again);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(queue(&node).await, ["first", "second"]);
    holder.release().await.expect("released");
    let granted = again.await.expect("it does not panic").expect("answered");
    assert!(matches!(granted.answer, Answer::Outcome(Outcome::Held { .. })), "{granted:?}");
    cluster.shutdown().await;
}

/// One node that is a whole cluster, and the URL of its API.
async fn served(data: &std::path::Path, settings: LeaseSettings) -> (super::Node, String) {
    let (http, peer) = (TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await);
    let (http, peer) = (http.expect("a free port"), peer.expect("a free port"));
    let address = |listener: &TcpListener| listener.local_addr().expect("it is bound").to_string();
    let (http_address, peer_address) = (address(&http), address(&peer));
    let builder = super::Node::builder("test").id(1).member(1, http_address.clone(), peer_address).data(data);
    let node = builder.lease(settings).peer_listener(peer).start().await.expect("it starts");
    while node.health().not_ready.is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let router = node.router();
    tokio::spawn(async move { axum::serve(http, router).await.expect("it serves") });
    (node, format!("http://{http_address}"))
}

async fn problem(response: reqwest::Response) -> (u16, serde_json::Value) {
    (response.status().as_u16(), response.json().await.expect("JSON"))
}

/// Reads a stream until it has said this, or to its end.
async fn read_until(stream: &mut reqwest::Response, text: &mut String, enough: &str) {
    let reading = async {
        while !text.contains(enough)
            && let Some(chunk) = stream.chunk().await.expect("it ends in order")
        {
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    };
    tokio::time::timeout(LONG, reading).await.expect("the stream goes on, or ends");
}

/// Long enough that only a hang exceeds it.
const LONG: Duration = Duration::from_secs(30);

/// A snapshot from the leader replaces the state of the node. The events before it are not kept.
#[tokio::test]
async fn watch_that_falls_behind_ends_with_lagged() {
    for (query, shows) in [("", true), ("?prefix=other", false)] {
        let data = tempfile::tempdir().expect("a folder");
        let (node, url) = served(data.path(), LeaseSettings::default()).await;
        let mut stream = plain_http::get(format!("{url}/v1/watch{query}")).await.expect("a stream");
        let mut text = String::new();
        read_until(&mut stream, &mut text, "\n\n").await;
        let claim = plain_http::client().post(format!("{url}/v1/leases/job/acquire"));
        let granted = claim.json(&serde_json::json!({"holder": "a"})).send().await.expect("an answer");
        assert_eq!(granted.status(), 200);
        if shows {
            read_until(&mut stream, &mut text, "data: ").await;
        }
        let applied = node.raft().replica().read(|state| state.applied).expect("a grant");
        node.inner.requests.events.forget(applied.index + 100);
        read_until(&mut stream, &mut text, "no text of a stream").await;
        let frames: Vec<&str> = text.split_terminator("\n\n").collect();
        let (last, before) = frames.split_last().expect("it has frames");
        let told = last.strip_prefix("event: lagged\ndata: ").unwrap_or_else(|| panic!("it ends with {last:?}"));
        let told: serde_json::Value = serde_json::from_str(told).expect("JSON");
        assert_eq!((&told["code"], &told["status"]), (&"lagged".into(), &409.into()), "{told}");
        assert!(before.iter().all(|frame| !frame.contains("lagged")), "it is said once: {text}");
        let place = before.iter().rev().flat_map(|frame| frame.lines()).find_map(|line| line.strip_prefix("id: "));
        let resumed = plain_http::get(format!("{url}/v1/watch?after={}", place.expect("a place"))).await;
        let (status, told) = problem(resumed.expect("an answer")).await;
        assert_eq!((status, &told["code"]), (410, &"compacted".into()), "{told}");
        node.shutdown().await;
    }
}

/// Entries with many claims fill the lease with holders, and its queue with waiters.
#[tokio::test]
async fn lease_with_too_many_bytes_is_full() {
    const CLAIMS: u64 = 26;
    let data = tempfile::tempdir().expect("a folder");
    let limits = Limits { waiter_timeout_ms: 600_000, max_waiters: 20_000, ..Limits::default() };
    let (node, url) = served(data.path(), LeaseSettings { limits, ..LeaseSettings::default() }).await;
    let metadata = Metadata::new([("k".to_owned(), "v".repeat(4_095))].into()).expect("the largest");
    let claim = |number: u64| {
        let Request::Acquire(claim) = claim_of(&format!("{number:0>190}")) else { unreachable!("it is a claim") };
        Command::Acquire(Acquire { wait_ms: Some(3_600_000), limit: MAX_LIMIT, metadata: metadata.clone(), ..claim })
    };
    let most = MAX_RETAINED_NAME_BYTES / (512 + 190 + 4_096);
    let term = node.raft().leadership().term;
    let mut full = 0;
    for first in (0..=most).step_by(CLAIMS as usize) {
        let commands = (first..(first + CLAIMS).min(most + 1)).map(claim).collect();
        // An entry grants a name at most once, so most claims wait.
        let batch = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands };
        let (_, applied) = node.raft().propose(term, Proposal::leases(&batch)).await.expect("it leads");
        let is_full = |outcome: &&Outcome| matches!(outcome, Outcome::Refused(Refusal::LeaseFull { .. }));
        full += applied.0.iter().filter(is_full).count();
    }
    assert_eq!(full, 1, "the last of all claims is one too many");
    let holder = "w".repeat(190);
    let body = serde_json::json!({"holder": holder, "limit": MAX_LIMIT, "wait_ms": 1000, "metadata": metadata});
    let client = plain_http::client();
    let refused = client.post(format!("{url}/v1/leases/job/acquire")).json(&body).send().await.expect("an answer");
    assert!(refused.headers().contains_key("retry-after"), "{:?}", refused.headers());
    let (status, told) = problem(refused).await;
    let expected = (429, &"lease_full".into(), &MAX_RETAINED_NAME_BYTES.into());
    assert_eq!((status, &told["code"], &told["limit"]), expected, "{told}");
    node.shutdown().await;
}

/// A request can be delivered when its leader leads again in a later term. Then it is certainly not done.
#[tokio::test(start_paused = true)]
async fn request_for_the_leader_of_another_term_is_not_executed() {
    let (cluster, leader, [follower, _]) = start().await;
    let inner = cluster.node(leader).inner.clone();
    let term = loop {
        if let Some(leader_term) = inner.requests.clock.leader_term() {
            break leader_term.term;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let service = NodeService(inner.clone());
    let sent = async |term| {
        let call = NodeCall::ForwardIn { term, trace: None, caller: Caller::Program, request: &claim_of("a") };
        let reply: Bytes = service.serve(follower, call.encode()).await;
        codec::decode::<NodeReply>(&reply, 4_096).expect("a reply")
    };
    for other in [term - 1, term + 1] {
        assert!(matches!(sent(other).await, NodeReply::NotLeader), "{other}");
        let proposed = inner.requests.proposer.propose(other, Command::Tick).await;
        assert_eq!(proposed, Err(ProposeError::NotLeader), "a command that waited since term {other}");
    }
    assert_eq!(inner.raft.replica().read(|state| state.machine.counts().held), 0);
    assert!(matches!(sent(term).await, NodeReply::Done(done) if done.is_ok()));
    assert_eq!(inner.raft.replica().read(|state| state.machine.counts().held), 1);
    cluster.shutdown().await;
}

/// A leader whose version does not know a request.
struct OlderLeader;

impl Service for OlderLeader {
    async fn serve(&self, _: NodeId, _: Bytes) -> Bytes {
        let refused = RequestError::Unreadable("the leader cannot decode it".to_owned());
        codec::encode(&NodeReply::Done(Box::new(Err(refused)))).into()
    }
}

#[tokio::test(start_paused = true)]
async fn request_of_a_later_version_is_unreadable() {
    let (cluster, leader, [follower, _]) = start().await;
    let service = NodeService(cluster.node(leader).inner.clone());
    // A forwarded request of a kind that this version does not have.
    let reply = service.serve(follower, Bytes::from_static(&[0, 99])).await;
    let reply: NodeReply = codec::decode(&reply, 1_024).expect("a reply");
    assert!(matches!(&reply, NodeReply::Done(done) if matches!(**done, Err(RequestError::Unreadable(_)))), "{reply:?}");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn request_that_the_leader_does_not_know_is_refused_at_once() {
    let (cluster, leader, [follower, _]) = start().await;
    let unreadable = RequestError::Unreadable("the leader cannot decode it".to_owned());
    assert_eq!(ProposeError::from(unreadable.clone()), ProposeError::Refused(unreadable.clone()));
    let raft = cluster.node(leader).inner.raft.service();
    cluster.board.attach(leader, Services { raft, node: OlderLeader });
    let begun = Instant::now();
    let refused = cluster.node(follower).request(claim_of("a"), Forward::Once).await;
    assert_eq!(refused, Err(unreadable));
    assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
}
