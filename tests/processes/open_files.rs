//! Tests a node with a low limit of open files, and clients that try to use all of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, prlimit};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Call, Client};
use crate::cluster::{SOON, node_entry, turn};
use crate::port;
use crate::process::Process;
use crate::steady::strict;

strict!(
    clients_cannot_use_all_open_files,
    listeners_accept_again_after_a_lack_of_files,
    listeners_without_files_use_no_processor,
);

/// The limit of open files of the node. 188 of them are for client connections.
const FILES: usize = 700;
const CLIENTS: usize = 188;
/// The node closes a connection of a peer without a handshake after this time.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// Frequent snapshots make the store open files all the time.
const SETTINGS: &str = "[raft]\nsnapshot_every = 100\nsnapshot_keep = 10\n";

/// Starts a node with the limit of open files.
fn start(folder: &Path, http: u16, peer: u16, settings: &str) -> Process {
    let config = folder.join("cluster.toml");
    let text = format!("cluster = \"test\"\n{}{settings}", node_entry(1, http, peer, "data/1".as_ref()));
    std::fs::write(&config, text).expect("the folder is writable");
    let mut command = Command::new("sh");
    let limited = format!("ulimit -n {FILES} && exec \"$0\" \"$@\"");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_tenure"), "serve", "--node", "1", "--config"]).arg(config);
    Process::start("node 1", command, folder)
}

async fn clients_cannot_use_all_open_files() {
    let _turn = turn().await;
    let folder = TempDir::new().expect("a folder");
    let (http, peer) = (port::free(), port::free());
    let mut node = start(folder.path(), http, peer, SETTINGS);
    let client = Client::new(vec![format!("http://127.0.0.1:{http}")]);
    client.done(0, &Call::get("/readyz")).await;

    let mut held = Vec::new();
    for _ in 0..FILES {
        held.push(TcpStream::connect(("127.0.0.1", http)).await.expect("the node listens"));
    }
    // The kernel accepted all connections. The node refuses those above its limit.
    let mut refused = 0;
    // One of the allowed connections belongs to the client above.
    for stream in held.iter_mut().skip(CLIENTS - 1) {
        let mut start = [0; 12];
        let answer = tokio::time::timeout(SOON, stream.read_exact(&mut start)).await.expect("in time");
        refused += usize::from(answer.is_ok() && &start == b"HTTP/1.1 503");
    }
    assert_eq!(refused, FILES - CLIENTS + 1, "the connections that were answered with 503");
    for number in 0..300 {
        client.acquire(&format!("n{number}"), "honest", 60_000).await;
    }
    // The node still accepts connections of other nodes.
    let opening = Instant::now();
    let mut other = TcpStream::connect(("127.0.0.1", peer)).await.expect("the node listens");
    let quiet = tokio::time::timeout(Duration::from_millis(200), other.read(&mut [0])).await;
    assert!(quiet.is_err() || opening.elapsed() >= HANDSHAKE, "the node closed the connection: {quiet:?}");
    assert!(node.is_running() && node.said().contains("at most 188 of "), "{}", node.said());
}

/// Limits the node to descriptors below the first one that is free.
fn take_all_files(node: &Process) {
    let open: BTreeSet<u64> = std::fs::read_dir(format!("/proc/{}/fd", node.id()))
        .expect("the process of this user")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().parse().expect("a number"))
        .collect();
    limit_files(node, (0..).find(|number| !open.contains(number)).expect("a free number"));
}

fn limit_files(node: &Process, current: u64) {
    let limit = Rlimit { current: Some(current), maximum: Some(FILES as u64) };
    prlimit(Some(node.pid()), Resource::Nofile, limit).expect("the process of this user");
}

/// Connects to the port until the node has written this text to its log. Returns the connections.
async fn connect_until(node: &Process, text: &str, port: u16) -> Vec<TcpStream> {
    let (began, mut opened) = (Instant::now(), Vec::new());
    while !node.said().contains(text) {
        assert!(began.elapsed() < SOON, "no {text:?} in {}", node.said());
        opened.push(connect(port).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    opened
}

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.expect("the kernel completes it")
}

/// A node that was ready, and that can open no more files.
async fn start_without_files(folder: &Path, http: u16, peer: u16) -> Process {
    let node = start(folder, http, peer, "");
    Client::new(vec![format!("http://127.0.0.1:{http}")]).done(0, &Call::get("/readyz")).await;
    take_all_files(&node);
    node
}

/// The connections wait in the kernel meanwhile.
async fn listeners_accept_again_after_a_lack_of_files() {
    let folder = TempDir::new().expect("a folder");
    let (http, peer) = (port::free(), port::free());
    let node = start_without_files(folder.path(), http, peer).await;
    // The first ones may take descriptors that have become free.
    let _clients = connect_until(&node, "cannot accept a connection", http).await;
    let _callers = connect_until(&node, "cannot accept a peer connection", peer).await;
    let (mut client, mut caller) = (connect(http).await, connect(peer).await);
    limit_files(&node, FILES as u64);

    client.write_all(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("the connection is open");
    let mut start = [0; 12];
    let answer = tokio::time::timeout(SOON, client.read_exact(&mut start)).await;
    answer.expect("an answer in time").expect("the connection is open");
    assert_eq!(&start, b"HTTP/1.1 200");
    caller.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("the connection is open");
    let closed = tokio::time::timeout(SOON, caller.read(&mut [0])).await;
    let read = closed.expect("the node refuses the caller");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

/// The time that a process has used of all processors.
fn processor_time(node: &Process) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.id())).expect("the process runs");
    let (_, after_name) = stat.rsplit_once(')').expect("the name is in parentheses");
    // The times in user mode and in the kernel, in hundredths of a second.
    let times = after_name.split_whitespace().skip(11).take(2);
    let hundredths: u64 = times.map(|time| time.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * hundredths)
}

/// A listener that accepts again at once uses one of them.
async fn listeners_without_files_use_no_processor() {
    let folder = TempDir::new().expect("a folder");
    let (http, peer) = (port::free(), port::free());
    let node = start_without_files(folder.path(), http, peer).await;
    let _clients = connect_until(&node, "cannot accept a connection", http).await;
    let _callers = connect_until(&node, "cannot accept a peer connection", peer).await;
    // Further ones wait if a descriptor has become free for the first ones.
    let _more = [connect(http).await, connect(http).await, connect(peer).await, connect(peer).await];
    let (before, began) = (processor_time(&node), Instant::now());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (used, took) = (processor_time(&node) - before, began.elapsed());
    assert!(used < took / 2, "{used:?} in {took:?}");
}
