//! The loss of all disks: a new cluster from a backup.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::calm;
use crate::client::{Call, token};
use crate::cluster::{Cluster, NODES, SOON, place};
use crate::mount::Mount;
use crate::process::{Process, TENURE, tenure};
use crate::steady::{steady, strict};

steady!(leader_writes_scheduled_backups, backup_from_the_future_makes_one_backup_due);

strict!(
    lost_cluster_serves_again_from_a_backup,
    survivor_of_a_lost_majority_gives_the_backup,
    save_check_and_inspect_a_backup,
    interrupted_save_leaves_no_file,
    save_that_a_signal_ends_leaves_no_file,
    save_below_nohup_outlives_its_terminal,
    each_node_redirects_or_serves_the_snapshot,
    scheduled_backup_leaves_space_for_the_node,
    scheduled_backup_counts_no_blocks_of_root,
    scheduled_backup_leaves_space_for_a_node_in_another_subvolume,
);

/// Runs a command of the binary. Returns its exit code and its output.
async fn run(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = tenure();
    command.args(arguments).env("TENURE_ENDPOINTS", cluster.client.endpoints()).current_dir(cluster.folder());
    let mut process = Process::start("tenure snapshot", command, cluster.folder());
    let status = process.exit(SOON).await;
    (status.code(), process.printed(), process.said())
}

async fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let (code, printed, said) = run(cluster, arguments).await;
    assert_eq!(code, Some(0), "{arguments:?}: {said}");
    printed
}

/// Writes the configuration of the new cluster: the same addresses, another name and other directories.
pub fn new_config(cluster: &Cluster) -> PathBuf {
    let text = fs::read_to_string(cluster.folder().join("cluster.toml")).expect("readable");
    let file = cluster.folder().join("new.toml");
    let text = text.replace("cluster = \"test\"", "cluster = \"new\"").replace("\"data/", "\"new/");
    fs::write(&file, text).expect("the folder is writable");
    file
}

/// The way back from broken disks takes five commands: one restore, and three starts. The save is before.
async fn lost_cluster_serves_again_from_a_backup() {
    let mut cluster = Cluster::start("").await;
    let old = cluster.client.acquire("jobs", "old", 3_000).await;
    // Grants during and after the backup.
    let load = tokio::spawn({
        let client = cluster.client.clone();
        async move {
            let mut highest = 0;
            for number in 0..150 {
                highest = client.acquire(&format!("load-{number}"), "load", 2_000).await.max(highest);
            }
            highest
        }
    });
    done(&cluster, &["snapshot", "save", "test.backup"]).await;
    let highest = load.await.expect("granted").max(old);
    for id in NODES {
        cluster.kill(id);
    }
    for id in [1, 3] {
        fs::remove_dir_all(cluster.data(id)).expect("no process uses it");
    }
    let config = new_config(&cluster);
    let restore = ["snapshot", "restore", "test.backup", "--config", "new.toml", "--node", "1", "--grant-after", "8s"];
    done(&cluster, &restore).await;
    let began = std::time::Instant::now();
    let mut nodes: Vec<Process> = NODES.iter().map(|id| cluster.other_process(*id, &config)).collect();
    let refused = cluster.client.call_until_known(0, &Call::acquire("jobs", "new", 5_000)).await;
    let refused = refused.expect_err("the old holder may be active");
    assert_eq!(refused["code"], "lock_delay", "{refused}");
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("restored")), "{refused}");
    let lost =
        cluster.client.call_until_known(1, &Call::renew("jobs", "old", old)).await.expect_err("the lease has ended");
    assert_eq!((&lost["code"], &lost["why"]), (&Value::from("lost"), &Value::from("restored")), "{lost}");
    let compacted =
        cluster.client.call_until_known(0, &Call::get("/v1/watch?after=5")).await.expect_err("history is lost");
    assert_eq!(compacted["code"], "compacted", "{compacted}");
    let granted = cluster.client.done(2, &Call::wait("jobs", "new", 5_000, SOON)).await;
    assert!(began.elapsed() >= Duration::from_millis(7_500), "granted after {:?}", began.elapsed());
    assert!(token(&granted) > highest, "{granted} after {highest}");
    for (name, holder) in [("load-149", "x"), ("other", "y")] {
        let granted = cluster.client.acquire(name, holder, 5_000).await;
        assert!(granted > highest, "{granted} after {highest}");
    }
    for (id, process) in NODES.iter().zip(&mut nodes) {
        assert!(process.is_running(), "node {id}: {}", process.said());
        let path = cluster.folder().join(format!("new/{id}/TENURE"));
        assert!(path.exists(), "node {id} has received the state");
    }
    old_node_is_refused(&cluster, &mut nodes).await;
}

/// Two disks are lost, and there is no backup: save, restore, and three starts.
async fn survivor_of_a_lost_majority_gives_the_backup() {
    let mut cluster = Cluster::start("[http]\ncompat_leases = true\n").await;
    let mut highest = cluster.client.acquire("compat%2Fjob", "old", 600_000).await;
    for number in 0..20 {
        highest = cluster.client.acquire(&format!("jobs-{number}"), "old", 600_000).await.max(highest);
    }
    let survivor = cluster.follower().await;
    cluster.caught_up(survivor).await;
    for id in NODES.into_iter().filter(|id| *id != survivor) {
        cluster.kill(id);
        fs::remove_dir_all(cluster.data(id)).expect("no process uses it");
    }
    let began = Instant::now();
    while cluster.ask(survivor, "/v1/cluster").await.is_none_or(|status| status["quorum"] != false) {
        assert!(began.elapsed() < SOON, "node {survivor} still reaches a majority");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (code, _, said) = run(&cluster, &["snapshot", "save", "left.backup", "--timeout", "1s"]).await;
    assert_eq!(code, Some(4), "control: no leader can write a current backup: {said}");

    let saved = done(&cluster, &["snapshot", "save", "left.backup", "--consistency", "stale", "-o", "json"]).await;
    let saved: Value = serde_json::from_str(&saved).expect("JSON");
    assert_eq!((&saved["node"], &saved["held"]), (&survivor.into(), &21.into()), "{saved}");
    let config = new_config(&cluster);
    cluster.kill(survivor);
    let restore = ["snapshot", "restore", "left.backup", "--config", "new.toml", "--node", "1", "--holders-stopped"];
    done(&cluster, &restore).await;
    let _nodes: Vec<Process> = NODES.iter().map(|id| cluster.other_process(*id, &config)).collect();
    let lost = cluster
        .client
        .call_until_known(0, &Call::renew("jobs-19", "old", highest))
        .await
        .expect_err("the lease has ended");
    assert_eq!((&lost["code"], &lost["why"]), (&Value::from("lost"), &Value::from("restored")), "{lost}");
    for number in 0..20 {
        let granted = cluster.client.acquire(&format!("jobs-{number}"), "new", 600_000).await;
        assert!(granted > highest, "{granted} after {highest}");
    }
    let released = cluster.client.done(0, &Call::get("/api/leases/released")).await;
    assert_eq!((released.as_array().map(Vec::len), &released[0]["resource"]), (Some(1), &"job".into()), "{released}");
    cluster.leader().await;
    for id in NODES {
        cluster.caught_up(id).await;
    }
}

/// A node of the lost cluster with its data starts again with the old configuration, at the address of a new node.
async fn old_node_is_refused(cluster: &Cluster, nodes: &mut [Process]) {
    nodes[1].kill();
    let mut old = cluster.other_process(2, &cluster.folder().join("cluster.toml"));
    let began = std::time::Instant::now();
    let refusals =
        ["node 2 belongs to cluster \"test\", not to \"new\"", "node 1 belongs to cluster \"new\", not to \"test\""];
    while !nodes[0].said().contains(refusals[0]) || !old.said().contains(refusals[1]) {
        assert!(began.elapsed() < SOON && old.is_running(), "no refusal: {} / {}", nodes[0].said(), old.said());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = cluster.status(2).await;
    assert_eq!(status["quorum"], false, "the old node reaches no leader: {status}");
    cluster.client.done(0, &Call::acquire("after", "z", 5_000)).await;
}

async fn save_check_and_inspect_a_backup() {
    let cluster = Cluster::start("").await;
    cluster.client.acquire("jobs", "a", 600_000).await;
    done(&cluster, &["snapshot", "save", "a.backup"]).await;
    let (code, _, said) = run(&cluster, &["snapshot", "save", "a.backup"]).await;
    assert!(code == Some(2) && said.contains("a.backup exists"), "{said}");
    let saved = done(&cluster, &["snapshot", "save", "a.backup", "--force", "-o", "json"]).await;
    let saved: Value = serde_json::from_str(&saved).expect("JSON");
    assert_eq!((&saved["held"], &saved["current"]), (&Value::from(1), &Value::from(true)), "{saved}");
    done(&cluster, &["snapshot", "save", "stale.backup", "--consistency", "stale"]).await;
    let inspected = done(&cluster, &["snapshot", "inspect", "stale.backup", "-o", "json"]).await;
    let inspected: Value = serde_json::from_str(&inspected).expect("JSON");
    assert_eq!(inspected["current"], false, "{inspected}");
    assert!(inspected["stale_ms"].as_u64().is_some_and(|ms| ms < 10_000), "{inspected}");
    let table = done(&cluster, &["snapshot", "inspect", "a.backup"]).await;
    assert!(table.contains("test") && table.contains("1, 2, 3"), "{table}");
    done(&cluster, &["snapshot", "check", "a.backup"]).await;
    let file = cluster.folder().join("a.backup");
    let mut bytes = fs::read(&file).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("writable");
    let (code, _, said) = run(&cluster, &["snapshot", "check", "a.backup"]).await;
    assert!(code == Some(1) && said.contains("a.backup is damaged: its checksum is"), "{said}");
    for (arguments, expected) in [
        (vec!["--holders-stopped"], "choose another name"),
        (vec!["--node", "2", "--holders-stopped"], "restore node 1"),
        (vec![], "--grant-after"),
        (vec!["--grant-after", "1s", "--holders-stopped"], "cannot be used with"),
    ] {
        let restore = ["snapshot", "restore", "stale.backup", "--node", "1"];
        let restore = if arguments.contains(&"--node") { &restore[..3] } else { &restore[..] };
        let (code, _, said) = run(&cluster, &[restore, &arguments[..]].concat()).await;
        assert!(code == Some(2) && said.contains(expected), "{arguments:?}: {said}");
    }
}

async fn interrupted_save_leaves_no_file() {
    let mut cluster = Cluster::start("").await;
    for id in NODES {
        cluster.kill(id);
    }
    let (code, _, said) = run(&cluster, &["snapshot", "save", "a.backup", "--timeout", "500ms"]).await;
    assert_eq!(code, Some(4), "{said}");
    let left = backups_in(cluster.folder());
    assert!(left.is_empty(), "{left:?}");
}

/// The names of complete and incomplete backups.
fn backups_in(folder: &Path) -> Vec<String> {
    fs::read_dir(folder)
        .expect("listed")
        .map(|item| item.expect("listed").file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("backup"))
        .collect()
}

/// Waits until the incomplete backup of a save is there.
async fn until_begun(save: &mut Process, folder: &Path) {
    let began = Instant::now();
    while backups_in(folder).is_empty() {
        assert!(save.is_running() && began.elapsed() < SOON, "{}", save.said());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// As with `timeout 60 tenure snapshot save`, when a node is too slow, and with a terminal that closes.
async fn save_that_a_signal_ends_leaves_no_file() {
    let folder = tempfile::TempDir::new().expect("a folder");
    // The kernel accepts the connection, and no answer comes.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = silent.local_addr().expect("it is bound").to_string();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut command = tenure();
        command.args(["snapshot", "save", "a.backup", "--timeout", "60s", "--endpoints", &endpoint]);
        command.current_dir(folder.path());
        let mut save = Process::start("save", command, folder.path());
        until_begun(&mut save, folder.path()).await;
        save.signal(signal);
        assert_eq!(save.exit(SOON).await.code(), Some(code), "{signal:?}: {}", save.said());
        let left = backups_in(folder.path());
        assert!(left.is_empty(), "{signal:?}: {left:?}");
    }
}

/// No answer comes, so the save runs until the last signal.
async fn save_below_nohup_outlives_its_terminal() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = silent.local_addr().expect("it is bound").to_string();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", TENURE]);
    command.args(["snapshot", "save", "a.backup", "--timeout", "60s", "--endpoints", &endpoint]);
    command.current_dir(folder.path());
    let mut save = Process::start("save", command, folder.path());
    until_begun(&mut save, folder.path()).await;
    save.signal(Signal::HUP);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(save.is_running() && !backups_in(folder.path()).is_empty(), "{}", save.said());
    save.signal(Signal::TERM);
    assert_eq!(save.exit(SOON).await.code(), Some(143), "{}", save.said());
}

async fn each_node_redirects_or_serves_the_snapshot() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let http = crate::plain_http::builder().redirect(reqwest::redirect::Policy::none()).build();
    let http = http.expect("a client");
    let urls: Vec<String> = cluster.client.endpoints().split(',').map(str::to_owned).collect();
    let get = async |id: u64, query: &str| {
        let url = format!("{}/v1/cluster/snapshot{query}", urls[id as usize - 1]);
        http.get(url).send().await.expect("an answer")
    };
    let redirect = get(follower, "").await;
    assert_eq!(redirect.status(), 307);
    // The location has the scheme of the request.
    let location = format!("http:{}", redirect.headers()["location"].to_str().expect("text"));
    assert_eq!(location, format!("{}/v1/cluster/snapshot", urls[leader as usize - 1]));
    let served = get(leader, "?consistency=leader").await;
    assert_eq!(
        (served.status().as_u16(), &served.headers()["content-type"]),
        (200, &"application/octet-stream".parse().expect("a value"))
    );
    assert!(served.headers().contains_key("x-tenure-index"));
    let stale = get(follower, "?consistency=stale").await;
    assert!(stale.status() == 200 && stale.headers().contains_key("x-tenure-stale-ms"));
    assert!(stale.bytes().await.expect("complete").starts_with(b"TENUREB\x01"));
    assert_eq!(get(leader, "?consistency=weak").await.status(), 400);
}

/// The value of a metric of node `id` without other labels, or with these.
async fn metric(cluster: &Cluster, id: u64, name: &str, labels: &str) -> f64 {
    let endpoints = cluster.client.endpoints();
    let url = endpoints.split(',').nth(place(id)).expect("three nodes");
    let text = crate::plain_http::get(format!("{url}/metrics")).await.expect("an answer").text().await.expect("text");
    let sample = format!("{name}{{node=\"{id}\"{labels}}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&sample));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no number after {sample:?}: {text}"))
}

/// The scheduled backups of node `id`: those that it wrote, and those that failed.
async fn backups_of(cluster: &Cluster, id: u64) -> [f64; 2] {
    let count =
        async |result: &str| metric(cluster, id, "tenure_backups_total", &format!(",result=\"{result}\"")).await;
    [count("written").await, count("failed").await]
}

/// The same sums of all nodes.
async fn all_backups(cluster: &Cluster) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for id in NODES {
        let [written, failed] = backups_of(cluster, id).await;
        sums = [sums[0] + written, sums[1] + failed];
    }
    sums
}

/// The clock of a leader was too early, and then stepped back. Each backup would remove an older one.
async fn backup_from_the_future_makes_one_backup_due() {
    let backup = "[backup]\ndir = \"backups\"\nevery_ms = 3600000\nkeep = 4\n";
    let mut cluster = Cluster::new(&format!("{backup}{}", calm::SETTINGS)).await;
    let dir = cluster.folder().join("backups");
    fs::create_dir(&dir).expect("the folder is writable");
    let old = ["20200101T000000Z", "20200101T010000Z", "20990101T000000Z"];
    let old: Vec<String> = (1..).zip(old).map(|(index, time)| format!("test-{index:020}-{time}.backup")).collect();
    for name in &old {
        fs::write(dir.join(name), "").expect("the folder is writable");
    }
    cluster.launch_all().await;
    let began = std::time::Instant::now();
    while all_backups(&cluster).await[0] == 0.0 {
        assert!(began.elapsed() < SOON, "no backup");
        cluster.client.acquire("job", "a", 60_000).await;
    }
    for _ in 0..20 {
        cluster.client.acquire("job", "a", 60_000).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Another one at the same position would fail, because its file exists.
    assert_eq!(all_backups(&cluster).await, [1.0, 0.0]);
    assert!(old.iter().all(|name| dir.join(name).exists()), "an old backup is removed");
}

/// Only root can mount a file system.
async fn scheduled_backup_leaves_space_for_the_node() {
    let Ok(disk) = Mount::tmpfs(250) else { return };
    no_backup_is_written(&disk, disk.path().join("backups")).await;
}

/// Only root can mount a file system. About 400 MiB are free, and a node of another user can use half of them.
async fn scheduled_backup_counts_no_blocks_of_root() {
    if rustix::process::geteuid().is_root() {
        let disk = Mount::half_for_root(450);
        no_backup_is_written(&disk, disk.path().join("backups")).await;
    }
}

/// Only root can mount a file system. Subvolumes have device numbers of their own.
async fn scheduled_backup_leaves_space_for_a_node_in_another_subvolume() {
    let mounted = if rustix::process::geteuid().is_root() { Mount::btrfs(250) } else { None };
    let Some((disk, subvolume)) = mounted else { return };
    no_backup_is_written(&disk, subvolume).await;
}

/// The disk has the data of all nodes, and less free space than a backup leaves.
async fn no_backup_is_written(disk: &Mount, dir: PathBuf) {
    let data = disk.path().to_owned();
    let backup = format!("[backup]\ndir = \"{}\"\nevery_ms = 1000\n", dir.display());
    let settings = format!("{backup}{}", calm::SETTINGS);
    let mut cluster = Cluster::with_data(&settings, |id| data.join(id.to_string())).await;
    cluster.launch_all().await;
    let began = std::time::Instant::now();
    while !cluster.nodes.values().any(|node| node.said().contains("MiB are free on the disk of the node")) {
        assert!(began.elapsed() < SOON, "no backup failed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The leader tries it again and again.
    while all_backups(&cluster).await[1] == 0.0 || fs::read_dir(&dir).expect("listed").count() > 0 {
        assert!(began.elapsed() < SOON, "a part of a backup stays, or no node counts a failure");
    }
    assert_eq!(all_backups(&cluster).await[0], 0.0, "written backups");
    cluster.client.acquire("job", "a", 60_000).await;
}

/// All nodes use the same folder. The metrics of each node tell which of them writes.
async fn leader_writes_scheduled_backups() {
    let backup = "[backup]\ndir = \"backups\"\nevery_ms = 1000\nkeep = 2\n";
    let mut cluster = Cluster::start(&format!("{backup}{}", calm::SETTINGS)).await;
    let dir = cluster.folder().join("backups");
    let files = || -> Vec<String> {
        let listed = fs::read_dir(&dir).into_iter().flatten().map(|item| item.expect("listed").file_name());
        let mut files: Vec<String> = listed.map(|name| name.to_string_lossy().into_owned()).collect();
        files.retain(|name| name.ends_with(".backup"));
        files.sort();
        files
    };
    let next = async |last: Option<String>| {
        let began = std::time::Instant::now();
        loop {
            if let Some(newest) = files().pop().filter(|newest| last.as_ref().is_none_or(|last| newest > last)) {
                return newest;
            }
            assert!(began.elapsed() < SOON, "no backup after {last:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let writer = |file: &str| tenure::backup::inspect(dir.join(file)).expect("a complete file").node;
    let mut newest = next(None).await;
    let leader = cluster.leader().await;
    for number in 0..2 {
        cluster.client.acquire(&format!("first-{number}"), "a", 600_000).await;
        newest = next(Some(newest)).await;
        assert_eq!(writer(&newest), leader);
    }
    // A node that does not lead and tries all the same has more time for it than the leader needed.
    for id in NODES.into_iter().filter(|id| *id != leader) {
        assert_eq!(backups_of(&cluster, id).await, [0.0, 0.0], "node {id} does not lead");
    }
    let [written, failed] = backups_of(&cluster, leader).await;
    assert!(written >= 2.0 && failed == 0.0, "{written} written, {failed} failed");
    cluster.kill(leader);
    let second = cluster.leader().await;
    for number in 0..3 {
        cluster.client.acquire(&format!("jobs-{number}"), "a", 600_000).await;
        newest = next(Some(newest)).await;
    }
    assert_eq!(writer(&newest), second);
    assert!(files().len() <= 3, "{:?}", files());
    let follower = cluster.follower().await;
    assert_eq!(backups_of(&cluster, follower).await, [0.0, 0.0], "node {follower} never led");
    let age = metric(&cluster, follower, "tenure_backup_age_seconds", "").await;
    assert!((0.0..30.0).contains(&age), "{age}");
    done(&cluster, &["snapshot", "check", &format!("backups/{newest}")]).await;

    // A file is in the place of the folder: no backup can be written, also as root.
    fs::rename(&dir, cluster.folder().join("earlier")).expect("renamed");
    fs::write(&dir, "").expect("writable");
    let began = std::time::Instant::now();
    while backups_of(&cluster, second).await[1] < 1.0 {
        assert!(began.elapsed() < SOON, "{}", cluster.nodes[&second].said());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let said = cluster.nodes[&second].said();
    let line = said.lines().find(|line| line.contains("the scheduled backup failed"));
    assert!(line.is_some_and(|line| line.contains("ERROR") && line.contains("backups")), "{said}");
    assert_eq!(metric(&cluster, second, "tenure_backup_age_seconds", "").await, f64::INFINITY);
    assert_eq!(backups_of(&cluster, follower).await, [0.0, 0.0], "node {follower} never led");
    let before = backups_of(&cluster, second).await[0];
    fs::remove_file(&dir).expect("removed");
    next(None).await;
    let began = std::time::Instant::now();
    while backups_of(&cluster, second).await[0] <= before {
        assert!(began.elapsed() < SOON, "{}", cluster.nodes[&second].said());
    }
}
