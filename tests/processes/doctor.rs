//! `tenure doctor` against healthy, broken and dead clusters.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::calm;
use crate::cluster::{Cluster, NODES, SOON, place};
use crate::commands::{CommandOutput, run_at};
use crate::mount::Mount;
use crate::process::tenure;
use crate::steady::strict;
use crate::tls;

strict!(
    healthy_cluster_has_no_problem,
    dead_nodes_are_problems_and_nothing_hangs,
    certificates_are_checked_at_each_address,
    invalid_files_are_problems,
    access_control_leaves_unknown_results,
    small_disk_is_a_problem,
    problem_exits_with_9_although_its_reader_has_ended,
);

/// The nodes accept few clients, so that any limit of open files is high enough.
const SETTINGS: &str = "[http]\nmax_connections = 16\n";
/// The exit code of a doctor that found a problem.
const PROBLEM: i32 = 9;
/// No doctor takes longer: two rounds of addresses, each with a few steps of 2 s and with 3 s between two clock readings.
const LONGEST: Duration = Duration::from_secs(20);
/// No listener has this address.
const NOWHERE: &str = "http://127.0.0.1:1";

/// The result of a doctor.
#[derive(Debug)]
struct Examined {
    output: CommandOutput,
    findings: Vec<Value>,
}

impl Examined {
    fn finding(&self, name: &str) -> &Value {
        let found = self.findings.iter().find(|finding| finding["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }

    fn status(&self, name: &str) -> &str {
        self.finding(name)["status"].as_str().expect("a text")
    }

    fn facts(&self, name: &str) -> &str {
        self.finding(name)["facts"].as_str().expect("a text")
    }

    fn with_status(&self, status: &str) -> Vec<&str> {
        let found = self.findings.iter().filter(|finding| finding["status"] == status);
        found.filter_map(|finding| finding["name"].as_str()).collect()
    }

    fn problems(&self) -> Vec<&str> {
        self.with_status("problem")
    }
}

/// Runs a doctor with these options and with JSON. Each finding without success has an advice.
fn doctor(options: &[&str]) -> Examined {
    let mut command = tenure();
    command.arg("doctor").args(options).args(["-o", "json"]);
    for name in ["TENURE_ENDPOINTS", "TENURE_CONFIG", "TENURE_NODE"] {
        command.env_remove(name);
    }
    let began = Instant::now();
    let output = command.output().expect("the command runs");
    assert!(began.elapsed() < LONGEST, "{options:?} took {:?}", began.elapsed());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let output = CommandOutput { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
    let findings: Vec<Value> =
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    for finding in &findings {
        let is_ok = finding["status"] == "ok";
        assert_eq!(finding["advice"].is_null(), is_ok, "{finding}");
        assert_eq!(finding.as_object().expect("an object").len(), 4, "{finding}");
    }
    let examined = Examined { output, findings };
    let expected = if examined.problems().is_empty() { 0 } else { PROBLEM };
    assert_eq!(examined.output.code, Some(expected), "{examined:?}");
    examined
}

/// The doctor times 20 syncs, or those that a slow disk does in a second.
fn assert_synced(seen: &Examined) {
    let syncs = seen.facts("disk.sync").split_once(" syncs: ").and_then(|(syncs, _)| syncs.parse::<u32>().ok());
    assert!(syncs.is_some_and(|syncs| (1..=20).contains(&syncs)), "{seen:?}");
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn files(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("readable").file_name());
    let mut names: Vec<String> = files.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

async fn healthy_cluster_has_no_problem() {
    let cluster = Cluster::start(&format!("{SETTINGS}{}", calm::SETTINGS)).await;
    cluster.settled().await;
    for id in NODES {
        cluster.caught_up(id).await;
    }
    let before = files(&cluster.data(1));
    let seen = doctor(&["--config", path(cluster.config()), "--node", "1"]);
    assert_eq!(files(&cluster.data(1)), before, "the probe of the disk leaves no file");
    // The disk of the machine may be slow or small, and its timers late. All other results are certain.
    let depends_on_the_machine = ["disk.sync", "disk.space", "clock.rate"];
    let not_ok = |finding: &&Value| finding["status"] != "ok";
    for finding in seen.findings.iter().filter(not_ok) {
        assert!(depends_on_the_machine.iter().any(|name| finding["name"] == *name), "{finding}");
    }
    let names = ["configuration", "disk.sync", "disk.space", "open_files.here", "configuration.members", "quorum"];
    let rest = ["versions", "open_files.nodes", "clock.rate", "clock.wall"];
    let of_nodes = NODES.iter().flat_map(|id| {
        ["address.ID.http", "address.ID.peer", "member.ID"].map(|name| name.replace("ID", &id.to_string()))
    });
    let expected = names.iter().chain(&rest).map(|name| (*name).to_owned()).chain(of_nodes);
    for name in expected {
        seen.finding(&name);
    }
    assert!(seen.facts("versions").contains("node 3 0.1.0 (data format 2)"), "{seen:?}");
    assert_synced(&seen);

    // One endpoint is enough to find all members.
    let endpoint = cluster.client.endpoints().split(',').next().expect("an endpoint").to_owned();
    let seen = doctor(&["--endpoints", &endpoint]);
    assert_eq!((seen.problems(), seen.status("configuration")), (vec![], "unknown"));
    assert_eq!([seen.status("address.3.peer"), seen.status("quorum")], ["ok", "ok"]);

    // The text has the same findings.
    let text = run_at(&cluster, &endpoint, "doctor").await;
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.stdout.starts_with("unknown  configuration"), "{text:?}");
    assert!(text.stdout.contains("\n         do: add --config FILE"), "{text:?}");
    for finding in &seen.findings {
        assert!(text.stdout.contains(finding["name"].as_str().expect("a text")), "{finding} {text:?}");
    }
    for id in NODES {
        assert!(!cluster.nodes[&id].said().contains("refused a peer connection"), "{}", cluster.nodes[&id].said());
    }
}

/// Waits until node `at` shows a cluster like this.
async fn until_shown(cluster: &Cluster, at: u64, is_expected: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    while cluster.ask(at, "/v1/cluster").await.is_none_or(|status| !is_expected(&status)) {
        assert!(began.elapsed() < SOON, "node {at} does not show the dead nodes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn dead_nodes_are_problems_and_nothing_hangs() {
    let mut cluster = Cluster::start(SETTINGS).await;
    let config = path(cluster.config()).to_owned();
    cluster.leader().await;
    cluster.kill(3);
    let is_unreachable = |status: &Value, id: u64| status["members"][place(id)]["state"] == "unreachable";
    until_shown(&cluster, cluster.leader().await, |status| is_unreachable(status, 3)).await;
    let seen = doctor(&["--config", &config]);
    assert_eq!(seen.problems(), ["address.3.http", "address.3.peer", "member.3"], "{seen:?}");
    assert_eq!(seen.status("quorum"), "ok");
    for name in ["versions", "open_files.nodes", "clock.rate", "clock.wall"] {
        assert_eq!(seen.status(name), "unknown", "{name}: {seen:?}");
    }
    let problem: Value = serde_json::from_str(&seen.output.stderr).expect("a problem document");
    assert_eq!(problem["code"], "unhealthy", "{problem}");

    cluster.kill(2);
    until_shown(&cluster, 1, |status| status["quorum"] == false && is_unreachable(status, 2)).await;
    let seen = doctor(&["--config", &config]);
    assert_eq!([seen.status("quorum"), seen.status("member.2")], ["problem", "problem"], "{seen:?}");
    assert_eq!([seen.status("address.1.http"), seen.status("clock.rate")], ["ok", "unknown"], "{seen:?}");

    // The kernel still accepts connections for the last node.
    cluster.node(1).signal(Signal::STOP);
    let seen = doctor(&["--config", &config]);
    assert_eq!([seen.status("address.1.http"), seen.status("quorum")], ["problem", "problem"], "{seen:?}");
    cluster.kill(1);
    let seen = doctor(&["--config", &config, "--node", "1"]);
    assert_eq!([seen.status("quorum"), seen.status("configuration")], ["problem", "ok"], "{seen:?}");
    assert_ne!(seen.status("disk.sync"), "unknown", "a stopped node has a disk: {seen:?}");
    cluster.launch_all().await;
}

/// The end of the validity of its certificate that a node exports, in seconds since 1970.
async fn expiry_metric(cluster: &Cluster, id: u64) -> i64 {
    let url = format!("{}/metrics", tls::https(cluster).split(',').nth(place(id)).expect("three nodes"));
    let client = tls::https_options(cluster).build().expect("valid options");
    let text = client.get(url).send().await.expect("an answer").text().await.expect("text");
    let sample = format!("tenure_tls_certificate_expiry_timestamp_seconds{{node=\"{id}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&sample));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no integer after {sample:?}: {text}"))
}

/// As in `tenure doctor | head -1`.
async fn problem_exits_with_9_although_its_reader_has_ended() {
    for format in ["table", "json"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = tenure();
        command.args(["doctor", "--endpoints", NOWHERE, "-o", format]).stdout(writer);
        command.env_remove("TENURE_CONFIG").env_remove("TENURE_NODE");
        let ended = command.output().expect("the command runs");
        assert_eq!(ended.status.code(), Some(PROBLEM), "{format}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

async fn certificates_are_checked_at_each_address() {
    let mut cluster = Cluster::new(&format!("{SETTINGS}{}{}", calm::SETTINGS, tls::SETTINGS)).await;
    tls::make_certificates(&cluster);
    let config = path(cluster.config()).to_owned();
    let of_client = |name: &str| cluster.folder().join("tls").join(name).display().to_string();
    let (ca, cert, key) = (of_client("ca.pem"), of_client("client.pem"), of_client("client.key"));
    let endpoint = tls::https(&cluster).split(',').next().expect("an endpoint").to_owned();
    for id in NODES {
        cluster.launch(id);
    }
    let healthy = async {
        loop {
            let seen = doctor(&["--config", &config, "--node", "1"]);
            if seen.problems().is_empty() {
                return seen;
            }
        }
    };
    let seen = tokio::time::timeout(4 * SOON, healthy).await.expect("the cluster becomes healthy");
    assert_eq!([seen.status("quorum"), seen.status("certificate.files")], ["ok", "ok"], "{seen:?}");
    assert!(seen.facts("certificate.2.peer").ends_with("names tenure://test/node/2"), "{seen:?}");
    assert!(seen.facts("certificate.3.http").starts_with("expires in 364 days"), "{seen:?}");

    // A client with its own certificate and no file sees the same; the nodes log no stranger.
    let seen = doctor(&["--endpoints", &endpoint, "--ca", &ca, "--cert", &cert, "--key", &key]);
    assert_eq!((seen.problems(), seen.status("certificate.3.peer")), (vec![], "ok"), "{seen:?}");
    assert_eq!(seen.status("certificate.client"), "ok");
    for id in NODES {
        assert!(!cluster.nodes[&id].said().contains("refused a peer connection"), "{}", cluster.nodes[&id].said());
    }

    // A client without a certificate, and one that does not trust the CA, do not know the state of the cluster.
    let seen = doctor(&["--config", &config]);
    assert_eq!((seen.problems(), seen.status("quorum")), (vec![], "unknown"), "{seen:?}");
    assert!(seen.facts("address.1.http").contains("CertificateRequired"), "{seen:?}");
    assert_eq!(seen.status("certificate.3.peer"), "ok");
    let seen = doctor(&["--endpoints", &endpoint]);
    assert_eq!(seen.status("quorum"), "unknown", "{seen:?}");
    let address = endpoint.trim_start_matches("https://");
    assert_eq!(seen.status(&format!("certificate.{address}")), "problem", "{seen:?}");

    // The addresses of nodes 2 and 3 are swapped in a file.
    let text = std::fs::read_to_string(&config).expect("readable");
    let swapped = text.replace("\nid = 2\n", "\nid = 0\n").replace("\nid = 3\n", "\nid = 2\n");
    let other = cluster.folder().join("swapped.toml");
    std::fs::write(&other, swapped.replace("\nid = 0\n", "\nid = 3\n")).expect("writable");
    let seen = doctor(&["--config", path(&other), "--node", "1"]);
    let expected = ["address.2.http", "address.3.http", "certificate.2.peer", "certificate.3.peer"];
    assert_eq!(seen.problems(), expected, "{seen:?}");
    assert!(seen.facts("certificate.2.peer").contains("expected tenure://test/node/2"), "{seen:?}");
    assert_eq!(seen.status("configuration.members"), "warning");

    // Node 3 has an expired certificate, and that of node 2 expires soon. Nodes use new files within 5 s.
    // A running node keeps its certificate, which is valid, instead.
    cluster.kill(3);
    tls::replace_certificate(&cluster, 3, rcgen::date_time_ymd(2021, 1, 1));
    cluster.launch(3);
    let ends = time::OffsetDateTime::now_utc() + Duration::from_secs(10 * 24 * 60 * 60 - 60 * 60);
    tls::replace_certificate(&cluster, 2, ends);
    tls::said(&cluster, 3, "the certificate of this node has expired: other nodes and clients refuse it").await;
    tls::said(&cluster, 2, "the certificate of this node expires soon: replace the file").await;
    assert!(cluster.nodes[&2].said().contains("days=9"), "{}", cluster.nodes[&2].said());
    assert!(!cluster.nodes[&1].said().contains("the certificate of this node"), "{}", cluster.nodes[&1].said());
    assert_eq!(expiry_metric(&cluster, 2).await, ends.unix_timestamp());
    let year = Duration::from_secs(365 * 24 * 60 * 60).as_secs() as i64;
    let left = expiry_metric(&cluster, 1).await - time::OffsetDateTime::now_utc().unix_timestamp();
    assert!((year - 3_600..=year).contains(&left), "the certificates of the command are valid for a year: {left} s");
    let began = Instant::now();
    let seen = loop {
        let seen = doctor(&["--config", &config, "--node", "1"]);
        // A node that starts closes each connection of a peer.
        if !seen.facts("certificate.3.peer").contains("no TLS handshake") || began.elapsed() > SOON {
            break seen;
        }
    };
    assert_eq!([seen.status("certificate.3.http"), seen.status("certificate.3.peer")], ["problem"; 2], "{seen:?}");
    assert!(seen.facts("certificate.3.peer").starts_with("expired at 2021-01-01"), "{seen:?}");
    assert_eq!([seen.status("certificate.2.http"), seen.status("certificate.1.http")], ["warning", "ok"], "{seen:?}");
    let own = doctor(&["--config", &config, "--node", "3"]);
    assert_eq!(own.status("certificate.files"), "problem", "{own:?}");
    std::fs::write(cluster.folder().join("tls/node-1.pem"), "half a file").expect("writable");
    let own = doctor(&["--config", &config, "--node", "1"]);
    assert_eq!(own.status("certificate.files"), "problem", "{own:?}");
}

async fn invalid_files_are_problems() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("cluster.toml");
    let seen = doctor(&["--config", path(&file)]);
    assert_eq!((seen.problems(), seen.status("quorum")), (vec!["configuration"], "unknown"), "no such file: {seen:?}");
    std::fs::write(&file, "cluster = \"a\"\nnodes = 3\n[raft]\nheartbeat_interval_ms = 1\n").expect("writable");
    let seen = doctor(&["--config", path(&file), "--endpoints", NOWHERE]);
    assert_eq!(seen.problems(), ["configuration", "address.127.0.0.1:1", "quorum"], "{seen:?}");
    assert!(seen.facts("configuration").contains("raft.heartbeat_interval_ms"), "{seen:?}");
    assert!(!seen.facts("configuration").contains('\n'), "{seen:?}");
    let seen = doctor(&["--endpoints", NOWHERE]);
    assert_eq!((seen.status("configuration"), seen.status("quorum")), ("unknown", "problem"), "{seen:?}");

    let seen = doctor(&["--endpoints", NOWHERE, "--ca", "nowhere.pem"]);
    assert_eq!(seen.status("credentials"), "problem", "{seen:?}");
    let usage = tenure().args(["doctor", "--node", "1"]).env_remove("TENURE_CONFIG").output().expect("it runs");
    assert_eq!(usage.status.code(), Some(2), "{usage:?}");
}

async fn access_control_leaves_unknown_results() {
    let cluster = Cluster::start(&format!("{SETTINGS}{}", calm::SETTINGS)).await;
    cluster.settled().await;
    let endpoints = cluster.client.endpoints();
    let mut token = String::new();
    for line in ["auth role set admin --admin", "auth principal set root --role admin", "auth token create root"] {
        let done = run_at(&cluster, &endpoints, line).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        token = done.stdout.trim().to_owned();
    }
    let file = cluster.folder().join("root.token");
    std::fs::write(&file, &token).expect("writable");
    let enabled = run_at(&cluster, &endpoints, &format!("auth enable --access-token-file {}", path(&file))).await;
    assert_eq!(enabled.code, Some(0), "{enabled:?}");

    let seen = doctor(&["--endpoints", &endpoints]);
    let unknown = ["configuration", "quorum", "open_files.nodes", "clock.rate", "clock.wall"];
    assert_eq!((seen.problems(), seen.with_status("unknown")), (vec![], unknown.to_vec()), "{seen:?}");
    assert_eq!(seen.status("versions"), "ok", "the version needs no credential: {seen:?}");
    let seen = doctor(&["--endpoints", &endpoints, "--access-token-file", path(&file)]);
    assert_eq!((seen.problems(), seen.status("quorum")), (vec![], "ok"), "{seen:?}");
    assert!(!seen.output.stdout.contains(&token[..40]), "the output has no secret");
    std::fs::write(&file, &token[..40]).expect("writable");
    let seen = doctor(&["--endpoints", &endpoints, "--access-token-file", path(&file)]);
    assert_eq!(seen.status("credentials"), "problem", "{seen:?}");
    assert!(!format!("{:?}", seen.output).contains(&token[..40]), "the output has no part of a secret");
}

/// Only root can mount a file system. Without root, the unit tests check the bounds.
async fn small_disk_is_a_problem() {
    let Ok(disk) = Mount::tmpfs(8) else { return };
    std::fs::write(disk.path().join("TENURE"), "").expect("writable");
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("cluster.toml");
    let node =
        format!("[[node]]\nid = 1\nhttp = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\ndata = \"{}\"\n", path(disk.path()));
    std::fs::write(&file, format!("cluster = \"a\"\n{node}")).expect("writable");
    let options = ["--config", path(&file), "--node", "1"];
    let seen = doctor(&options);
    assert_eq!([seen.status("disk.space"), seen.status("configuration.settings")], ["problem", "warning"], "{seen:?}");
    assert_synced(&seen);
    let _ballast = disk.fill();
    let seen = doctor(&options);
    assert_eq!([seen.status("disk.space"), seen.status("disk.sync")], ["problem", "problem"], "{seen:?}");
    assert!(seen.facts("disk.sync").contains("No space left"), "{seen:?}");
    assert_eq!(files(disk.path()), ["TENURE", "ballast"], "the probe removes its file");
}
