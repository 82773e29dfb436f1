//! Clusters with members of two releases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::access::{AccessChange, AccessName, AccessToken, Denied, TokenHash};
use crate::peer::PeerRefusal;
use crate::raft::FeatureLevel;
use crate::testing::Cut;

/// Longest time from the start of the last member to the new level.
const RAISE_TIMEOUT: Duration = Duration::from_secs(3);

/// Three nodes. The nodes in `older` support only the first level.
async fn start_mixed(older: &[NodeId]) -> Cluster {
    let levels = older.iter().map(|id| (*id, FeatureLevel::FIRST)).collect();
    let cluster = Cluster::start_with(3, Setup { levels, ..Setup::default() }).await;
    cluster.leader().await;
    cluster
}

async fn enable(node: &TestNode) -> Result<(), RequestError> {
    let request = Request::ChangeAccess(AccessChange::Enable(true));
    node.request_of(&Caller::Program, request, Forward::Once).await.map(drop)
}

async fn add_expiring_token(node: &TestNode) -> Result<(), RequestError> {
    let principal = AccessName::new("p").expect("valid");
    let hash = TokenHash::of(&AccessToken::from_secret([7; 32]));
    let change = AccessChange::AddExpiringToken { principal, hash, created_wall_ms: 0, expires_wall_ms: 1 };
    node.request_of(&Caller::Program, Request::ChangeAccess(change), Forward::Once).await.map(drop)
}

fn refusal(result: Result<(), RequestError>) -> String {
    match result {
        Err(RequestError::Denied(Denied::Refused(why))) => why,
        other => panic!("not refused: {other:?}"),
    }
}

async fn until_level(cluster: &Cluster, level: FeatureLevel) {
    let reached = async {
        while cluster.ids().any(|id| cluster.node(id).feature_level() != level) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(RAISE_TIMEOUT, reached).await.expect("all nodes have the level");
}

#[tokio::test(start_paused = true)]
async fn new_cluster_reaches_the_level_of_its_members() {
    let cluster = start_mixed(&[]).await;
    until_level(&cluster, FeatureLevel::SUPPORTED).await;
    assert_eq!(cluster.node(1).status().await.feature_level, FeatureLevel::SUPPORTED.0);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn level_rises_when_the_last_member_is_upgraded() {
    let mut cluster = start_mixed(&[2, 3]).await;
    tokio::time::sleep(RAISE_TIMEOUT * 2).await;
    until_level(&cluster, FeatureLevel::FIRST).await;
    let refused = refusal(enable(cluster.node(1)).await);
    let expected = "this needs feature level 2, and the cluster has level 1: node ";
    assert!(refused.starts_with(expected) && refused.ends_with("supports only level 1: upgrade it"), "{refused}");
    let refused = refusal(add_expiring_token(cluster.node(1)).await);
    assert!(refused.starts_with("this needs feature level 5, and the cluster has level 1: node "), "{refused}");
    for id in [2, 3] {
        assert_eq!(cluster.node(1).feature_level(), FeatureLevel::FIRST, "node {id} is not upgraded yet");
        cluster.cut_power(id, Cut::Keep(usize::MAX)).expect("it runs").await;
        cluster.upgrade(id);
        cluster.restart(id).await;
        cluster.leader().await;
    }
    until_level(&cluster, FeatureLevel::SUPPORTED).await;
    enable(cluster.node(2)).await.expect("all members support it");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn level_rises_to_that_of_the_oldest_member_and_then_further() {
    let mut cluster = start_mixed(&[3]).await;
    transfer(&cluster, 1).await;
    cluster.cut_power(3, Cut::Keep(usize::MAX)).expect("it runs").await;
    cluster.downgrade(3, FeatureLevel::TOKEN_EXPIRY);
    cluster.restart(3).await;
    until_level(&cluster, FeatureLevel::TOKEN_EXPIRY).await;
    enable(cluster.node(2)).await.expect("all members support it");
    tokio::time::sleep(RAISE_TIMEOUT).await;
    until_level(&cluster, FeatureLevel::TOKEN_EXPIRY).await;
    assert_eq!(cluster.leader().await, 1, "a leader that supports more");
    cluster.cut_power(3, Cut::Keep(usize::MAX)).expect("it runs").await;
    cluster.upgrade(3);
    cluster.restart(3).await;
    until_level(&cluster, FeatureLevel::SUPPORTED).await;
    cluster.shutdown().await;
}

/// Only the restarted node has the recorder. It supports the newest level.
#[cfg(feature = "cli")]
#[tokio::test(start_paused = true)]
async fn level_gauge_shows_the_level_of_the_cluster() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let mut cluster = start_mixed(&[3]).await;
    cluster.crash(1).await;
    let _recording = metrics::set_default_local_recorder(&recorder);
    cluster.restart(1).await;
    cluster.leader().await;
    // A node updates its gauges each second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(cluster.node(1).feature_level(), FeatureLevel::FIRST, "node 3 is not upgraded");
    let text = render.render();
    let level = text.lines().find_map(|line| line.strip_prefix("tenure_feature_level "));
    assert_eq!(level, Some("1"), "{text}");
    cluster.shutdown().await;
}

/// A member that does not answer may be of an older release.
#[tokio::test(start_paused = true)]
async fn silent_member_holds_the_level() {
    let cluster = start_mixed(&[3]).await;
    let leader = cluster.leader().await;
    cluster.board.isolate(3, cluster.ids());
    let leader = if leader == 3 { until_other_leader(&cluster, 3).await } else { leader };
    tokio::time::sleep(RAISE_TIMEOUT).await;
    assert_eq!(cluster.node(leader).feature_level(), FeatureLevel::FIRST);
    let refused = refusal(enable(cluster.node(leader)).await);
    assert!(refused.ends_with("node 3 does not answer: start it, or remove it from the cluster"), "{refused}");
    cluster.shutdown().await;
}

/// The leader asks all members each second. The slow answer of node 2 leaves time to add node 4, which supports only the
/// first level.
#[tokio::test(start_paused = true)]
async fn level_stays_for_a_member_that_is_added_meanwhile() {
    let late = Duration::from_millis(450);
    for part in 0..15 {
        let mut cluster = start_mixed(&[3, 4]).await;
        transfer(&cluster, 1).await;
        cluster.cut_power(3, Cut::Keep(usize::MAX)).expect("it runs").await;
        cluster.upgrade(3);
        tokio::time::sleep(Duration::from_secs(1) + part * late / 4).await;
        cluster.restart(3).await;
        cluster.board.delay(2, 1, late);
        tokio::time::sleep(late / 2).await;
        let add = cluster.prepare_joining(4);
        cluster.restart(4).await;
        let added = cluster.node(1).request(Request::ChangeMembers(add), Forward::Never).await;
        added.unwrap_or_else(|error| panic!("part {part}: {error:?}"));
        cluster.board.delay(2, 1, Duration::from_millis(1));
        tokio::time::sleep(RAISE_TIMEOUT).await;
        assert_eq!(cluster.node(1).feature_level(), FeatureLevel::FIRST, "part {part}");
        cluster.shutdown().await;
    }
}

async fn transfer(cluster: &Cluster, to: NodeId) {
    loop {
        let leader = cluster.leader().await;
        if leader == to {
            return;
        }
        cluster.node(leader).transfer_leadership_to(to).await.expect("it is connected");
    }
}

/// Node 3 holds the cluster at the first level, whose requests name no term.
#[tokio::test(start_paused = true)]
async fn late_request_is_not_executed_in_a_later_term_of_its_leader() {
    let cluster = start_mixed(&[3]).await;
    transfer(&cluster, 1).await;
    cluster.node(2).request(claim_of("early"), Forward::Once).await.expect("the leader executes it");
    let held = || cluster.node(1).inner.raft.replica().read(|state| state.machine.counts().held);
    assert_eq!(held(), 1);
    cluster.board.cut(2, 1);
    let Request::Acquire(claim) = claim_of("late") else { unreachable!("it is a claim") };
    let late = Request::Acquire(Acquire { name: LeaseName::new("late").expect("valid"), wait_ms: None, ..claim });
    let sent = tokio::time::timeout(Duration::from_millis(50), cluster.node(2).request(late.clone(), Forward::Once));
    sent.await.expect_err("the request waits for the repair");
    for leader in [3, 1] {
        transfer(&cluster, leader).await;
    }
    cluster.board.reconnect(2, 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(held(), 1, "the request was for an earlier term");
    assert_eq!(cluster.node(1).feature_level(), FeatureLevel::FIRST);
    cluster.node(2).request(late, Forward::Once).await.expect("the leader executes it");
    assert_eq!(held(), 2);
    cluster.shutdown().await;
}

/// A leader that counts the questions for its level, and refuses each request.
#[derive(Clone)]
struct AskedLeader {
    questions: Arc<AtomicUsize>,
    answer: Option<FeatureLevel>,
    terms: Arc<Mutex<Vec<Option<u64>>>>,
}

impl Service for AskedLeader {
    async fn serve(&self, _: NodeId, call: Bytes) -> Bytes {
        let reply = match NodeCall::decode(&call).expect("a call of this release") {
            NodeCall::FeatureLevel => {
                self.questions.fetch_add(1, Ordering::Relaxed);
                self.answer.map_or(NodeReply::NotLeader, NodeReply::FeatureLevel)
            }
            NodeCall::ForwardIn { term, .. } => {
                self.terms.lock().push(Some(term));
                NodeReply::Done(Box::new(Err(RequestError::Busy)))
            }
            NodeCall::DiskState => NodeReply::NotLeader,
            _ => {
                self.terms.lock().push(None);
                NodeReply::Done(Box::new(Err(RequestError::Busy)))
            }
        };
        codec::encode(&reply).into()
    }
}

#[tokio::test(start_paused = true)]
async fn leader_is_asked_for_its_level_once_per_term() {
    for (answer, names_term) in
        [(Some(FeatureLevel::SUPPORTED), true), (Some(FeatureLevel::FIRST), false), (None, false)]
    {
        let cluster = start_mixed(&[3]).await;
        transfer(&cluster, 1).await;
        let leader = AskedLeader { questions: Arc::default(), answer, terms: Arc::default() };
        let raft = cluster.node(1).inner.raft.service();
        cluster.board.attach(1, Services { raft, node: leader.clone() });
        let term = cluster.node(2).leadership().term;
        for _ in 0..3 {
            let refused = cluster.node(2).request(claim_of("a"), Forward::Once).await;
            let expected = if answer.is_some() { RequestError::Busy } else { RequestError::NoLeader };
            assert_eq!(refused, Err(expected), "{answer:?}");
        }
        let terms = leader.terms.lock().clone();
        match answer {
            Some(_) => {
                assert_eq!(terms, [names_term.then_some(term); 3], "{answer:?}");
                assert_eq!(leader.questions.load(Ordering::Relaxed), 1, "{answer:?}");
            }
            // Without an answer, a request without a term could arrive late.
            None => assert_eq!(terms, []),
        }
    }
}

/// A leader that answers each question for its level with the removal of the node that asks.
#[derive(Clone)]
struct RemovingLeader;

impl Service for RemovingLeader {
    async fn serve(&self, _: NodeId, call: Bytes) -> Bytes {
        let reply = match NodeCall::decode(&call).expect("a call of this release") {
            NodeCall::FeatureLevel => NodeReply::Removed,
            _ => NodeReply::NotLeader,
        };
        codec::encode(&reply).into()
    }
}

/// The first request in the term of a leader asks for its level.
#[tokio::test(start_paused = true)]
async fn removed_node_fails_at_the_question_for_the_level() {
    let cluster = start_mixed(&[3]).await;
    transfer(&cluster, 1).await;
    let raft = cluster.node(1).inner.raft.service();
    cluster.board.attach(1, Services { raft, node: RemovingLeader });
    let node = cluster.node(2);
    assert_eq!(node.request(claim_of("a"), Forward::Once).await, Err(RequestError::NoLeader));
    let failed = node.health().failed;
    let refusal = PeerRefusal::Removed { node: 2 }.to_string();
    assert_eq!(failed, Some(refusal), "the cluster removed the node");
}

/// Node 3 has not the release of node 1, which led before.
#[tokio::test(start_paused = true)]
async fn leader_of_each_term_is_asked_for_its_level() {
    let cluster = start_mixed(&[3]).await;
    transfer(&cluster, 1).await;
    cluster.node(2).request(claim_of("early"), Forward::Once).await.expect("the leader executes it");
    transfer(&cluster, 3).await;
    let (answer, terms) = (Some(FeatureLevel::FIRST), Arc::default());
    let older = AskedLeader { questions: Arc::default(), answer, terms };
    let raft = cluster.node(3).inner.raft.service();
    cluster.board.attach(3, Services { raft, node: older.clone() });
    assert_eq!(cluster.node(2).request(claim_of("a"), Forward::Once).await, Err(RequestError::Busy));
    assert_eq!(*older.terms.lock(), [None], "node 3 cannot read a request with a term");
}

async fn until_other_leader(cluster: &Cluster, not: NodeId) -> NodeId {
    loop {
        let leads = |id: &NodeId| *id != not && cluster.node(*id).leadership().leader == Some(*id);
        if let Some(leader) = cluster.ids().find(leads) {
            return leader;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn access_control_works_before_the_level_rose_by_itself() {
    let cluster = start_mixed(&[]).await;
    enable(cluster.node(2)).await.expect("the leader raises the level first");
    assert_eq!(cluster.node(cluster.leader().await).feature_level(), FeatureLevel::SUPPORTED);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn downgraded_member_fails_with_the_reason() {
    let mut cluster = start_mixed(&[]).await;
    until_level(&cluster, FeatureLevel::SUPPORTED).await;
    cluster.cut_power(3, Cut::Keep(usize::MAX)).expect("it runs").await;
    cluster.downgrade(3, FeatureLevel::FIRST);
    let why = match cluster.launch(3).await {
        Err(error) => std::error::Error::source(&error).expect("Raft has the reason").to_string(),
        Ok(node) => node.wait_failed().await.to_string(),
    };
    assert!(why.contains("the cluster has feature level 6; this program supports levels up to 1"), "{why}");
    cluster.shutdown().await;
}
