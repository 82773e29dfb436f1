//! Full, broken and read-only disks.
//!
//! The tests use small file systems that only root can mount. Without root, a file size limit replaces a full disk, and
//! a folder without write permission replaces a read-only disk.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, prlimit};

use crate::calm;
use crate::client::{Call, Outcome, token};
use crate::cluster::{Cluster, NODES, SOON};
use crate::commands::run_at;
use crate::mount::Mount;
use crate::process::Process;
use crate::steady::strict;

strict!(
    full_disks_stop_the_nodes_and_lose_nothing,
    file_size_limit_stops_the_nodes_like_a_full_disk,
    failing_disk_of_the_leader_stops_only_the_leader,
    node_on_a_read_only_disk_starts_once_it_is_writable,
    nodes_that_cannot_log_lead_expire_leases_and_exit_with_their_code,
);

/// Several times the space that a node needs in these tests.
const DISK_MIB: u32 = 64;
/// The file size limit of running nodes in bytes: the log gets full at this place of a segment.
const FILE_LIMIT: u64 = 200 << 10;

/// Each change of the leader and the removal write to the log, whose disk is full.
async fn nodes_that_cannot_log_lead_expire_leases_and_exit_with_their_code() {
    let mut cluster = Cluster::new(calm::SETTINGS).await;
    for id in NODES {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "exec \"$0\" serve --config \"$1\" --node \"$2\" 2>/dev/full",
            env!("CARGO_BIN_EXE_tenure"),
        ]);
        command.arg(cluster.config()).arg(id.to_string());
        let process = Process::start(&format!("node {id}"), command, cluster.folder());
        cluster.nodes.insert(id, process);
    }
    for id in NODES {
        cluster.ready(id).await;
    }
    let endpoints = cluster.client.endpoints();
    // With five leaderships of three nodes, one node leads again.
    for _ in 0..4 {
        run_at(&cluster, &endpoints, "cluster transfer -o json").await.json();
    }
    cluster.client.acquire("job", "a", 500).await;
    cluster.client.done(0, &Call::wait("job", "b", 60_000, SOON)).await;
    let removed = cluster.leader().await;
    run_at(&cluster, &endpoints, &format!("member remove {removed} -o json")).await.json();
    assert_eq!(cluster.node(removed).exit(SOON).await.code(), Some(8));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Acquires leases until the cluster stops acknowledging. Returns the acknowledged ones.
async fn claim_until_refused(cluster: &mut Cluster) -> Vec<(String, u64)> {
    let mut claimed = Vec::new();
    let mut last = Instant::now();
    for number in 0.. {
        let name = format!("claimed-{number}");
        let note = "x".repeat(4000);
        let body = serde_json::json!({"holder": "a", "ttl_ms": 600_000, "metadata": {"note": note}});
        let call = Call::post(format!("/v1/leases/{name}/acquire"), body);
        let call = Call { timeout: Duration::from_millis(500), ..call };
        if let Outcome::Done(lease) = cluster.client.attempt(number, &call).await {
            claimed.push((name, token(&lease)));
            last = Instant::now();
        }
        let running = NODES.into_iter().filter(|id| cluster.node(*id).is_running()).count();
        if running < 2 || last.elapsed() > SOON {
            break;
        }
    }
    claimed
}

async fn assert_nothing_lost(cluster: &Cluster, claimed: &[(String, u64)]) {
    for (name, expected) in claimed {
        let lease = cluster.client.done(0, &Call::get(format!("/v1/leases/{name}"))).await;
        assert_eq!((lease["state"].as_str(), token(&lease)), (Some("active"), *expected), "{lease}");
    }
}

fn assert_reports_full_disk(said: &str) {
    assert!(said.contains("cannot go on"), "{said}");
    assert!(said.contains("free some space on that disk and start the node again"), "{said}");
}

async fn full_disks_stop_the_nodes_and_lose_nothing() {
    let claimed = if is_root() { fill_all_disks().await } else { limit_all_files().await };
    assert!(claimed > 20, "{claimed} leases were claimed before the disks were full");
}

/// Fills all three disks. This is the worst case: no majority is left that could repair a lost entry.
async fn fill_all_disks() -> usize {
    let disks: BTreeMap<u64, Mount> = NODES.map(|id| (id, Mount::tmpfs(DISK_MIB).expect("root can mount"))).into();
    let data = |id: u64| disks[&id].path().join("data");
    let mut cluster = Cluster::with_data("", data).await;
    cluster.launch_all().await;
    let mut claimed = Vec::new();
    for number in 0..100 {
        let name = format!("before-{number}");
        let token = cluster.client.acquire(&name, "a", 600_000).await;
        claimed.push((name, token));
    }
    let ballast: Vec<_> = disks.values().map(Mount::fill).collect();
    claimed.extend(claim_until_refused(&mut cluster).await);
    // The last node may have had nothing to write after the others exited.
    let mut said = Vec::new();
    for id in NODES {
        if !cluster.node(id).is_running() {
            said.push(cluster.node(id).failure(SOON).await);
        }
    }
    assert!(said.len() >= 2, "at least two nodes have exited");
    said.iter().for_each(|said| assert_reports_full_disk(said));
    // A node with a full disk does not start and reports the reason.
    let ended = NODES.into_iter().find(|id| !cluster.node(*id).is_running()).expect("two nodes have exited");
    let again = cluster.launch(ended).failure(SOON).await;
    assert!(again.contains("free some space on that disk and start the node again"), "{again}");

    for ballast in ballast {
        ballast.remove();
    }
    for id in NODES {
        cluster.kill(id);
    }
    cluster.launch_all().await;
    assert_nothing_lost(&cluster, &claimed).await;
    claimed.len()
}

/// Starts a node that gets an error, instead of a signal, when it exceeds its file size limit.
fn start_without_the_signal(cluster: &mut Cluster, id: u64) {
    let mut command = Command::new("bash");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tenure"), "serve"]);
    command.arg("--config").arg(cluster.folder().join("cluster.toml")).args(["--node", &id.to_string()]);
    let process = Process::start(&format!("node {id}"), command, cluster.folder());
    cluster.nodes.insert(id, process);
}

/// Limits the size of all files of the running nodes.
async fn limit_all_files() -> usize {
    let mut cluster = Cluster::new("").await;
    NODES.into_iter().for_each(|id| start_without_the_signal(&mut cluster, id));
    for id in NODES {
        cluster.ready(id).await;
    }
    for id in NODES {
        let limit = Rlimit { current: Some(FILE_LIMIT), maximum: Some(FILE_LIMIT) };
        prlimit(Some(cluster.node(id).pid()), Resource::Fsize, limit).expect("the process of this user");
    }
    let claimed = claim_until_refused(&mut cluster).await;
    for id in NODES {
        if !cluster.node(id).is_running() {
            assert_reports_full_disk(&cluster.node(id).failure(SOON).await);
        }
        cluster.kill(id);
    }
    cluster.launch_all().await;
    assert_nothing_lost(&cluster, &claimed).await;
    claimed.len()
}

async fn file_size_limit_stops_the_nodes_like_a_full_disk() {
    let claimed = limit_all_files().await;
    assert!(claimed > 10, "{claimed} leases were claimed before the limit");
}

async fn failing_disk_of_the_leader_stops_only_the_leader() {
    assert!(is_root(), "this test mounts and breaks a file system: run it as root");
    let disk = Mount::ext4(64);
    let data = |id: u64| if id == 1 { disk.path().join("data") } else { PathBuf::from(format!("data/{id}")) };
    let mut cluster = Cluster::with_data("", data).await;
    cluster.launch_all().await;
    let mut claimed = Vec::new();
    for number in 0..50 {
        let name = format!("before-{number}");
        claimed.push((name.clone(), cluster.client.acquire(&name, "a", 600_000).await));
    }
    let mut tries = 0;
    while cluster.leader().await != 1 {
        // Stops the leader until another node leads. After some rounds that node is node 1.
        let leader = cluster.leader().await;
        cluster.stop(leader);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        cluster.resume(leader);
        tries += 1;
        assert!(tries < 20, "node 1 does not become leader");
    }
    disk.break_down();
    let during = cluster.client.acquire("during", "a", 600_000).await;
    let said = cluster.node(1).failure(SOON).await;
    assert!(said.contains("cannot go on"), "{said}");
    assert!(said.contains("check the disk and the system's log"), "{said}");
    assert!(said.contains(&disk.path().display().to_string()), "{said}");
    claimed.push(("during".to_owned(), during));
    assert_nothing_lost(&cluster, &claimed).await;
    let second = cluster.leader().await;
    assert_ne!(second, 1);
    cluster.ready(second).await;
}

async fn node_on_a_read_only_disk_starts_once_it_is_writable() {
    let disk = is_root().then(|| Mount::tmpfs(DISK_MIB).expect("root can mount"));
    let data = |id: u64| match &disk {
        Some(disk) if id == 3 => disk.path().join("data"),
        _ => PathBuf::from(format!("data/{id}")),
    };
    let mut cluster = Cluster::with_data("", data).await;
    cluster.launch_all().await;
    let token = cluster.client.acquire("jobs", "a", 600_000).await;
    cluster.kill(3);
    let advice = match &disk {
        Some(disk) => {
            disk.make_read_only();
            "mount it writable and start the node again"
        }
        None => {
            fs::set_permissions(cluster.data(3), Permissions::from_mode(0o500)).expect("the test owns the folder");
            "give the node's user the right to it and start the node again"
        }
    };
    let said = cluster.launch(3).failure(SOON).await;
    assert!(said.contains("cannot start") && said.contains(advice), "{said}");
    cluster.client.done(0, &Call::renew("jobs", "a", token)).await;
    match &disk {
        Some(disk) => disk.make_writable(),
        None => fs::set_permissions(cluster.data(3), Permissions::from_mode(0o700)).expect("the test owns the folder"),
    }
    cluster.launch(3);
    cluster.ready(3).await;
    cluster.caught_up(3).await;
}
