//! With `-o json`, each line of standard error is a problem document.

use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::calm;
use crate::cluster::{Cluster, SOON};
use crate::port;
use crate::process::{Process, tenure};
use crate::steady::strict;

strict!(replacement_that_ends_at_its_limit_says_only_why, watch_without_a_cluster_says_documents);

/// The documents on standard error, one a line.
fn documents(said: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {said}"));
    said.lines().map(parse).collect()
}

async fn replacement_that_ends_at_its_limit_says_only_why() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let run = async |line: &str| {
        let mut command = tenure();
        command.args(line.split(' ')).env("TENURE_ENDPOINTS", cluster.client.endpoints());
        let mut process = Process::start("tenure member", command, cluster.folder());
        (process.exit(SOON).await.code(), process.said())
    };
    let add = format!("member add 4 --http 127.0.0.1:{} --peer 127.0.0.1:{}", port::free(), port::free());
    let (added, said) = run(&add).await;
    assert_eq!(added, Some(0), "{said}");
    // The new node never starts.
    let (replaced, said) = run("member replace 1 --with 4 --within 6s -o json").await;
    assert_eq!(replaced, Some(1), "{said}");
    let documents = documents(&said);
    assert!(matches!(documents.as_slice(), [one] if one["code"] == "member_lags"), "{said}");
}

async fn watch_without_a_cluster_says_documents() {
    let folder = TempDir::new().expect("a folder");
    let mut command = tenure();
    let endpoint = format!("127.0.0.1:{}", port::free());
    command.args(["lease", "watch", "x", "-o", "json", "--timeout", "200ms", "--endpoints", &endpoint]);
    let mut watch = Process::start("watch", command, folder.path());
    let began = Instant::now();
    while watch.said().lines().count() < 2 {
        assert!(watch.is_running() && began.elapsed() < SOON, "{}", watch.said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    watch.kill();
    for document in documents(&watch.said()) {
        assert_eq!(document["code"], "unavailable", "{document}");
    }
}
