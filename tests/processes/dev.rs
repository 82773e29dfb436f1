//! Tests `tenure dev`.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::client::{Call, Client, Outcome};
use crate::cluster::{SOON, turn};
use crate::process::{Process, tenure};
use crate::steady::strict;

strict!(dev_starts_three_nodes,);

/// The fixed ports of `tenure dev`: the client commands use them by default.
const PORTS: [u16; 6] = [7101, 7102, 7103, 7201, 7202, 7203];
/// The time for another `tenure dev` on this machine to exit.
const PORTS_FREE_WITHIN: Duration = Duration::from_secs(60);

async fn wait_for_ports() {
    let began = Instant::now();
    while let Some(port) = PORTS.into_iter().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_err()) {
        let waited = began.elapsed();
        assert!(
            waited < PORTS_FREE_WITHIN,
            "port {port} is in use, and tenure dev needs it: end the process that uses it"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn dev_starts_three_nodes() {
    let _turn = turn().await;
    wait_for_ports().await;
    let folder = TempDir::new().expect("a folder");
    let client = Client::new((7101..=7103).map(|port| format!("http://127.0.0.1:{port}")).collect());
    let mut token = None;
    // The second iteration uses the data of the first.
    for _ in 0..2 {
        let mut command = tenure();
        command.arg("dev").arg("--data").arg(folder.path().join("data"));
        let mut dev = Process::start("dev", command, folder.path());
        let began = Instant::now();
        for place in 0..3 {
            while !matches!(client.attempt(place, &Call::get("/readyz")).await, Outcome::Done(_)) {
                assert!(dev.is_running(), "tenure dev exited");
                assert!(began.elapsed() < SOON, "not ready after {SOON:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let (found, is_first) = (client.acquire("jobs", "a", 600_000).await, token.is_none());
        assert_eq!(*token.get_or_insert(found), found, "the lease survives the restart");
        let status = client.done(1, &Call::get("/v1/cluster")).await;
        assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{status}");
        // The grant is a change of the first iteration only.
        let (leader, grant) = (" leads in term ", format!("token {found}"));
        while !dev.said().contains(leader) || is_first && !dev.printed().contains(&grant) {
            assert!(began.elapsed() < SOON, "a change is not shown: {} {}", dev.said(), dev.printed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(dev.said().contains("tenure lease acquire jobs"), "it suggests a command: {}", dev.said());
        dev.signal(Signal::INT);
        let status = dev.exit(Duration::from_secs(11)).await;
        assert_eq!(status.code(), Some(0), "{}", dev.said());
    }
}
