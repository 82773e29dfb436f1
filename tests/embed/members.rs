//! Members of a cluster of embedded nodes with TLS, added and replaced through the Rust API.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::api::{Code, Members};
use tenure::client::{CallError, Endpoints, LeaseManager, Remote};
use tenure::http::{self, NodeRef, Settings};
use tenure::node::{Node, NodeBuilder, NodeFailure, PeerRefusal};
use tenure::tls::{ClientTls, NodeTls, TlsSettings};
use tenure::types::{MemberChange, MemberState, Role};
use tenure::{LeaseOptions, Wait};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::port;
use crate::steady::strict;
use crate::trio::{Plan, SOON, address, listener, name};

strict!(embedded_members_with_tls_are_added_and_replaced);

/// The certificates of nodes 1 to 4, and of their CA.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Certificates {
        let folder = TempDir::new().expect("a folder");
        let write = |name: String, text: String| std::fs::write(folder.path().join(name), text).expect("writable");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        write("ca.pem".to_owned(), params.self_signed(&key).expect("a certificate").pem());
        let ca = Issuer::new(params, key);
        for id in 1..=4 {
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::default();
            let uri = format!("tenure://embedded/node/{id}").try_into().expect("ASCII");
            let loopback = SanType::IpAddress("127.0.0.1".parse().expect("an address"));
            params.subject_alt_names = vec![loopback, SanType::URI(uri)];
            write(format!("{id}.pem"), params.signed_by(&key, &ca).expect("a certificate").pem());
            write(format!("{id}.key"), key.serialize_pem());
        }
        Certificates(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    fn of_node(&self, id: u64) -> NodeTls {
        let settings = TlsSettings::new(self.ca(), self.file(&format!("{id}.pem")), self.file(&format!("{id}.key")));
        NodeTls::load(&settings, "embedded", id).expect("valid files")
    }
}

/// Starts a node, and serves its API with TLS.
async fn start(builder: NodeBuilder, id: u64, tls: NodeTls, listener: TcpListener) -> Node {
    let node = builder.tls(tls.clone()).start().await.expect("the node starts");
    let mut settings = Settings::new(id);
    settings.tls = Some(tls);
    tokio::spawn(http::serve(listener, NodeRef::from(&node), settings, CancellationToken::new()));
    node
}

/// Makes a change at a node, again while the new member catches up, or while no transfer of the leadership succeeds in time.
async fn change(node: &Node, wanted: MemberChange) -> Members {
    let began = Instant::now();
    loop {
        match node.change_members(wanted.clone()).await {
            Ok(members) => return members,
            Err(CallError::Refused(problem)) if !matches!(problem.code, Code::MemberLags | Code::ChangeInProgress) => {
                panic!("{wanted:?}: {problem:?}")
            }
            Err(error) => assert!(began.elapsed() < 2 * SOON, "{wanted:?}: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn ready_of(ca: &Path, address: &str) -> (u16, Value) {
    let client = crate::plain_http::https_builder(ca, None).build().expect("valid options");
    let answer = client.get(format!("https://{address}/readyz")).send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

async fn embedded_members_with_tls_are_added_and_replaced() {
    let certificates = Certificates::new();
    let listeners = vec![listener().await, listener().await, listener().await];
    let plan = Plan::new(&listeners);
    let starts =
        (1..).zip(listeners).map(|(id, listener)| start(plan.builder(id), id, certificates.of_node(id), listener));
    let mut nodes = join_all(starts).await;
    let ready = async {
        while nodes.iter().any(|node| node.health().not_ready.is_some()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, ready).await.expect("the nodes are ready");
    let ready = async { while ready_of(&certificates.ca(), plan.http(1)).await != (200, json!({"ready": true})) {} };
    tokio::time::timeout(SOON, ready).await.expect("node 1 answers that it is ready");

    let urls: Vec<String> = (1..=3).map(|id| format!("https://{}", plan.http(id))).collect();
    let endpoints: Endpoints = urls.join(",").parse().expect("valid addresses");
    let trust = ClientTls::trusting(certificates.ca()).expect("a CA");
    let remote = Remote::new(endpoints.with_refresh_interval(Duration::from_millis(500))).with_tls(&trust);
    let manager = LeaseManager::new(remote.clone());
    let lease = manager.lease_with("job", LeaseOptions::new().ttl(Duration::from_secs(6))).expect("valid options");
    let token = lease.acquire(Wait::No).await.expect("free");

    let leader = async {
        loop {
            if let Some(leader) = nodes[0].status().await.leader {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let leader = tokio::time::timeout(SOON, leader).await.expect("node 1 knows the leader");
    let at = nodes.iter().position(|node| node.id() != leader).expect("three nodes");
    let fourth = listener().await;
    let (http, peer) = (address(&fourth), format!("127.0.0.1:{}", port::free()));
    let added = change(&nodes[at], MemberChange::Add { id: 4, http: http.clone(), peer: peer.clone() }).await;
    let new = added.members.iter().find(|member| member.id == 4).expect("it was added");
    assert_eq!((new.role, new.http.as_str(), new.certificate_expires_at), (Role::Learner, http.as_str(), None));
    let joining = plan.builder(4).member(4, &http, &peer).join();
    nodes.push(start(joining, 4, certificates.of_node(4), fourth).await);
    let replaced = change(&nodes[at], MemberChange::Replace { old: leader, new: 4 }).await;
    let mut rest: Vec<u64> = (1..=4).filter(|id| *id != leader).collect();
    rest.sort();
    assert_eq!(replaced.members.iter().map(|member| member.id).collect::<Vec<_>>(), rest);
    assert!(replaced.members.iter().all(|member| member.role != Role::Learner), "{replaced:?}");

    let removed = nodes.iter().find(|node| node.id() == leader).expect("it runs");
    let why = tokio::time::timeout(SOON, removed.wait_failed()).await.expect("the removed node fails");
    assert_eq!(why, NodeFailure::Refused(PeerRefusal::Removed { node: leader }));
    let (status, problem) = ready_of(&certificates.ca(), plan.http(leader)).await;
    assert_eq!((status, &problem["code"]), (503, &json!("failed")), "{problem}");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(detail.contains(&format!("node {leader} was removed from the cluster")), "{detail}");
    removed.shutdown().await;

    // All members have seen the certificates of each other, so their connections use TLS.
    let stable = async {
        loop {
            let members = nodes[at].status().await.members;
            let is_settled = |member: &tenure::node::MemberStatus| {
                member.state == MemberState::Ok && member.certificate_expires_ms.is_some()
            };
            if members.len() == 3 && members.iter().all(is_settled) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, stable).await.expect("all members are healthy");
    // The client needs the new node now.
    let stays = nodes.iter().find(|node| node.id() == rest[0]).expect("it runs");
    assert_eq!(stays.transfer_leadership(Some(4)).await.expect("transferred").leader, 4);
    let renewed = async {
        while remote.get(&name("job")).await.ok().is_none_or(|lease| lease.renewals < 2) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, renewed).await.expect("the lease is renewed");
    assert_eq!((lease.is_held(), lease.token()), (true, Some(token)));
    lease.release().await.expect("released");
    manager.shutdown().await;
    join_all(nodes.iter().map(Node::shutdown)).await;
}
