//! Nodes with round trips of 300 ms between them, the longest that the profile `wan` allows.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::client::{Call, token};
use crate::cluster::{Cluster, NODES, place};
use crate::port;
use crate::steady::strict;

strict!(distant_nodes_form_a_cluster_and_replace_their_leader);

const ONE_WAY: Duration = Duration::from_millis(150);
/// A generous limit for an election between such nodes. Without a fault it takes 3 s.
const ELECTION: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// Puts a proxy that delays all bytes before the peer listener of each node.
async fn put_apart(cluster: &Cluster) -> JoinSet<()> {
    let mut proxies = JoinSet::new();
    let mut text = std::fs::read_to_string(cluster.config()).expect("a file");
    for id in NODES {
        let node = cluster.peer_address(id);
        let proxy = TcpListener::bind(("127.0.0.1", port::free())).await.expect("a free port");
        let address = proxy.local_addr().expect("it is bound");
        let (near, far) = (format!("peer = \"{node}\""), format!("peer = \"{address}\"\nlisten_peer = \"{node}\""));
        assert_eq!(text.matches(&near).count(), 1, "{text}");
        text = text.replace(&near, &far);
        proxies.spawn(serve(proxy, node));
    }
    std::fs::write(cluster.config(), text).expect("writable");
    proxies
}

async fn serve(proxy: TcpListener, node: String) {
    let mut directions = JoinSet::new();
    loop {
        let (caller, _) = proxy.accept().await.expect("a connection");
        // The connection of the caller closes if the node does not listen.
        let Ok(node) = TcpStream::connect(&node).await else { continue };
        let ((from_caller, to_caller), (from_node, to_node)) = (caller.into_split(), node.into_split());
        directions.spawn(delay(from_caller, to_node));
        directions.spawn(delay(from_node, to_caller));
    }
}

/// Passes bytes on, each after the delay.
async fn delay(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let (read, mut passed) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reads = async move {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            read.send((Instant::now() + ONE_WAY, bytes[..count].to_vec())).expect("the other half runs");
        }
    };
    let writes = async {
        while let Some((due, bytes)) = passed.recv().await {
            tokio::time::sleep_until(due.into()).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(ONE_WAY).await;
    };
    tokio::select! {
        () = writes => {}
        ((), ()) = async { (reads.await, std::future::pending().await) } => {}
    }
}

/// Waits until a node sees all these members in state `ok`, with working disks.
async fn all_are_well(cluster: &Cluster, at: u64, members: &[u64]) {
    let began = Instant::now();
    loop {
        let status = cluster.status(at).await;
        let all = status["members"].as_array().expect("members");
        let is_well = |member: &Value| member["state"] == "ok" && member["disk"] == "ok";
        let is_well = |id: &u64| all.iter().any(|member| member["id"] == *id && is_well(member));
        if members.iter().all(is_well) {
            return;
        }
        assert!(began.elapsed() < ELECTION, "{status}");
        tokio::time::sleep(POLL).await;
    }
}

async fn distant_nodes_form_a_cluster_and_replace_their_leader() {
    let mut cluster = Cluster::new("[raft]\nprofile = \"wan\"\n").await;
    let mut proxies = put_apart(&cluster).await;
    for id in NODES {
        cluster.launch(id);
    }
    cluster.leader_within(ELECTION).await;
    for id in NODES {
        all_are_well(&cluster, id, &NODES).await;
    }
    let granted = cluster.client.acquire("jobs", "a", 600_000).await;

    let leader = cluster.leader_within(ELECTION).await;
    let term = cluster.term(leader).await;
    cluster.kill(leader);
    let others: Vec<u64> = NODES.into_iter().filter(|id| *id != leader).collect();
    let next = cluster.leader_within(ELECTION).await;
    assert!(cluster.term(next).await > term, "node {next} leads since another term");
    all_are_well(&cluster, next, &others).await;
    let again = cluster.client.acquire("other", "a", 600_000).await;
    assert!(again > granted, "{again} is not above {granted}");
    let lease: Value = cluster.client.done(place(next), &Call::get("/v1/leases/jobs")).await;
    assert_eq!((lease["holder"].as_str(), token(&lease)), (Some("a"), granted), "{lease}");

    cluster.launch(leader);
    cluster.caught_up(leader).await;
    all_are_well(&cluster, next, &NODES).await;
    assert!(proxies.try_join_next().is_none(), "a proxy ended");
}
