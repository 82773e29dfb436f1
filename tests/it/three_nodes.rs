//! Three nodes over real sockets, each with its own listener: what the page says of any node and of a cut-off leader.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::http::{self, NodeRef, Settings};
use tenure::node::Node;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster::SOON;
use crate::steady::strict;

strict!(
    redirect_keeps_the_path_and_the_query,
    answer_names_the_node_that_carried_it_out,
    watch_resumes_at_another_node,
    follower_shows_how_far_each_member_is,
    cut_off_leader_answers_no_current_read,
);

struct Trio {
    nodes: Vec<Node>,
    addresses: Vec<String>,
    client: Client,
    _listeners: DropGuard,
    _data: TempDir,
}

impl Trio {
    /// Returns when all nodes are ready.
    async fn start() -> Trio {
        let (mut http, mut peer) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            http.push(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
            peer.push(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
        }
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound").to_string();
        let addresses: Vec<String> = http.iter().map(address).collect();
        let peers: Vec<String> = peer.iter().map(address).collect();
        let (data, stop) = (TempDir::new().expect("a folder"), CancellationToken::new());
        let mut starts = Vec::new();
        for (id, listener) in (1..).zip(peer) {
            let members = (1..).zip(addresses.iter().zip(&peers));
            let builder = Node::builder("trio").id(id).data(data.path().join(id.to_string())).peer_listener(listener);
            starts.push(members.fold(builder, |builder, (id, (http, peer))| builder.member(id, http, peer)).start());
        }
        let started = futures_util::future::join_all(starts).await;
        let nodes: Vec<Node> = started.into_iter().map(|node| node.expect("it starts")).collect();
        for (listener, node) in http.into_iter().zip(&nodes) {
            let settings = Settings::new(node.id());
            tokio::spawn(http::serve(listener, NodeRef::from(node), settings, stop.clone()));
        }
        let client = Client::builder().redirect(Policy::none()).build().expect("plain options");
        let trio = Trio { nodes, addresses, client, _listeners: stop.drop_guard(), _data: data };
        let ready = async {
            while trio.nodes.iter().any(|node| node.health().not_ready.is_some()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, ready).await.expect("all are ready soon");
        trio
    }

    fn url(&self, id: u64, path: &str) -> String {
        format!("http://{}{path}", self.addresses[id as usize - 1])
    }

    fn get(&self, id: u64, path: &str) -> RequestBuilder {
        self.client.get(self.url(id, path))
    }

    async fn acquire(&self, id: u64, name: &str, holder: &str) -> Response {
        let claim = self.client.post(self.url(id, &format!("/v1/leases/{name}/acquire")));
        let answer = claim.json(&json!({"holder": holder, "ttl_ms": 60000})).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        answer
    }

    /// The leader, and a follower.
    async fn roles(&self) -> (u64, u64) {
        let status = self.nodes[0].status().await;
        let leader = status.leader.expect("all nodes are ready");
        (leader, leader % 3 + 1)
    }

    async fn end(self) {
        futures_util::future::join_all(self.nodes.iter().map(Node::shutdown)).await;
    }
}

async fn answer(request: RequestBuilder) -> (u16, Value) {
    let response = tokio::time::timeout(SOON, request.send()).await.expect("it comes in time").expect("an answer");
    (response.status().as_u16(), response.json().await.expect("JSON"))
}

async fn redirect_keeps_the_path_and_the_query() {
    let trio = Trio::start().await;
    trio.acquire(1, "job", "a").await;
    let (leader, follower) = trio.roles().await;
    let path = "/v1/leases/job/explain?holder=a%20b&consistency=linearizable";
    let response = trio.get(follower, path).header("x-tenure-no-forward", "").send().await.expect("an answer");
    let location = response.headers()["location"].to_str().expect("text").to_owned();
    assert_eq!((response.status().as_u16(), &location), (307, &trio.url(leader, path)));
    assert_eq!(response.headers()["x-tenure-node"], follower.to_string());
    let problem: Value = response.json().await.expect("JSON");
    assert_eq!((&problem["code"], &problem["leader"]), (&json!("not_leader"), &json!(leader)));
    assert_eq!(answer(trio.client.get(location)).await.0, 200);
    let (status, _) = answer(trio.get(leader, path).header("x-tenure-no-forward", "1")).await;
    assert_eq!(status, 200, "the leader answers itself");
    trio.end().await;
}

async fn answer_names_the_node_that_carried_it_out() {
    let trio = Trio::start().await;
    let (leader, follower) = trio.roles().await;
    let response = trio.acquire(follower, "job", "a").await;
    let number = |response: &Response, name: &str| -> u64 {
        response.headers()[name].to_str().expect("text").parse().expect("a number")
    };
    assert_eq!(number(&response, "x-tenure-node"), leader, "it was passed on");
    let (term, index) = (number(&response, "x-tenure-term"), number(&response, "x-tenure-index"));
    let lease: Value = response.json().await.expect("JSON");
    assert_eq!(lease["term"], json!(term));
    assert!(lease["index"].as_u64().is_some_and(|granted| granted <= index), "{lease}, at index {index}");
    for (path, by) in [("/v1/leases/job?consistency=stale", follower), ("/v1/cluster", follower), ("/livez", follower)]
    {
        let response = trio.get(follower, path).send().await.expect("an answer");
        assert_eq!(number(&response, "x-tenure-node"), by, "{path}");
    }
    trio.end().await;
}

/// Reads a watch until it has said `count` events.
async fn events(request: RequestBuilder, count: usize) -> Vec<String> {
    let mut response = request.send().await.expect("a stream");
    let (mut text, mut events) = (String::new(), Vec::new());
    let read = async {
        while events.len() < count {
            let chunk = response.chunk().await.expect("it goes on").expect("it has no end");
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
            events = text.split_inclusive("\n\n").filter(|frame| frame.contains("data: ")).map(str::to_owned).collect();
        }
    };
    tokio::time::timeout(SOON, read).await.expect("the events come");
    events
}

async fn watch_resumes_at_another_node() {
    let trio = Trio::start().await;
    for number in 0..6 {
        trio.acquire(1, &format!("job-{number}"), "a").await;
    }
    let all = events(trio.get(1, "/v1/watch?after=0"), 6).await;
    assert_eq!(all.len(), 6, "{all:?}");
    for (seen, event) in all.iter().enumerate().take(5) {
        let id = event.lines().find_map(|line| line.strip_prefix("id: ")).expect("a place");
        let node = seen as u64 % 2 + 2;
        let rest = events(trio.get(node, "/v1/watch").header("last-event-id", id), 5 - seen).await;
        assert_eq!(rest, all[seen + 1..], "resumed at node {node} behind {id}");
    }
    trio.end().await;
}

async fn follower_shows_how_far_each_member_is() {
    let trio = Trio::start().await;
    let (leader, follower) = trio.roles().await;
    trio.acquire(leader, "job", "a").await;
    let (status, cluster) = answer(trio.get(follower, "/v1/cluster")).await;
    assert_eq!((status, &cluster["node"], &cluster["leader"]), (200, &json!(follower), &json!(leader)), "{cluster}");
    assert!(cluster["term"].as_u64() > Some(0) && cluster["applied"].as_u64() > Some(0), "{cluster}");
    let members = cluster["members"].as_array().expect("a list");
    assert_eq!(members.len(), 3, "{cluster}");
    for member in members {
        let id = member["id"].as_u64().expect("an id");
        assert_eq!(member["http"], json!(trio.addresses[id as usize - 1]));
        assert_eq!(member["role"], json!(if id == leader { "leader" } else { "follower" }), "{member}");
        assert!(
            member["lag"].as_u64().is_some_and(|lag| lag <= cluster["applied"].as_u64().expect("it has")),
            "{member}"
        );
        let contact = member["last_contact_ms"].as_u64();
        assert!(contact.is_some_and(|ms| ms < SOON.as_millis() as u64), "{member}");
    }
    trio.end().await;
}

/// Two of three nodes are gone. The third led before.
async fn cut_off_leader_answers_no_current_read() {
    let mut trio = Trio::start().await;
    trio.acquire(1, "job", "a").await;
    let (leader, _) = trio.roles().await;
    trio.nodes.retain(|node| node.id() == leader);
    let not_ready = async { while answer(trio.get(leader, "/readyz")).await.0 == 200 {} };
    tokio::time::timeout(SOON, not_ready).await.expect("it notices");
    for consistency in ["linearizable", "leader"] {
        let read = trio.get(leader, &format!("/v1/leases/job?consistency={consistency}"));
        let response = tokio::time::timeout(SOON, read.send()).await.expect("in time").expect("an answer");
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &"1".parse().expect("plain"))
        );
        let problem: Value = response.json().await.expect("JSON");
        assert_eq!(problem["code"], json!("no_leader"), "{consistency}: {problem}");
    }
    let stale = trio.get(leader, "/v1/leases/job?consistency=stale").send().await.expect("an answer");
    assert_eq!(stale.status(), 200);
    let age: u64 = stale.headers()["x-tenure-stale-ms"].to_str().expect("text").parse().expect("a number");
    assert!(age >= 650, "no majority for two leadership leases, and it says {age} ms");
    let (status, cluster) = answer(trio.get(leader, "/v1/cluster")).await;
    assert_eq!((status, &cluster["leader"]), (200, &Value::Null), "{cluster}");
    assert_eq!(answer(trio.get(leader, "/readyz")).await.1["code"], json!("not_ready"));
    assert_eq!(trio.get(leader, "/livez").send().await.expect("an answer").status(), 200, "a restart does not help");
}
