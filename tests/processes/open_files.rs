//! Tests a node with a low limit of open files, and clients that try to use all of them.

use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::client::{Call, Client};
use crate::cluster::{SOON, node_entry, turn};
use crate::port;
use crate::process::Process;
use crate::steady::strict;

strict!(clients_cannot_use_all_open_files,);

/// The limit of open files of the node. 188 of them are for client connections.
const FILES: usize = 700;
const CLIENTS: usize = 188;
/// The node closes a connection of a peer without a handshake after this time.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// Frequent snapshots make the store open files all the time.
const SETTINGS: &str = "[raft]\nsnapshot_every = 100\nsnapshot_keep = 10\n";

async fn clients_cannot_use_all_open_files() {
    let _turn = turn().await;
    let folder = TempDir::new().expect("a folder");
    let (http, peer) = (port::free(), port::free());
    let config = folder.path().join("cluster.toml");
    let text = format!("cluster = \"test\"\n{}{SETTINGS}", node_entry(1, http, peer, "data/1".as_ref()));
    std::fs::write(&config, text).expect("the folder is writable");
    let mut command = Command::new("sh");
    let limited = format!("ulimit -n {FILES} && exec \"$0\" \"$@\"");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_tenure"), "serve", "--node", "1", "--config"]).arg(config);
    let mut node = Process::start("node 1", command, folder.path());
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
