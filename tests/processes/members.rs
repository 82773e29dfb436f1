//! Changes of the members with real processes and the command line.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenure::client::{Endpoints, Remote};
use tenure::{HoldState, LeaseManager, LeaseOptions, Wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::calm;
use crate::client::{Call, Client, Outcome};
use crate::cluster::{Cluster, NODES, SOON, node_entry, place};
use crate::commands::run_at;
use crate::port;
use crate::prober::Prober;
use crate::process::Process;
use crate::steady::{safety, steady, strict};
use crate::tls::said;

steady!(all_machines_are_replaced_and_no_lease_is_lost, forced_removal_is_made_when_the_third_node_returns,);

strict!(
    member_is_promoted_and_takes_the_leadership,
    removed_node_exits_with_8_and_does_not_start_again,
    removed_node_responds_to_requests_in_progress,
    member_moves_to_other_addresses,
);

/// The exit code of a node that the cluster removed.
const REMOVED: i32 = 8;
/// The clients that acquire and release leases during the replacements.
const CLIENTS: usize = 3;
/// A pause in service of seconds is a fault. A planned change takes some milliseconds, and a node exits in between.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A node that joins the cluster of three, with its own configuration file.
struct Joining {
    id: u64,
    http: String,
    peer: String,
    config: PathBuf,
}

impl Joining {
    /// Writes a file with the node and the first nodes of the cluster.
    fn new(cluster: &Cluster, id: u64) -> Joining {
        let (http, peer) = (port::free(), port::free());
        let text = std::fs::read_to_string(cluster.config()).expect("the file of the cluster");
        let own = node_entry(id, http, peer, Path::new(&format!("data/{id}")));
        let config = cluster.folder().join(format!("node-{id}.toml"));
        std::fs::write(&config, format!("{text}{own}")).expect("the folder is writable");
        Joining { id, http: format!("127.0.0.1:{http}"), peer: format!("127.0.0.1:{peer}"), config }
    }

    fn start(&self, cluster: &Cluster) -> Process {
        cluster.process_with(self.id, &self.config, &["--join"])
    }

    fn add(&self) -> String {
        format!("member add {} --http {} --peer {}", self.id, self.http, self.peer)
    }
}

/// The output of a command that succeeds.
async fn json_at(cluster: &Cluster, endpoints: &str, line: &str) -> Value {
    run_at(cluster, endpoints, line).await.json()
}

fn ids(members: &Value, role: &str) -> Vec<u64> {
    let members = members.as_array().expect("a list of members");
    let has_role = |member: &&Value| (member["role"] == "learner") == (role == "learner");
    members.iter().filter(has_role).map(|member| member["id"].as_u64().expect("an id")).collect()
}

/// Acquires and releases a lease until `stop`. Each request starts at the first node of the list, as those of a command
/// do. Returns the times of the grants.
async fn acquire_and_release(client: Client, name: String, stop: CancellationToken) -> Vec<Instant> {
    let (mut last, mut granted) = (0, Vec::new());
    while !stop.is_cancelled() {
        let token = client.acquire(&name, &name, 60_000).await;
        safety!(token > last, "{name}: token {token} after {last}");
        last = token;
        granted.push(Instant::now());
        client.done(0, &Call::release(&name, &name, token)).await;
    }
    granted
}

/// Replaces the nodes of the cluster one after the other under load, while a client keeps a lease with a short ttl.
async fn all_machines_are_replaced_and_no_lease_is_lost() {
    let mut cluster = Cluster::start("").await;
    let mut endpoints = cluster.client.endpoints();
    // A machine is replaced in seconds here, so the client asks for the members more often than by default.
    let given: Endpoints = endpoints.parse().expect("valid endpoints");
    let manager = LeaseManager::new(Remote::new(given.with_refresh_interval(Duration::from_secs(1))));
    let lease = manager.lease_with("job", LeaseOptions::default().ttl(Duration::from_secs(3))).expect("valid options");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let joining = [4, 5, 6].map(|id| Joining::new(&cluster, id));
    let first = endpoints.split(',').map(str::to_owned);
    let all = Client::new(first.chain(joining.iter().map(|node| format!("http://{}", node.http))).collect());
    let (prober, stop) = (Prober::start(all.clone()).await, CancellationToken::new());
    let load: JoinSet<Vec<Instant>> =
        (1..=CLIENTS).map(|number| acquire_and_release(all.clone(), format!("load-{number}"), stop.clone())).collect();
    let began = Instant::now();
    let mut joined: Vec<Process> = Vec::new();
    for (old, joining) in NODES.into_iter().zip(&joining) {
        let new = joining.id;
        let added = run_at(&cluster, &endpoints, &joining.add()).await;
        assert!(added.stderr.contains(&format!("serve --config FILE --node {new} --join")), "{added:?}");
        joined.push(joining.start(&cluster));
        let replaced = json_at(&cluster, &endpoints, &format!("member replace {old} --with {new} -o json")).await;
        assert!(!ids(&replaced, "voter").contains(&old), "{replaced}");
        let mut replaced = cluster.nodes.remove(&old).expect("the old node runs");
        let status = replaced.exit(SOON).await;
        assert_eq!(status.code(), Some(REMOVED), "{}", replaced.said());
        assert!(replaced.said().contains(&format!("node {old} was removed from the cluster")), "{}", replaced.said());
        endpoints = format!("{},{endpoints}", joining.http);
        assert!(matches!(lease.state(), HoldState::Held { .. }), "after node {old}: {:?}", lease.state());
        // The client learns the new addresses within a few renewals.
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    prober.serves(&all).await;
    stop.cancel();
    let pause = prober.longest_pause(began);
    let granted = load.join_all().await;
    let of_clients = granted.iter().flat_map(|times| times.windows(2).map(|pair| pair[1] - pair[0])).max();
    let of_clients = of_clients.expect("each client had several grants");
    let grants: usize = granted.iter().map(Vec::len).sum();
    println!("the longest pause of the service: {pause:?}; of a client with {grants} grants in all: {of_clients:?}");
    assert!(pause < LONGEST_PAUSE && of_clients < LONGEST_PAUSE, "{pause:?}, of a client: {of_clients:?}");
    let members = json_at(&cluster, &endpoints, "member list -o json").await;
    assert_eq!((ids(&members, "voter"), ids(&members, "learner")), (vec![4, 5, 6], vec![]), "{members}");
    assert!(matches!(lease.state(), HoldState::Held { .. }), "{:?}", lease.state());
    safety!(lease.token() == Some(token), "the grant {token} was lost: {:?}", lease.token());
    let seen = json_at(&cluster, &endpoints, "lease get job -o json").await;
    assert_eq!(seen["token"], token.to_string(), "{seen}");
    lease.release().await.expect("released");
    manager.shutdown().await;
}

async fn removed_node_exits_with_8_and_does_not_start_again() {
    let mut cluster = Cluster::start(calm::SETTINGS).await;
    let endpoints = cluster.client.endpoints();
    let leader = cluster.leader().await;
    let transferred = json_at(&cluster, &endpoints, "cluster transfer -o json").await;
    assert_eq!(transferred["from"], leader, "{transferred}");
    let leader = cluster.leader().await;
    assert_eq!(transferred["leader"], leader, "{transferred}");
    let removed = json_at(&cluster, &endpoints, &format!("member remove {leader} -o json")).await;
    assert_eq!(removed.as_array().map(Vec::len), Some(2), "{removed}");
    let mut process = cluster.nodes.remove(&leader).expect("it runs");
    assert_eq!(process.exit(SOON).await.code(), Some(REMOVED), "{}", process.said());
    assert!(!process.said().contains("needs a restart"), "the log asks for another start: {}", process.said());
    let again = cluster.launch(leader);
    assert_eq!(again.exit(SOON).await.code(), Some(REMOVED), "{}", again.said());
    let rest: Vec<u64> = NODES.into_iter().filter(|id| *id != leader).collect();
    let refused = run_at(&cluster, &endpoints, &format!("member remove {leader}")).await;
    assert_eq!(refused.code, Some(7), "{refused:?}");
    let add = format!("member add {leader} --http 127.0.0.1:{} --peer 127.0.0.1:{}", port::free(), port::free());
    let refused = run_at(&cluster, &endpoints, &add).await;
    refused.refused("member_refused");
    // Two voters are left. With one of them down, none can be removed. Before the other stops leading, the command would
    // write an entry that a later majority may commit.
    cluster.kill(rest[1]);
    let began = Instant::now();
    while cluster.ask(rest[0], "/v1/cluster").await.is_none_or(|status| !status["leader"].is_null()) {
        assert!(began.elapsed() < SOON, "node {} still knows a leader", rest[0]);
        tokio::time::sleep(SOON / 100).await;
    }
    let refused = run_at(&cluster, &endpoints, &format!("member remove {} --timeout 3s", rest[1])).await;
    assert_ne!(refused.code, Some(0), "{refused:?}");
    cluster.launch(rest[1]);
    cluster.ready(rest[1]).await;
    let members = json_at(&cluster, &endpoints, "member list -o json").await;
    assert_eq!(ids(&members, "voter"), rest, "{members}");
}

/// A removal through the removed node itself is such a request.
async fn removed_node_responds_to_requests_in_progress() {
    let mut cluster = Cluster::start(calm::SETTINGS).await;
    let endpoints = cluster.client.endpoints();
    let leader = cluster.leader().await;
    let removed = NODES.into_iter().find(|id| *id != leader).expect("three");
    let body = r#"{"holder": "a", "ttl_ms": 60000}"#;
    let url = endpoints.split(',').nth(place(removed)).expect("a URL of each node");
    let address = url.trim_start_matches("http://");
    let mut request = TcpStream::connect(address).await.expect("the node listens");
    let head = format!("POST /v1/leases/job/acquire HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n", body.len());
    let head = format!("{head}content-type: application/json\r\n\r\n{}", &body[..1]);
    request.write_all(head.as_bytes()).await.expect("the node reads");
    let others: Vec<&str> = endpoints.split(',').filter(|other| *other != url).collect();
    json_at(&cluster, &others.join(","), &format!("member remove {removed} -o json")).await;
    said(&cluster, removed, "was removed from the cluster").await;
    request.write_all(&body.as_bytes()[1..]).await.expect("the node reads");
    let mut response = String::new();
    request.read_to_string(&mut response).await.expect("a whole response");
    assert!(response.starts_with("HTTP/1.1 503 ") && response.contains("\"code\":\"no_leader\""), "{response}");
    let process = cluster.node(removed);
    assert_eq!(process.exit(SOON).await.code(), Some(REMOVED), "{}", process.said());
}

/// The status of a request without an answer, or with the answer that its outcome is unknown.
const UNKNOWN: u16 = 504;

/// Sends a removal over HTTP, again while there is no leader. Returns the status and the body.
async fn delete(cluster: &Cluster, at: u64, path: &str) -> (u16, Value) {
    let call = Call { method: reqwest::Method::DELETE, ..Call::get(path) };
    let began = Instant::now();
    loop {
        match cluster.client.attempt(place(at), &call).await {
            Outcome::Done(members) => return (200, members),
            Outcome::Refused(problem) => return (problem["status"].as_u64().expect("a status") as u16, problem),
            Outcome::Unknown(why) => return (UNKNOWN, Value::from(why)),
            Outcome::NotDone(why) => assert!(began.elapsed() < SOON, "{path}: {why}"),
        }
    }
}

/// One of three nodes is down. The removal of another one leaves no majority, so the cluster stops until the node returns.
async fn forced_removal_is_made_when_the_third_node_returns() {
    for by_http in [false, true] {
        let mut cluster = Cluster::start("").await;
        let endpoints = cluster.client.endpoints();
        let leader = cluster.leader().await;
        let [down, removed] =
            NODES.into_iter().filter(|id| *id != leader).collect::<Vec<_>>().try_into().expect("three");
        cluster.kill(down);
        let began = Instant::now();
        while json_at(&cluster, &endpoints, "member list -o json").await[place(down)]["state"] != "unreachable" {
            assert!(began.elapsed() < SOON, "node {down} stays reachable");
        }
        let (line, path) = (format!("member remove {removed}"), format!("/v1/cluster/members/{removed}"));
        let began = Instant::now();
        if by_http {
            let (status, problem) = delete(&cluster, leader, &path).await;
            assert_eq!((status, &problem["code"]), (409, &Value::from("member_refused")), "{problem}");
            assert!(problem["detail"].as_str().is_some_and(|why| why.contains("only 1 of 2 voters")), "{problem}");
            let (status, answer) = delete(&cluster, leader, &format!("{path}?force=true")).await;
            assert_eq!(status, UNKNOWN, "no majority of the other voters can make it: {answer}");
        } else {
            let refused = run_at(&cluster, &endpoints, &line).await;
            refused.refused("member_refused");
            assert!(refused.stderr.contains("only 1 of 2 voters"), "{refused:?}");
            let forced = loop {
                let forced = run_at(&cluster, &endpoints, &format!("{line} --force --timeout 2s")).await;
                if forced.code != Some(4) || began.elapsed() > SOON {
                    break forced;
                }
            };
            assert_eq!(forced.code, Some(3), "no majority of the other voters can make it: {forced:?}");
        }
        let claim = Call::acquire("job", "a", 60_000);
        let stopped = cluster.client.attempt(place(leader), &claim).await;
        assert!(!matches!(stopped, Outcome::Done(_)), "control: the cluster has stopped: {stopped:?}");

        cluster.launch(down);
        let process = cluster.node(removed);
        assert_eq!(process.exit(SOON).await.code(), Some(REMOVED), "{}", process.said());
        cluster.client.done(place(leader), &claim).await;
        let members = json_at(&cluster, &endpoints, "member list -o json").await;
        let rest: Vec<u64> = NODES.into_iter().filter(|id| *id != removed).collect();
        assert_eq!((ids(&members, "voter"), ids(&members, "learner")), (rest, vec![]), "{members}");
    }
}

async fn member_is_promoted_and_takes_the_leadership() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let endpoints = cluster.client.endpoints();
    let joining = Joining::new(&cluster, 4);
    json_at(&cluster, &endpoints, &format!("{} -o json", joining.add())).await;
    let refused = run_at(&cluster, &endpoints, "member promote 4").await;
    refused.refused("member_lags");
    assert!(refused.stderr.contains("node 4 does not answer the leader"), "{refused:?}");
    let unknown = run_at(&cluster, &endpoints, "member promote 9").await;
    unknown.refused("not_found");
    let process = joining.start(&cluster);
    let began = Instant::now();
    let promoted = loop {
        let promoted = run_at(&cluster, &endpoints, "member promote 4 -o json").await;
        if promoted.code == Some(0) {
            break promoted.json();
        }
        assert!(began.elapsed() < SOON, "{promoted:?}; {}", process.said());
    };
    assert_eq!((ids(&promoted, "voter"), ids(&promoted, "learner")), (vec![1, 2, 3, 4], vec![]), "{promoted}");

    let leader = cluster.leader().await;
    let transferred = json_at(&cluster, &endpoints, "cluster transfer --to 4 -o json").await;
    assert_eq!((&transferred["from"], &transferred["leader"]), (&leader.into(), &4.into()), "{transferred}");
    let status = json_at(&cluster, &joining.http, "cluster status -o json").await;
    assert_eq!((&status["node"], &status["leader"]), (&4.into(), &4.into()), "{status}");
    let again = run_at(&cluster, &endpoints, "cluster transfer --to 4").await;
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "node 4 was the leader already\n"), "{again:?}");
    let back = run_at(&cluster, &endpoints, &format!("cluster transfer --to {leader}")).await;
    let expected = format!("node {leader} leads now, before: node 4\n");
    assert_eq!((back.code, back.stdout), (Some(0), expected), "{}", back.stderr);
    run_at(&cluster, &endpoints, "cluster transfer --to 9").await.refused("not_found");
}

/// Forwards connections from one port to another, like a container's published port.
async fn publish(port: u16, to: u16) -> AbortOnDropHandle<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut outside, _)) = listener.accept().await {
            connections.spawn(async move {
                let mut inside = TcpStream::connect(("127.0.0.1", to)).await?;
                copy_bidirectional(&mut outside, &mut inside).await
            });
        }
    }))
}

/// A stopped member gets other ports, and binds ports that only a forwarder reaches. The cluster reaches it there, and
/// it warns about the difference to its file.
async fn member_moves_to_other_addresses() {
    let mut cluster = Cluster::start(calm::SETTINGS).await;
    let endpoints = cluster.client.endpoints();
    let moved = cluster.follower().await;
    cluster.kill(moved);
    let [http, peer, listen_http, listen_peer] = [(); 4].map(|()| port::free());
    let _published = (publish(http, listen_http).await, publish(peer, listen_peer).await);
    let update = format!("member update {moved} --http 127.0.0.1:{http} --peer 127.0.0.1:{peer} -o json");
    let members = json_at(&cluster, &endpoints, &update).await;
    let member = &members[place(moved)];
    assert_eq!(member["peer"], format!("127.0.0.1:{peer}"), "{members}");
    let text = std::fs::read_to_string(cluster.config()).expect("the file of the cluster");
    let mut entries: Vec<&str> = text.split("[[node]]").collect();
    let own = node_entry(moved, http, peer, Path::new(&format!("data/{moved}")));
    let own = own.trim_start_matches("[[node]]");
    let own = format!("{own}listen_http = \"127.0.0.1:{listen_http}\"\nlisten_peer = \"127.0.0.1:{listen_peer}\"\n");
    entries[moved as usize] = &own;
    let config = cluster.folder().join("moved.toml");
    std::fs::write(&config, entries.join("[[node]]")).expect("the folder is writable");
    let process = cluster.process_with(moved, &config, &[]);
    let began = Instant::now();
    loop {
        let status = run_at(&cluster, &format!("127.0.0.1:{http}"), "cluster status -o json --timeout 1s").await;
        if status.code == Some(0) && status.json()["members"][place(moved)]["http"] == format!("127.0.0.1:{http}") {
            break;
        }
        assert!(began.elapsed() < SOON, "{status:?}; {}", process.said());
    }
    assert!(!process.said().contains("other addresses"), "{}", process.said());
    // The answer has the addresses that the leader knows. The moved node itself needs them in its log.
    let leader = cluster.status(cluster.leader().await).await;
    let applied = async || run_at(&cluster, &format!("127.0.0.1:{http}"), "cluster status -o json").await.json();
    while applied().await["applied"].as_u64() < leader["applied"].as_u64() {
        assert!(began.elapsed() < SOON, "{}", process.said());
    }
    drop(process);
    // With its old file it listens on the old ports, where no node calls it.
    let old = cluster.launch(moved);
    let began = Instant::now();
    let warning = "the cluster has other addresses of this node than its file";
    while !old.said().contains(warning) {
        assert!(began.elapsed() < SOON, "{}", old.said());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Five more checks of its membership.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(old.said().matches(warning).count(), 1, "{}", old.said());
}
