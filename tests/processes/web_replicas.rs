//! The example `web_replicas`: three processes in two regions that embed a node each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{SOON, turn};
use crate::example::example;
use crate::plain_http;
use crate::port;
use crate::process::Process;
use crate::steady::{safety, steady};

steady!(web_replicas_share_leases_and_gate_by_region);

const POLL: Duration = Duration::from_millis(20);

struct Replicas {
    processes: Vec<Process>,
    addresses: Vec<String>,
}

impl Replicas {
    fn start(folder: &TempDir) -> Replicas {
        let addresses = || (0..3).map(|_| format!("127.0.0.1:{}", port::free())).collect::<Vec<String>>();
        let (http, peers) = (addresses(), addresses());
        let start = |(id, region): (usize, &str)| {
            let mut command = example("web_replicas");
            command.args([id.to_string().as_str(), region]).arg(folder.path().join(format!("data-{id}")));
            command.env("EXAMPLE_HTTP", http.join(",")).env("EXAMPLE_PEERS", peers.join(","));
            Process::start(&format!("replica-{id}"), command, folder.path())
        };
        let processes = (1..).zip(["eu", "eu", "us"]).map(start).collect();
        Replicas { processes, addresses: http }
    }

    async fn send(&self, id: usize, method: &str, path: &str) -> Option<(u16, Value)> {
        let method = method.parse().expect("a method");
        let request = plain_http::client().request(method, format!("http://{}{path}", self.addresses[id - 1]));
        let response = request.send().await.ok()?;
        Some((response.status().as_u16(), response.json().await.ok()?))
    }

    /// The answer of a request that succeeds.
    async fn ask(&self, id: usize, method: &str, path: &str) -> Option<Value> {
        self.send(id, method, path).await.filter(|(status, _)| *status < 400).map(|(_, answer)| answer)
    }

    /// The tokens with which the recurring task of a replica worked.
    fn tokens(&self, id: usize) -> Vec<u64> {
        let start = format!("replica {id} works with token ");
        let printed = self.processes[id - 1].printed();
        printed.lines().filter_map(|line| line.strip_prefix(&start)?.parse().ok()).collect()
    }

    /// The first answer that is no error. After an error, the result is unknown.
    async fn known(&self, id: usize, method: &str, path: &str) -> Value {
        let began = Instant::now();
        loop {
            if let Some(answer) = self.ask(id, method, path).await {
                return answer;
            }
            assert!(began.elapsed() < SOON, "replica {id}, {path}: only errors");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Repeats a request until it has the expected answer.
    async fn until(&self, id: usize, method: &str, path: &str, expected: Value) {
        let began = Instant::now();
        loop {
            let answer = self.ask(id, method, path).await;
            if answer.as_ref() == Some(&expected) {
                return;
            }
            assert!(began.elapsed() < SOON, "replica {id}, {path}: {answer:?}, expected {expected}");
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn web_replicas_share_leases_and_gate_by_region() {
    let _turn = turn().await;
    let folder = TempDir::new().expect("a folder");
    let mut replicas = Replicas::start(&folder);
    let acquired = |is: bool| json!({"name": "report", "acquired": is});
    let held = |is: bool| json!({"name": "report", "held": is});
    let member = |id: usize, weight: u32| json!({"id": format!("replica-{id}"), "weight": weight});
    let members = |me: usize, all: [Value; 3]| json!({"self": format!("replica-{me}"), "readyMembers": all});
    for id in 1..=3 {
        replicas.until(id, "GET", "/members", members(id, [member(1, 1), member(2, 1), member(3, 0)])).await;
    }
    replicas.until(1, "GET", "/lease-acquire/report", acquired(true)).await;
    for (id, is) in [(1, true), (2, false), (3, false)] {
        replicas.until(id, "GET", "/lease-check/report", held(is)).await;
    }
    assert_eq!(replicas.known(2, "GET", "/lease-acquire/report").await, acquired(false));
    assert_eq!(replicas.known(3, "GET", "/lease-acquire/report").await, acquired(false));
    // Gating: both replicas of the active region.
    for (id, is) in [(1, true), (2, true), (3, false)] {
        assert_eq!(replicas.ask(id, "GET", "/region-lease-check/report").await, Some(held(is)), "replica {id}");
    }
    let (mut owners, resources) = (Vec::new(), 32);
    for n in 0..resources {
        let path = format!("/resource/{n}");
        let mut answers = Vec::new();
        for id in 1..=3 {
            answers.push(replicas.ask(id, "GET", &path).await.expect("an answer"));
        }
        let owner = answers[0]["owner"].as_str().expect("an owner").to_owned();
        assert!(answers.iter().all(|answer| answer["owner"] == owner.as_str()), "{answers:?}");
        let own: Vec<bool> = answers.iter().map(|answer| answer["self"] == true).collect();
        let expected: Vec<bool> = (1..=3).map(|id| owner == format!("replica-{id}")).collect();
        assert_eq!(own, expected);
        owners.push(owner);
    }
    let of = |id: usize| owners.iter().filter(|owner| **owner == format!("replica-{id}")).count();
    println!("{resources} resources: replica 1 owns {}, replica 2 owns {}, replica 3 owns {}", of(1), of(2), of(3));
    assert!(of(1) > 0 && of(2) > 0 && of(3) == 0, "a member with weight 0 owns nothing");

    // The other region becomes active, first for the replicas that lose it.
    for id in 1..=3 {
        replicas.until(id, "PUT", "/active-region/us", json!({"active": "us"})).await;
    }
    for (id, is) in [(1, false), (2, false), (3, true)] {
        replicas.until(id, "GET", "/region-lease-check/report", held(is)).await;
    }
    replicas.until(1, "GET", "/lease-check/report", held(false)).await;
    assert_eq!(replicas.known(1, "GET", "/lease-acquire/report").await, acquired(false));
    replicas.until(3, "GET", "/lease-acquire/report", acquired(true)).await;
    replicas.until(1, "GET", "/resource/7", json!({"name": "7", "owner": "replica-3", "self": false})).await;
    let began = Instant::now();
    while !replicas.processes[2].printed().contains("replica 3 works with token") {
        assert!(began.elapsed() < SOON, "the recurring task does not run in the active region");
        tokio::time::sleep(POLL).await;
    }
    let invalid = replicas.send(1, "GET", "/lease-acquire/not%20a%20name").await.expect("an answer");
    assert_eq!(invalid.0, 400, "{invalid:?}");
    assert!(invalid.1["error"].is_string(), "{invalid:?}");
    // A crash: the lease expires, and the group loses the member.
    replicas.processes[2].kill();
    let worked = |replicas: &Replicas| replicas.tokens(1).len() + replicas.tokens(2).len();
    let before = worked(&replicas);
    for id in 1..=2 {
        replicas.until(id, "PUT", "/active-region/eu", json!({"active": "eu"})).await;
    }
    replicas.until(2, "GET", "/lease-acquire/report", acquired(true)).await;
    replicas.until(1, "GET", "/lease-acquire/report", acquired(false)).await;
    let began = Instant::now();
    while worked(&replicas) == before {
        assert!(began.elapsed() < SOON, "the recurring task does not run after the crash");
        tokio::time::sleep(POLL).await;
    }
    // A replica works only with a token of its own, and the ones after the crash are higher.
    let mut owners: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for id in 1..=3 {
        for token in replicas.tokens(id) {
            owners.entry(token).or_default().insert(id);
        }
    }
    println!("replicas by token of the recurring task: {owners:?}");
    safety!(owners.values().all(|ids| ids.len() == 1), "two replicas worked with one token: {owners:?}");
    let (last, _) = owners.last_key_value().expect("a token");
    safety!(replicas.tokens(3).iter().all(|token| token < last), "a token fell after the crash: {owners:?}");
    // Without a majority, the result of an acquire is unknown. What a replica holds, it knows without the cluster.
    replicas.processes[1].kill();
    let began = Instant::now();
    loop {
        let (status, answer) = replicas.send(1, "GET", "/lease-acquire/other").await.expect("an answer");
        if status == 503 && answer["error"].is_string() {
            break;
        }
        assert!(began.elapsed() < SOON, "{status} {answer} without a majority");
        tokio::time::sleep(POLL).await;
    }
    let check = replicas.ask(1, "GET", "/lease-check/other").await;
    assert_eq!(check, Some(json!({"name": "other", "held": false})));
}
