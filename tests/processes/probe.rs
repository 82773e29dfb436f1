//! `tenure probe` at nodes that require certificates and have another address for clients.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cluster::{Cluster, NODES, SOON};
use crate::commands::CommandOutput;
use crate::process::{Process, tenure};
use crate::steady::strict;
use crate::tls::{SETTINGS, make_certificates, replace_certificate};

strict!(
    probe_tells_a_live_node_from_a_ready_one,
    probe_of_a_live_node_succeeds_although_no_message_can_be_written,
    node_that_gives_no_answer_is_not_alive,
);

/// Runs a probe of a node, as a supervisor does.
fn probe(cluster: &Cluster, check: &str, node: &str) -> CommandOutput {
    let mut command = tenure();
    command.args(["probe", check]).env("TENURE_CONFIG", cluster.config()).env("TENURE_NODE", node);
    let output = command.output().expect("the command runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    CommandOutput { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Probes a node until the probe succeeds.
pub async fn succeeds(cluster: &Cluster, check: &str, node: &str) {
    let began = Instant::now();
    loop {
        let seen = probe(cluster, check, node);
        if seen.code == Some(0) {
            return;
        }
        assert!(began.elapsed() < SOON, "{check}: {seen:?}");
    }
}

async fn probe_tells_a_live_node_from_a_ready_one() {
    let mut cluster = Cluster::new(SETTINGS).await;
    // As in a container: no resolver knows the name of the node, and the certificate has no other one. Or as behind NAT:
    // the node is not reached at its address from here.
    let text = std::fs::read_to_string(cluster.config()).expect("a file");
    let mut hosts = ["node.invalid", "127.0.0.2", "node.invalid"].into_iter();
    let named = |line: &str| match line.strip_prefix("http = \"127.0.0.1:") {
        Some(port) => {
            let host = hosts.next().expect("three nodes");
            format!("http = \"{host}:{port}\nlisten_http = \"127.0.0.1:{port}\n")
        }
        None => format!("{line}\n"),
    };
    std::fs::write(cluster.config(), text.lines().map(named).collect::<String>()).expect("writable");
    make_certificates(&cluster);

    let stopped = probe(&cluster, "live", "1");
    assert_eq!(stopped.code, Some(4), "{stopped:?}");
    cluster.launch(1);
    succeeds(&cluster, "live", "1").await;
    let began = Instant::now();
    let alone = loop {
        let alone = probe(&cluster, "ready", "1");
        assert_eq!(alone.code, Some(4), "one node of three: {alone:?}");
        // Another text means that the answer took too long.
        if alone.stderr.contains("/readyz: ") || began.elapsed() > SOON {
            break alone;
        }
    };
    assert!(alone.stderr.contains("/readyz: "), "{alone:?}");
    for id in &NODES[1..] {
        cluster.launch(*id);
    }
    for id in NODES {
        succeeds(&cluster, "ready", &id.to_string()).await;
    }
    let unknown = probe(&cluster, "live", "4");
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    std::fs::remove_file(cluster.folder().join("tls/node-3.key")).expect("a file");
    let without_key = probe(&cluster, "ready", "3");
    assert_eq!(without_key.code, Some(1), "{without_key:?}");
    succeeds(&cluster, "live", "3").await;

    cluster.kill(2);
    replace_certificate(&cluster, 2, rcgen::date_time_ymd(2021, 1, 1));
    cluster.launch(2);
    succeeds(&cluster, "live", "2").await;
    let expired = probe(&cluster, "ready", "2");
    assert_eq!(expired.code, Some(4), "{expired:?}");
}

/// Writes the configuration of one node with this port for clients.
fn config_of_node_at(port: u16, folder: &Path) -> PathBuf {
    let config = folder.join("cluster.toml");
    let node = format!("[[node]]\nid = 1\nhttp = \"127.0.0.1:{port}\"\npeer = \"127.0.0.1:1\"\ndata = \"1\"\n");
    std::fs::write(&config, format!("cluster = \"a\"\n{node}")).expect("writable");
    config
}

/// The kernel accepts the connections of a process that is stopped or hangs.
async fn node_that_gives_no_answer_is_not_alive() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let folder = tempfile::TempDir::new().expect("a folder");
    let config = config_of_node_at(listener.local_addr().expect("it is bound").port(), folder.path());
    for check in ["live", "ready"] {
        let mut command = tenure();
        command.args(["probe", check, "--node", "1", "--timeout", "500ms", "--config"]).arg(&config);
        let mut probe = Process::start(check, command, folder.path());
        let status = probe.exit(SOON).await;
        assert_eq!(status.code(), Some(4), "{check}: {}", probe.said());
        assert!(probe.said().contains("did not answer within"), "{check}: {}", probe.said());
    }
}

/// Standard error is a file on a full disk. The node ends the connection without an answer, or is too busy.
async fn probe_of_a_live_node_succeeds_although_no_message_can_be_written() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let folder = tempfile::TempDir::new().expect("a folder");
    let config = config_of_node_at(port, folder.path());
    for response in ["", "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"] {
        let listener = listener.try_clone().expect("an open listener");
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(response.as_bytes());
        });
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let mut command = tenure();
        command.args(["probe", "live", "--node", "1", "--config"]).arg(&config).stderr(full);
        let status = command.status().expect("the command runs");
        assert_eq!(status.code(), Some(0), "{response:?}");
        answering.join().expect("the probe has connected");
    }
}
