use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::task::JoinHandle;

use super::INTERVAL;
use crate::config::{LeaseSettings, RaftTimings};
use crate::lease::{Acquire, Command};
use crate::node::{Forward, Request, RequestError, Response};
use crate::testing::{Cluster, TestNode};
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, MemberChange, Metadata, NodeId, Ttl};

fn acquire(name: &str, holder: &str) -> Acquire {
    Acquire {
        name: LeaseName::new(name).expect("valid"),
        holder: HolderId::new(holder).expect("valid"),
        ttl: Ttl::INFINITE,
        wait_ms: None,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    }
}

fn claim(name: &str) -> Request {
    Request::Acquire(acquire(name, "a"))
}

fn release() -> Request {
    let (name, holder) = (LeaseName::new("job").expect("valid"), HolderId::new("a").expect("valid"));
    Request::Change(Command::Release { name, holder, token: FencingToken { term: 1, index: 1 } })
}

fn send(node: &TestNode, request: Request) -> JoinHandle<Result<Response, RequestError>> {
    let node = node.clone();
    tokio::spawn(async move { node.request(request, Forward::Once).await })
}

fn value(render: &PrometheusHandle, series: &str) -> u64 {
    text(render, series).parse().expect("a number")
}

fn text(render: &PrometheusHandle, series: &str) -> String {
    let text = render.render();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {series} in:\n{text}")).to_owned()
}

/// The disk of a single node hangs, so two entries stay in flight and the later commands wait.
#[tokio::test(start_paused = true)]
async fn waiting_and_refused_commands_are_counted() {
    const MS: Duration = Duration::from_millis(1);
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    cluster.leader().await;
    let node = cluster.node(1);
    node.request(claim("job"), Forward::Once).await.expect("answered");
    // The update of this gauge shows when the next updates come.
    while value(&render, "tenure_leases{state=\"held\"}") == 0 {
        tokio::time::sleep(MS).await;
    }
    let waiting =
        || ["ordinary", "urgent"].map(|of| value(&render, &format!("tenure_commands_waiting{{class=\"{of}\"}}")));
    let refused =
        || ["slow", "late", "full"].map(|of| value(&render, &format!("tenure_refused_total{{reason=\"queue_{of}\"}}")));
    assert_eq!((waiting(), refused()), ([0; 2], [0; 3]));
    tokio::time::sleep(INTERVAL - 300 * MS).await;
    cluster.hang_disk(1);
    for number in 0..2 {
        send(node, claim(&format!("in-flight-{number}")));
        tokio::time::sleep(MS).await;
    }
    let urgent: Vec<_> = (0..3).map(|_| send(node, release())).collect();
    tokio::time::sleep(MS).await;
    let ordinary: Vec<_> = (0..5).map(|number| send(node, claim(&format!("waits-{number}")))).collect();
    tokio::time::sleep(310 * MS).await;
    assert_eq!((waiting(), refused()), ([5, 3], [0; 3]));
    tokio::time::sleep(100 * MS).await;
    for _ in 0..2 {
        let refused = node.request(claim("too-slow"), Forward::Once).await;
        assert_eq!(refused, Err(RequestError::Busy));
    }
    assert_eq!(refused(), [2, 0, 0]);
    tokio::time::sleep(400 * MS).await;
    for late in ordinary {
        assert_eq!(late.await.expect("no panic"), Err(RequestError::Busy));
    }
    assert_eq!(refused(), [2, 5, 0]);
    tokio::time::sleep(INTERVAL).await;
    assert_eq!(waiting(), [0, 3]);
    assert!(urgent.iter().all(|waits| !waits.is_finished()), "a release is not refused");
}

/// Only the restarted node has the recorder.
#[tokio::test(start_paused = true)]
async fn restarted_follower_counts_the_replayed_transitions() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let mut cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    for number in 0..5 {
        let granted = cluster.node(leader).request(claim(&format!("job-{number}")), Forward::Once).await;
        granted.expect("answered");
    }
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    cluster.crash(follower).await;
    let _recording = metrics::set_default_local_recorder(&recorder);
    cluster.restart(follower).await;
    let applied = cluster.node(leader).status().await.applied;
    while cluster.node(follower).status().await.applied < applied {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let granted = value(&render, "tenure_lease_transitions_total{change=\"granted\"}");
    assert_eq!(granted, 5);
    tokio::time::sleep(2 * INTERVAL).await;
    assert_eq!(value(&render, "tenure_raft_leader"), 0);
    let contact = || text(&render, "tenure_raft_leader_contact_seconds").parse::<f64>().expect("a number of seconds");
    let connected = contact();
    assert!(connected < 1.0, "the leader sends heartbeats: {connected} s");
    cluster.board.isolate(follower, cluster.ids());
    tokio::time::sleep(Duration::from_secs(6)).await;
    let isolated = contact();
    assert!((4.0..7.0).contains(&isolated), "the node is isolated for 6 s: {isolated} s");
}

/// Starts a cluster and crashes one follower. Returns it and the leader. The follower that the test restarts is the
/// only node with the recorder.
async fn without_a_follower(count: u64) -> (Cluster, NodeId, NodeId) {
    let mut cluster = Cluster::start(count, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("several nodes");
    cluster.crash(follower).await;
    (cluster, follower, leader)
}

/// Transfers the leadership, and waits for the gauges of the new leader.
async fn transfer(cluster: &Cluster, from: NodeId, to: NodeId) {
    // A node that lags could not take the leadership.
    let lags = async || {
        let members = cluster.node(from).status().await.members;
        members.iter().any(|member| member.id == to && member.lag != Some(0))
    };
    while lags().await {
        tokio::time::sleep(INTERVAL / 10).await;
    }
    cluster.node(from).transfer_leadership_to(to).await.expect("it is connected");
    tokio::time::sleep(2 * INTERVAL).await;
}

/// The program goes on after the end of its node.
#[tokio::test(start_paused = true)]
async fn node_that_has_ended_exports_no_leader_and_no_leases() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let (mut cluster, observed, leader) = without_a_follower(3).await;
    let _recording = metrics::set_default_local_recorder(&recorder);
    cluster.restart(observed).await;
    transfer(&cluster, leader, observed).await;
    let third = cluster.ids().find(|id| ![observed, leader].contains(id)).expect("three nodes");
    let node = cluster.node(observed);
    let guarded = Request::Acquire(Acquire { lock_delay_ms: 60_000, ..acquire("revoked", "a") });
    let revoke = Command::Revoke { name: LeaseName::new("revoked").expect("valid"), reason: "test".to_owned() };
    for request in [claim("job"), guarded, Request::Change(revoke)] {
        node.request(request, Forward::Once).await.expect("answered");
    }
    send(node, Request::Acquire(Acquire { wait_ms: Some(60_000), ..acquire("job", "b") }));
    cluster.board.isolate(third, cluster.ids());
    tokio::time::sleep(3 * INTERVAL).await;
    let contact = format!("tenure_raft_member_contact_seconds{{member=\"{third}\"}}");
    let values = || {
        let states = ["held", "waiting", "delayed", "ended"].map(|state| format!("tenure_leases{{state=\"{state}\"}}"));
        let raft = ["tenure_raft_leader", "tenure_raft_quorum"].map(str::to_owned);
        raft.into_iter().chain(states).map(|series| value(&render, &series)).collect::<Vec<u64>>()
    };
    assert_eq!(values(), [1; 6]);
    assert_ne!(text(&render, &contact), "0", "the node is isolated");

    cluster.crash(observed).await;
    assert_eq!(values(), [0; 6]);
    assert_eq!(text(&render, &contact), "0");
    let leader_contact = text(&render, "tenure_raft_leader_contact_seconds").parse::<f64>();
    assert_eq!(leader_contact, Ok(f64::INFINITY), "it hears no leader");
}

#[tokio::test(start_paused = true)]
async fn quorum_gauge_needs_a_leader_with_a_majority() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let quorum = || value(&render, "tenure_raft_quorum");
    let contact = || text(&render, "tenure_raft_leader_contact_seconds").parse::<f64>().expect("a number");
    let (mut cluster, follower, leader) = without_a_follower(5).await;
    let _recording = metrics::set_default_local_recorder(&recorder);
    cluster.restart(follower).await;
    tokio::time::sleep(3 * INTERVAL).await;
    assert_eq!(quorum(), 1, "the leader has a majority");
    // The old leader and this node are a minority. It still hears the leader.
    let majority: Vec<_> = cluster.ids().filter(|id| ![leader, follower].contains(id)).collect();
    for node in [leader, follower] {
        cluster.board.isolate(node, majority.iter().copied());
    }
    tokio::time::sleep(5 * INTERVAL).await;
    assert!(contact() < 1.0, "the leader sent the last message {} s ago", contact());
    assert_eq!(quorum(), 0, "the leader has no majority");
    cluster.board.heal();
    tokio::time::sleep(5 * INTERVAL).await;
    assert_eq!(quorum(), 1, "the new leader has a majority");
    cluster.node(cluster.leader().await).transfer_leadership_to(follower).await.expect("it is connected");
    tokio::time::sleep(3 * INTERVAL).await;
    assert_eq!((value(&render, "tenure_raft_leader"), quorum()), (1, 1));
    cluster.board.isolate(follower, cluster.ids());
    tokio::time::sleep(3 * INTERVAL).await;
    assert_eq!((value(&render, "tenure_raft_leader"), quorum()), (0, 0), "a leader without a majority");
}

#[tokio::test(start_paused = true)]
async fn leader_reports_lag_and_contact_of_its_members() {
    const MISSED: u64 = 20;
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let (mut cluster, observed, third) = without_a_follower(3).await;
    let _recording = metrics::set_default_local_recorder(&recorder);
    cluster.restart(observed).await;
    let second = cluster.ids().find(|id| ![observed, third].contains(id)).expect("three nodes");
    let lag = |member| value(&render, &format!("tenure_raft_member_lag_entries{{member=\"{member}\"}}"));
    let contact = |member| {
        let series = format!("tenure_raft_member_contact_seconds{{member=\"{member}\"}}");
        text(&render, &series).parse::<f64>().expect("a number")
    };
    transfer(&cluster, third, observed).await;
    for member in [second, third] {
        assert_eq!(lag(member), 0, "node {member}");
        assert!((0.0..1.0).contains(&contact(member)), "node {member} answers: {} s", contact(member));
    }
    let own = format!("tenure_raft_member_lag_entries{{member=\"{observed}\"}}");
    assert!(!render.render().contains(&own), "the leader is no follower of itself");

    cluster.board.isolate(second, cluster.ids());
    for number in 0..MISSED {
        let granted = cluster.node(observed).request(claim(&format!("job-{number}")), Forward::Once).await;
        granted.expect("answered");
    }
    tokio::time::sleep(6 * INTERVAL).await;
    assert!(lag(second) >= MISSED, "{} entries", lag(second));
    assert!((5.0..8.0).contains(&contact(second)), "the node is isolated for 6 s: {} s", contact(second));
    let majority = text(&render, "tenure_raft_leader_contact_seconds").parse::<f64>().expect("a number");
    assert!(majority < 1.0, "a majority acknowledges the leader, which was a follower before: {majority} s");
    assert!(lag(third) == 0 && contact(third) < 1.0, "the other follower: {} s", contact(third));

    let removal = Request::ChangeMembers(MemberChange::Remove { id: second, force: true });
    cluster.node(observed).request(removal, Forward::Once).await.expect("a majority remains");
    tokio::time::sleep(2 * INTERVAL).await;
    assert_eq!((lag(second), contact(second)), (0, 0.0), "the node is removed");
    assert!(contact(third) > 0.0, "the other follower: {} s", contact(third));

    cluster.node(observed).transfer_leadership_to(third).await.expect("it is connected");
    tokio::time::sleep(2 * INTERVAL).await;
    assert_eq!((lag(third), contact(third)), (0, 0.0), "this node does not lead");
}
