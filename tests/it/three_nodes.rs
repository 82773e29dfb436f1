//! Three nodes over real sockets, each with its own listener: forwarding, redirects, resumed watches, an isolated
//! leader.

use std::time::{Duration, Instant};

use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::config::RaftTimings;
use tenure::http::{self, NodeRef, Settings};
use tenure::node::Node;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::calm;
use crate::cluster::SOON;
use crate::steady::strict;

strict!(
    redirect_keeps_the_path_and_the_query,
    answer_names_the_node_that_executed_the_request,
    watch_resumes_at_another_node,
    follower_reports_the_lag_of_each_member,
    isolated_leader_answers_no_current_read,
    linearizable_read_without_a_majority_is_not_answered,
);

pub struct ThreeNodes {
    nodes: Vec<Node>,
    addresses: Vec<String>,
    peers: Vec<String>,
    pub client: Client,
    _listeners: DropGuard,
    data: TempDir,
}

impl ThreeNodes {
    /// Returns when all nodes are ready.
    pub async fn start() -> ThreeNodes {
        ThreeNodes::with_timings(calm::timings()).await
    }

    async fn with_timings(timings: RaftTimings) -> ThreeNodes {
        let (mut http, mut peer) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            http.push(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
            peer.push(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
        }
        let address = |listener: &TcpListener| listener.local_addr().expect("the listener is bound").to_string();
        let addresses: Vec<String> = http.iter().map(address).collect();
        let peers: Vec<String> = peer.iter().map(address).collect();
        let (data, stop) = (TempDir::new().expect("a temporary directory"), CancellationToken::new());
        let mut starts = Vec::new();
        for (id, listener) in (1..).zip(peer) {
            let members = (1..).zip(addresses.iter().zip(&peers));
            let builder = Node::builder("three-nodes").id(id).data(data.path().join(id.to_string()));
            let builder = builder.timings(timings).peer_listener(listener);
            starts.push(members.fold(builder, |builder, (id, (http, peer))| builder.member(id, http, peer)).start());
        }
        let started = futures_util::future::join_all(starts).await;
        let nodes: Vec<Node> = started.into_iter().map(|node| node.expect("the node starts")).collect();
        for (listener, node) in http.into_iter().zip(&nodes) {
            let settings = Settings::new(node.id());
            tokio::spawn(http::serve(listener, NodeRef::from(node), settings, stop.clone()));
        }
        let client = crate::plain_http::builder().redirect(Policy::none()).build().expect("plain options");
        let cluster = ThreeNodes { nodes, addresses, peers, client, _listeners: stop.drop_guard(), data };
        let ready = async {
            while cluster.nodes.iter().any(|node| node.health().not_ready.is_some()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, ready).await.expect("all nodes are ready in time");
        cluster
    }

    /// Starts node 4, which no request has added yet. Returns its addresses.
    pub async fn join(&mut self) -> (String, String) {
        let mut listeners = [TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await];
        let [http, peer] = listeners.each_mut().map(|listener| {
            let listener = listener.as_ref().expect("a free port");
            listener.local_addr().expect("the listener is bound").to_string()
        });
        let [_, listener] = listeners;
        let builder = Node::builder("three-nodes").id(4).data(self.data.path().join("4")).join();
        let builder =
            builder.timings(calm::timings()).peer_listener(listener.expect("a free port")).member(4, &http, &peer);
        let members = (1..).zip(self.addresses.iter().zip(&self.peers));
        let builder = members.fold(builder, |builder, (id, (http, peer))| builder.member(id, http, peer));
        self.nodes.push(builder.start().await.expect("the node starts"));
        (http, peer)
    }

    pub fn url(&self, id: u64, path: &str) -> String {
        format!("http://{}{path}", self.addresses[id as usize - 1])
    }

    fn get(&self, id: u64, path: &str) -> RequestBuilder {
        self.client.get(self.url(id, path))
    }

    /// The status of the cluster as node `id` sees it, once the leader has answered it in time.
    async fn view(&self, id: u64) -> (u16, Value) {
        let began = Instant::now();
        loop {
            let (status, view) = answer(self.get(id, "/v1/cluster")).await;
            if !view["leader"].is_null() || began.elapsed() > SOON {
                return (status, view);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn acquire(&self, id: u64, name: &str, holder: &str) -> Response {
        let claim = self.client.post(self.url(id, &format!("/v1/leases/{name}/acquire")));
        let answer = claim.json(&json!({"holder": holder, "ttl_ms": 60000})).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        answer
    }

    /// The leader, and a follower.
    pub async fn roles(&self) -> (u64, u64) {
        let known = async {
            loop {
                if let Some(leader) = self.nodes[0].status().await.leader {
                    return leader;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let leader = tokio::time::timeout(SOON, known).await.expect("node 1 knows the leader in time");
        (leader, leader % 3 + 1)
    }

    pub async fn end(self) {
        futures_util::future::join_all(self.nodes.iter().map(Node::shutdown)).await;
    }
}

pub async fn answer(request: RequestBuilder) -> (u16, Value) {
    let response =
        tokio::time::timeout(SOON, request.send()).await.expect("the answer arrives in time").expect("an answer");
    (response.status().as_u16(), response.json().await.expect("JSON"))
}

async fn redirect_keeps_the_path_and_the_query() {
    let cluster = ThreeNodes::start().await;
    cluster.acquire(1, "job", "a").await;
    let (leader, follower) = cluster.roles().await;
    let path = "/v1/leases/job/explain?holder=a%20b&consistency=linearizable";
    let response = cluster.get(follower, path).header("x-tenure-no-forward", "").send().await.expect("an answer");
    // The location has the scheme of the request.
    let location = format!("http:{}", response.headers()["location"].to_str().expect("text"));
    assert_eq!((response.status().as_u16(), &location), (307, &cluster.url(leader, path)));
    assert_eq!(response.headers()["x-tenure-node"], follower.to_string());
    let problem: Value = response.json().await.expect("JSON");
    assert_eq!((&problem["code"], &problem["leader"]), (&json!("not_leader"), &json!(leader)));
    assert_eq!(answer(cluster.client.get(location)).await.0, 200);
    let (status, _) = answer(cluster.get(leader, path).header("x-tenure-no-forward", "1")).await;
    assert_eq!(status, 200, "the leader does not redirect");
    cluster.end().await;
}

async fn answer_names_the_node_that_executed_the_request() {
    let cluster = ThreeNodes::start().await;
    let (leader, follower) = cluster.roles().await;
    let response = cluster.acquire(follower, "job", "a").await;
    let number = |response: &Response, name: &str| -> u64 {
        response.headers()[name].to_str().expect("text").parse().expect("a number")
    };
    assert_eq!(number(&response, "x-tenure-node"), leader, "the follower forwards the request");
    let (term, index) = (number(&response, "x-tenure-term"), number(&response, "x-tenure-index"));
    let lease: Value = response.json().await.expect("JSON");
    assert_eq!(lease["term"], json!(term));
    assert!(lease["index"].as_u64().is_some_and(|granted| granted <= index), "{lease}, at index {index}");
    let post = |action: &str, body: Value| {
        cluster.client.post(cluster.url(follower, &format!("/v1/leases/job/{action}"))).json(&body)
    };
    let refused = [
        (409, post("acquire", json!({"holder": "b", "ttl_ms": 60000}))),
        (409, post("renew", json!({"holder": "b", "token": lease["token"]}))),
        (404, cluster.get(follower, "/v1/leases/unknown")),
    ];
    for (status, request) in refused {
        let response = request.send().await.expect("an answer");
        assert_eq!((response.status().as_u16(), number(&response, "x-tenure-node")), (status, leader));
        assert_eq!(number(&response, "x-tenure-term"), term, "status {status}");
        assert!(number(&response, "x-tenure-index") >= index, "status {status}");
    }
    for (path, by) in [("/v1/leases/job?consistency=stale", follower), ("/v1/cluster", follower), ("/livez", follower)]
    {
        let response = cluster.get(follower, path).send().await.expect("an answer");
        assert_eq!(number(&response, "x-tenure-node"), by, "{path}");
    }
    cluster.end().await;
}

/// Reads a watch until it has delivered `count` events.
async fn events(request: RequestBuilder, count: usize) -> Vec<String> {
    let mut response = request.send().await.expect("a stream");
    let (mut text, mut events) = (String::new(), Vec::new());
    let read = async {
        while events.len() < count {
            let chunk = response.chunk().await.expect("the stream is readable").expect("the stream has no end");
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
            events = text.split_inclusive("\n\n").filter(|frame| frame.contains("data: ")).map(str::to_owned).collect();
        }
    };
    tokio::time::timeout(SOON, read).await.expect("the events arrive in time");
    events
}

async fn watch_resumes_at_another_node() {
    let cluster = ThreeNodes::start().await;
    for number in 0..6 {
        cluster.acquire(1, &format!("job-{number}"), "a").await;
    }
    let all = events(cluster.get(1, "/v1/watch?after=0"), 6).await;
    assert_eq!(all.len(), 6, "{all:?}");
    for (index, event) in all.iter().enumerate().take(5) {
        let id = event.lines().find_map(|line| line.strip_prefix("id: ")).expect("an event has an id");
        let node = index as u64 % 2 + 2;
        let rest = events(cluster.get(node, "/v1/watch").header("last-event-id", id), 5 - index).await;
        assert_eq!(rest, all[index + 1..], "resumed at node {node} after {id}");
    }
    cluster.end().await;
}

async fn follower_reports_the_lag_of_each_member() {
    let cluster = ThreeNodes::start().await;
    let (leader, follower) = cluster.roles().await;
    cluster.acquire(leader, "job", "a").await;
    let (status, view) = cluster.view(follower).await;
    assert_eq!((status, &view["node"], &view["leader"]), (200, &json!(follower), &json!(leader)), "{view}");
    assert!(view["term"].as_u64() > Some(0) && view["applied"].as_u64() > Some(0), "{view}");
    let members = view["members"].as_array().expect("a list");
    assert_eq!(members.len(), 3, "{view}");
    for member in members {
        let id = member["id"].as_u64().expect("an id");
        assert_eq!(member["http"], json!(cluster.addresses[id as usize - 1]));
        assert_eq!(member["role"], json!(if id == leader { "leader" } else { "follower" }), "{member}");
        assert!(
            member["lag"].as_u64().is_some_and(|lag| lag <= view["applied"].as_u64().expect("an index")),
            "{member}"
        );
        let contact = member["last_contact_ms"].as_u64();
        assert!(contact.is_some_and(|ms| ms < SOON.as_millis() as u64), "{member}");
    }
    cluster.end().await;
}

/// Two of three nodes stop. The third was the leader.
async fn isolated_leader_answers_no_current_read() {
    // An isolated leader refuses a request only after four leadership leases.
    let timings = RaftTimings::lan();
    let mut cluster = ThreeNodes::with_timings(timings).await;
    cluster.acquire(1, "job", "a").await;
    let (leader, _) = cluster.roles().await;
    cluster.nodes.retain(|node| node.id() == leader);
    let not_ready = async { while answer(cluster.get(leader, "/readyz")).await.0 == 200 {} };
    tokio::time::timeout(SOON, not_ready).await.expect("the isolated leader loses its readiness in time");
    for consistency in ["linearizable", "leader"] {
        let read = cluster.get(leader, &format!("/v1/leases/job?consistency={consistency}"));
        let response =
            tokio::time::timeout(SOON, read.send()).await.expect("the answer arrives in time").expect("an answer");
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &"1".parse().expect("plain"))
        );
        let problem: Value = response.json().await.expect("JSON");
        assert_eq!(problem["code"], json!("no_leader"), "{consistency}: {problem}");
    }
    let stale = cluster.get(leader, "/v1/leases/job?consistency=stale").send().await.expect("an answer");
    assert_eq!(stale.status(), 200);
    let age: u64 = stale.headers()["x-tenure-stale-ms"].to_str().expect("text").parse().expect("a number");
    assert!(
        age >= 2 * timings.election_timeout_max_ms,
        "without a majority for two leadership leases, the age is only {age} ms"
    );
    let (status, view) = answer(cluster.get(leader, "/v1/cluster")).await;
    assert_eq!((status, &view["leader"]), (200, &Value::Null), "{view}");
    assert_eq!(answer(cluster.get(leader, "/readyz")).await.1["code"], json!("not_ready"));
    assert_eq!(cluster.get(leader, "/livez").send().await.expect("an answer").status(), 200, "a restart does not help");
}

/// The leader may still answer other reads from memory: a majority acknowledged it just before.
async fn linearizable_read_without_a_majority_is_not_answered() {
    let cluster = ThreeNodes::start().await;
    cluster.acquire(1, "job", "a").await;
    let (leader, _) = cluster.roles().await;
    let others = cluster.nodes.iter().filter(|node| node.id() != leader);
    futures_util::future::join_all(others.map(|node| node.shutdown())).await;
    let read = cluster.get(leader, "/v1/leases/job?consistency=linearizable").send();
    if let Ok(response) = tokio::time::timeout(Duration::from_secs(1), read).await {
        assert_ne!(response.expect("an answer").status(), 200);
    }
}
