//! Tests the output and the exit codes of the client commands against a running cluster.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::calm;
use crate::client::{Call, Outcome};
use crate::cluster::{Cluster, NODES, SOON, place};
use crate::port;
use crate::process::{Process, tenure};
use crate::steady::{steady, strict};

steady!(exit_code_shows_refused_unknown_or_unavailable);
strict!(
    commands_acquire_renew_show_and_release_a_lease,
    commands_hand_over_revoke_and_watch,
    invalid_configuration_exits_with_2,
    flag_overrides_the_environment,
    token_file_overrides_the_token_of_the_environment,
    token_that_is_not_utf_8_is_invalid_and_not_shown,
    watch_without_a_cluster_tries_again,
    list_shows_more_leases_than_one_page,
    list_shows_the_holder_and_the_states_of_its_options,
    errors_are_problem_documents_with_json,
    configurations_and_backups_are_shown_as_json,
    watch_shows_the_position_that_after_takes,
    stale_read_works_without_a_majority,
    survivor_reports_the_loss_of_the_quorum,
    lock_delay_of_a_command_refuses_the_next_holder,
    command_ignores_the_proxy_of_its_environment,
);

/// A command that has exited.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    /// Parses the standard output of a successful command as JSON.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn refused(&self, code: &str) {
        let exit_code = match code {
            "held" | "lock_delay" | "wait_timeout" | "wait_abandoned" => 5,
            "lost" => 6,
            "not_found" => 7,
            _ => 1,
        };
        assert_eq!(self.code, Some(exit_code), "{self:?}");
        assert!(self.stderr.contains(&format!("refused ({code})")), "{self:?}");
    }
}

/// Starts `tenure` with the words of `line` as arguments.
fn start(cluster: &Cluster, line: &str) -> Process {
    start_at(cluster, &cluster.client.endpoints(), line)
}

fn start_at(cluster: &Cluster, endpoints: &str, line: &str) -> Process {
    let mut command = tenure();
    command.args(line.split(' ')).env("TENURE_ENDPOINTS", endpoints);
    command.env_remove("TENURE_HOLDER").env_remove("TENURE_TOKEN");
    Process::start(
        &format!("tenure {}", line.split(' ').take(2).collect::<Vec<_>>().join(" ")),
        command,
        cluster.folder(),
    )
}

async fn finish(mut process: Process) -> CommandOutput {
    let status = process.exit(SOON).await;
    CommandOutput { code: status.code(), stdout: process.printed(), stderr: process.said() }
}

async fn run(cluster: &Cluster, line: &str) -> CommandOutput {
    finish(start(cluster, line)).await
}

/// Runs a command with these endpoints.
pub async fn run_at(cluster: &Cluster, endpoints: &str, line: &str) -> CommandOutput {
    finish(start_at(cluster, endpoints, line)).await
}

async fn json(cluster: &Cluster, line: &str) -> Value {
    run(cluster, &format!("{line} -o json")).await.json()
}

/// Waits until the queue of the lease has this many waiters.
async fn queue_of(cluster: &Cluster, name: &str, waiters: usize) -> Value {
    let began = Instant::now();
    loop {
        let queue = json(cluster, &format!("lease queue {name}")).await;
        if queue["waiters"].as_array().map(Vec::len) == Some(waiters) {
            return queue;
        }
        assert!(began.elapsed() < SOON, "expected {waiters} waiters, found {queue}");
    }
}

async fn commands_acquire_renew_show_and_release_a_lease() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let taken = run(&cluster, "lease acquire jobs --holder a --ttl 60s --meta host=x").await;
    assert_eq!(taken.code, Some(0), "{taken:?}");
    let token = taken.stdout.trim_end().to_owned();
    assert!(
        token.parse::<u64>().is_ok() && taken.stderr.contains("held: jobs by a"),
        "the token on stdout and a message on stderr: {taken:?}"
    );
    let held = json(&cluster, "lease get jobs").await;
    assert_eq!(
        (&held["holder"], &held["token"], &held["metadata"]["host"]),
        (&"a".into(), &token.clone().into(), &"x".into())
    );
    for holder in ["a", "b"] {
        let shared = run(&cluster, &format!("lease acquire pool --holder {holder} --ttl 60s --limit 2")).await;
        assert_eq!(shared.code, Some(0), "{holder}: {shared:?}");
    }
    run(&cluster, "lease acquire pool --holder c --ttl 60s --limit 2").await.refused("held");
    run(&cluster, "lease acquire jobs --holder b --ttl 60s").await.refused("held");
    run(&cluster, "lease acquire jobs --holder b --ttl 60s --wait 100ms").await.refused("wait_timeout");
    let renewed = json(&cluster, &format!("lease renew jobs --holder a --token {token} --ttl 90s")).await;
    assert_eq!((&renewed["token"], &renewed["ttl_ms"]), (&token.clone().into(), &90_000.into()), "{renewed}");
    let list = json(&cluster, "lease list jo").await;
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    let table = run(&cluster, "lease list").await;
    assert!(table.stdout.trim_start().starts_with("NAME") && table.stdout.contains(&token), "{table:?}");
    let explained = json(&cluster, "lease explain jobs --holder a").await;
    assert_eq!(explained["standing"]["status"], "holds", "{explained}");
    run(&cluster, "lease release jobs --holder a --token 1").await.refused("lost");
    assert_eq!(json(&cluster, &format!("lease release jobs --holder a --token {token}")).await["released"], true);
    run(&cluster, &format!("lease renew jobs --holder a --token {token}")).await.refused("lost");
    run(&cluster, "lease get nothing").await.refused("not_found");
    let history = json(&cluster, "lease history jobs").await;
    let events: Vec<_> = history["transitions"].as_array().into_iter().flatten().map(|event| &event["event"]).collect();
    assert_eq!(events, ["granted", "released"], "{history}");
}

async fn lock_delay_of_a_command_refuses_the_next_holder() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let held = json(&cluster, "lease acquire delayed --holder a --ttl 60s --lock-delay 60s").await;
    assert_eq!(held["lock_delay_ms"], 60_000, "{held}");
    assert_eq!(json(&cluster, "lease revoke delayed").await["revoked"], 1);
    run(&cluster, "lease acquire delayed --holder b --ttl 60s").await.refused("lock_delay");
}

async fn list_shows_the_holder_and_the_states_of_its_options() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    for (name, holder) in [("job-1", "a"), ("job-2", "b")] {
        cluster.client.acquire(name, holder, 60_000).await;
    }
    let token = cluster.client.acquire("job-3", "b", 60_000).await;
    let released = json(&cluster, &format!("lease release job-3 --holder b --token {token}")).await;
    assert_eq!(released["released"], true);
    let cases: [(&str, &[&str]); 5] = [
        ("", &["job-1", "job-2"]),
        (" --holder b", &["job-2"]),
        (" --state released", &["job-3"]),
        (" --all", &["job-1", "job-2", "job-3"]),
        (" --all --holder b", &["job-2", "job-3"]),
    ];
    for (options, expected) in cases {
        let list = json(&cluster, &format!("lease list job-{options}")).await;
        let leases = list.as_array().into_iter().flatten();
        let names: Vec<&str> = leases.filter_map(|lease| lease["name"].as_str()).collect();
        assert_eq!(names, expected, "{options}: {list}");
    }
}

async fn commands_hand_over_revoke_and_watch() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let mut watch = start(&cluster, "lease watch duty -o json");
    let began = Instant::now();
    // The watch must be active before the first event that it has to show.
    while watch.printed().is_empty() {
        assert!(began.elapsed() < SOON, "the watch shows no event: {}", watch.said());
        let token = run(&cluster, "lease acquire duty-warm-up --holder a --ttl 60s").await.stdout;
        run(&cluster, &format!("lease release duty-warm-up --holder a --token {token}").replace('\n', "")).await;
    }
    let token = json(&cluster, "lease acquire duty --holder a --ttl 60s").await["token"].clone();
    let token = token.as_str().expect("a decimal string");
    run(&cluster, &format!("lease handover duty --holder a --token {token}")).await.refused("no_such_waiter");
    let waiting = ["b", "c"]
        .map(|holder| start(&cluster, &format!("lease acquire duty --holder {holder} --ttl 60s --wait 14s -o json")));
    let queue = queue_of(&cluster, "duty", 2).await;
    assert_eq!(queue["waiters"][0]["place"], 0, "{queue}");
    let handed = json(&cluster, &format!("lease handover duty --holder a --token {token} --to c")).await;
    assert_eq!(handed["holder"], "c", "{handed}");
    let revoked = run(&cluster, "lease revoke duty --reason maintenance").await;
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    let [b, c] = waiting;
    let (b, c) = (finish(b).await.json(), finish(c).await.json());
    assert_eq!((&b["holder"], &c["holder"], &c["token"]), (&"b".into(), &"c".into(), &handed["token"]));
    assert_eq!(json(&cluster, "lease revoke duty").await["revoked"], 1);
    assert_eq!(json(&cluster, "lease revoke duty").await["revoked"], 0);

    let expected = [
        ("granted", "a"),
        ("handed_over", "a"),
        ("granted", "c"),
        ("revoked", "c"),
        ("granted", "b"),
        ("revoked", "b"),
    ];
    let began = Instant::now();
    let shown = loop {
        let printed = watch.printed();
        let whole = &printed[..printed.rfind('\n').map_or(0, |end| end + 1)];
        let events = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("one JSON object a line"));
        let shown: Vec<Value> = events.filter(|event| event["name"] == "duty").collect();
        if shown.len() >= expected.len() {
            break shown;
        }
        assert!(began.elapsed() < SOON, "{shown:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let shown_pairs: Vec<_> = shown.iter().map(|event| (event["event"].as_str(), event["holder"].as_str())).collect();
    assert_eq!(shown_pairs, expected.map(|(event, holder)| (Some(event), Some(holder))), "{shown:?}");
    assert_eq!(shown[3]["reason"], "maintenance", "{shown:?}");
    let after = format!("{}.{}", shown[2]["index"], shown[2]["part"]);
    let mut resumed = start(&cluster, &format!("lease watch duty --after {after} -o json"));
    let began = Instant::now();
    while !resumed.printed().contains('\n') {
        assert!(began.elapsed() < SOON, "the watch shows no event: {}", resumed.said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    resumed.signal(Signal::INT);
    resumed.exit(SOON).await;
    let first = resumed.printed().lines().next().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    assert_eq!(first.as_ref(), Some(&shown[3]), "the event after {after}");
    assert!(watch.is_running(), "a watch runs until it is interrupted");
    watch.signal(Signal::INT);
    watch.exit(SOON).await;
}

/// A node answers `no_leader` after 1.3 s, and an attempt of a command lasts at most 2 s.
async fn exit_code_shows_refused_unknown_or_unavailable() {
    let mut cluster = Cluster::start("").await;
    cluster.settled().await;
    let leader = cluster.leader().await;
    let status = json(&cluster, "cluster status").await;
    assert_eq!((&status["leader"], status["members"].as_array().map(Vec::len)), (&leader.into(), Some(3)), "{status}");
    let table = run(&cluster, "cluster status").await;
    assert!(
        table.stdout.trim_start().starts_with("NODE") && table.stderr.contains(&format!("node {leader} leads")),
        "{table:?}"
    );
    let usage = run(&cluster, "lease acquire jobs --holder a --ttl 30").await;
    assert_eq!(usage.code, Some(2), "{usage:?}");
    let token = json(&cluster, "lease acquire jobs --holder a --ttl 60s").await["token"].clone();
    let token = token.as_str().expect("a decimal string");

    // A stopped majority answers no request, so the outcome of the release is unknown.
    for id in NODES {
        cluster.stop(id);
    }
    let release = format!("lease release jobs --holder a --token {token} --timeout 5s");
    let unknown = run(&cluster, &release).await;
    assert_eq!(unknown.code, Some(3), "{unknown:?}");
    assert!(unknown.stderr.contains("the outcome is unknown"), "{unknown:?}");
    for id in NODES {
        cluster.resume(id);
    }
    cluster.leader().await;

    // Without a majority no request is applied, and the node knows it.
    for id in NODES.into_iter().filter(|id| *id != leader) {
        cluster.kill(id);
    }
    cluster.kill(leader);
    let unavailable = run(&cluster, "lease acquire other --holder a --ttl 60s --timeout 1s").await;
    assert_eq!(unavailable.code, Some(4), "{unavailable:?}");
    cluster.launch(leader);
    let began = Instant::now();
    while cluster.ask(leader, "/v1/cluster").await.is_none() {
        assert!(began.elapsed() < SOON, "the node does not answer");
    }
    let acquire = Call { timeout: SOON, ..Call::acquire("other", "a", 60_000) };
    let leaderless = cluster.client.attempt(place(leader), &acquire).await;
    assert!(
        matches!(&leaderless, Outcome::NotDone(problem) if problem.contains("no_leader")),
        "one of three nodes answers not done: {leaderless:?}"
    );
    let status = run(&cluster, "cluster status").await;
    assert_eq!(status.code, Some(4), "{status:?}");
    assert!(status.stderr.contains(&format!("no quorum, as seen by node {leader}")), "{status:?}");
    assert_eq!(status.stdout.matches("unreachable").count(), 2, "{status:?}");
    let leaderless = run(&cluster, "lease acquire other --holder a --ttl 60s").await;
    assert_eq!(leaderless.code, Some(4), "with the default timeout: {leaderless:?}");
    let nowhere = run(&cluster, &format!("lease list --timeout 1s --endpoints 127.0.0.1:{}", port::free())).await;
    assert_eq!(nowhere.code, Some(4), "{nowhere:?}");
}

/// Runs a command without a cluster.
async fn run_alone(folder: &Path, line: &str, environment: &[(&str, &str)]) -> CommandOutput {
    let mut command = tenure();
    command.args(line.split(' ')).envs(environment.iter().copied()).current_dir(folder);
    finish(Process::start("alone", command, folder)).await
}

/// A configuration file of one node with the id 1.
fn write_config(file: &Path, http: &str, more: &str) {
    let node = format!("[[node]]\nid = 1\nhttp = \"{http}\"\npeer = \"127.0.0.1:7201\"\ndata = \"data\"\n");
    std::fs::write(file, format!("cluster = \"test\"\n{node}{more}")).expect("the folder is writable");
}

async fn invalid_configuration_exits_with_2() {
    let folder = TempDir::new().expect("a folder");
    write_config(&folder.path().join("bad.toml"), "nowhere", "[raft]\nprofile = \"moon\"\n");
    write_config(&folder.path().join("good.toml"), "127.0.0.1:7101", "");
    for command in ["config check bad.toml", "serve --config bad.toml --node 1"] {
        let invalid = run_alone(folder.path(), command, &[]).await;
        assert_eq!(invalid.code, Some(2), "{invalid:?}");
        for (key, line) in [("node[1].http", "(line 4)"), ("raft.profile", "(line 8)")] {
            let problem = invalid.stderr.lines().find(|text| text.contains(key));
            assert!(problem.is_some_and(|text| text.contains(line)), "{key}: {invalid:?}");
        }
    }
    let valid = run_alone(folder.path(), "config check good.toml", &[]).await;
    assert_eq!(valid.code, Some(0), "{valid:?}");
    assert!(valid.stdout.trim_start().starts_with("NODE") && valid.stdout.contains("127.0.0.1:7101"), "{valid:?}");
}

async fn flag_overrides_the_environment() {
    let folder = TempDir::new().expect("a folder");
    write_config(&folder.path().join("good.toml"), "127.0.0.1:7101", "");
    let environment = [("TENURE_CONFIG", "good.toml"), ("TENURE_NODE", "9")];
    for (command, node) in [("serve", 9), ("serve --node 8", 8)] {
        let invalid = run_alone(folder.path(), command, &environment).await;
        assert_eq!(invalid.code, Some(2), "{invalid:?}");
        assert!(invalid.stderr.contains(&format!("good.toml has no node {node}: expected one of 1")), "{invalid:?}");
    }
    let environment = [("TENURE_HOLDER", "a"), ("TENURE_TOKEN", "5")];
    let nowhere = format!("lease release jobs --endpoints 127.0.0.1:{} --timeout 300ms", port::free());
    let unavailable = run_alone(folder.path(), &nowhere, &environment).await;
    assert_eq!(unavailable.code, Some(4), "the environment has the holder and the token: {unavailable:?}");
}

/// The command does not start with an invalid token, and finds no cluster with a valid one.
async fn token_file_overrides_the_token_of_the_environment() {
    const INVALID: (&str, &str) = ("TENURE_ACCESS_TOKEN", "no token");
    let folder = TempDir::new().expect("a folder");
    let valid = format!("tenure_{}c097aaa3", "a7".repeat(32));
    std::fs::write(folder.path().join("token"), &valid).expect("the folder is writable");
    let nowhere = format!("lease get jobs --timeout 300ms --endpoints 127.0.0.1:{}", port::free());
    let (file, missing) = (("TENURE_ACCESS_TOKEN_FILE", "token"), ("TENURE_ACCESS_TOKEN_FILE", "missing"));
    for (environment, option, code) in [
        (vec![INVALID], "", 2),
        (vec![("TENURE_ACCESS_TOKEN", valid.as_str())], "", 4),
        (vec![INVALID], " --access-token-file token", 4),
        (vec![INVALID, file], "", 4),
        (vec![INVALID, missing], " --access-token-file token", 4),
        (vec![("TENURE_ACCESS_TOKEN", valid.as_str()), file], " --access-token-file missing", 2),
    ] {
        let output = run_alone(folder.path(), &format!("{nowhere}{option}"), &environment).await;
        assert_eq!(output.code, Some(code), "{environment:?}{option}: {output:?}");
    }
}

/// Without the token, the cluster would see an anonymous client.
async fn token_that_is_not_utf_8_is_invalid_and_not_shown() {
    let folder = TempDir::new().expect("a folder");
    let mut command = tenure();
    command.args(["lease", "get", "jobs", "--timeout", "300ms", "--endpoints", "127.0.0.1:1"]);
    command.env("TENURE_ACCESS_TOKEN", OsStr::from_bytes(b"tenure_secret\xff"));
    let refused = finish(Process::start("alone", command, folder.path())).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("TENURE_ACCESS_TOKEN") && !refused.stderr.contains("secret"), "{refused:?}");
}

/// The command finds no cluster. It must not send the request to the proxy instead.
async fn command_ignores_the_proxy_of_its_environment() {
    let folder = TempDir::new().expect("a folder");
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a free port");
    proxy.set_nonblocking(true).expect("a socket can be non-blocking");
    let url = format!("http://{}", proxy.local_addr().expect("the listener is bound"));
    // An empty list of exceptions hides the list of the environment of this test.
    let environment = [("HTTP_PROXY", url.as_str()), ("ALL_PROXY", url.as_str()), ("NO_PROXY", "")];
    let nowhere = format!("lease get jobs --timeout 300ms --endpoints 127.0.0.1:{}", port::free());
    let unavailable = run_alone(folder.path(), &nowhere, &environment).await;
    assert_eq!(unavailable.code, Some(4), "{unavailable:?}");
    let connected = proxy.accept().map(drop);
    let is_unused = matches!(&connected, Err(error) if error.kind() == ErrorKind::WouldBlock);
    assert!(is_unused, "the command connected to the proxy: {connected:?}");
}

async fn watch_without_a_cluster_tries_again() {
    let folder = TempDir::new().expect("a folder");
    let mut command = tenure();
    let endpoint = format!("127.0.0.1:{}", port::free());
    command.args(["lease", "watch", "x", "--timeout", "200ms", "--endpoints", &endpoint]);
    let mut watch = Process::start("watch", command, folder.path());
    let began = Instant::now();
    while watch.said().matches("; retrying").count() < 2 {
        assert!(watch.is_running() && began.elapsed() < SOON, "{}", watch.said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(watch.is_running());
}

/// A page has at most 500 leases.
async fn list_shows_more_leases_than_one_page() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let names: Vec<String> = (0..501).map(|number| format!("many-{number}")).collect();
    futures_util::future::join_all(names.iter().map(|name| cluster.client.acquire(name, "a", 60_000))).await;
    for (limit, shown) in [(501, 501), (500, 500)] {
        let list = run(&cluster, &format!("lease list many- --limit {limit} -o json")).await;
        assert_eq!(list.json().as_array().map(Vec::len), Some(shown), "limit {limit}");
        assert_eq!(list.stderr.contains("more leases exist"), limit < 501, "limit {limit}: {}", list.stderr);
    }
}

async fn errors_are_problem_documents_with_json() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let held = json(&cluster, "lease acquire service/leader --holder a --ttl infinite").await;
    assert_eq!((&held["name"], &held["ttl_ms"]), (&"service/leader".into(), &"infinite".into()), "{held}");
    let nowhere = format!("lease get jobs --timeout 300ms --endpoints 127.0.0.1:{}", port::free());
    for (command, exit_code, code) in [
        ("lease acquire service/leader --holder b", 5, "held"),
        ("lease renew service/leader --holder b --token 5", 6, "lost"),
        ("lease get nothing", 7, "not_found"),
        ("lease acquire jobs --holder a --ttl 1ms", 2, "invalid"),
        ("lease acquire jobs", 2, "invalid"),
        ("lease list --nonsense", 2, "invalid"),
        ("config check nowhere.toml", 2, "invalid"),
        ("snapshot check nowhere.backup", 1, "failed"),
        ("snapshot restore nowhere.backup --config nowhere.toml --node 1 --holders-stopped", 2, "invalid"),
        (&nowhere, 4, "unavailable"),
    ] {
        let failed = run(&cluster, &format!("{command} -o json")).await;
        assert_eq!((failed.code, failed.stdout.as_str()), (Some(exit_code), ""), "{failed:?}");
        let problem: Value = serde_json::from_str(&failed.stderr).expect("one JSON object");
        assert_eq!(problem["code"], code, "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
    }
}

async fn configurations_and_backups_are_shown_as_json() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let config = cluster.config().display().to_string();
    let shown = json(&cluster, &format!("config check {config}")).await;
    assert_eq!((&shown["cluster"], &shown["nodes"][2]["id"]), (&"test".into(), &3.into()), "{shown}");
    assert_eq!(shown["warnings"].as_array().map(Vec::len), Some(0), "{shown}");
    let token = cluster.client.acquire("jobs", "a", 60_000).await;
    let backup = cluster.folder().join("a.backup").display().to_string();
    json(&cluster, &format!("snapshot save {backup}")).await;
    let checked = json(&cluster, &format!("snapshot check {backup}")).await;
    assert_eq!((&checked["valid"], &checked["file"]), (&true.into(), &backup.as_str().into()), "{checked}");
    let text = std::fs::read_to_string(&config).expect("a file");
    let new = cluster.folder().join("new.toml");
    let text = text.replace("cluster = \"test\"", "cluster = \"new\"").replace("\"data/", "\"new/");
    std::fs::write(&new, text).expect("writable");
    // The clock shows no higher token before the year 2069.
    let highest: u64 = (32_767 << 48) | 200_000_000_000_000;
    let restore = format!("snapshot restore {backup} --config {} --node 1 --grant-after 90s", new.display());
    let restored = json(&cluster, &format!("{restore} --above {highest}")).await;
    let found = [&restored["cluster"], &restored["from_cluster"], &restored["ended"], &restored["grant_after_ms"]];
    assert_eq!(found, [&Value::from("new"), &"test".into(), &1.into(), &90_000.into()], "{restored}");
    let above: u64 = restored["above"].as_str().and_then(|above| above.parse().ok()).expect("a token");
    assert!(highest > token && above > highest, "{restored}");
}

async fn watch_shows_the_position_that_after_takes() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    cluster.client.acquire("jobs", "a", 60_000).await;
    json(&cluster, "lease revoke jobs").await;
    let printed = async |after: &str, lines: usize| {
        let mut watch = start(&cluster, &format!("lease watch jobs --after {after}"));
        let began = Instant::now();
        while watch.printed().lines().count() < lines || (lines == 0 && watch.said().is_empty()) {
            assert!(began.elapsed() < SOON, "the watch shows too few events: {}", watch.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        watch.signal(Signal::INT);
        watch.exit(SOON).await;
        (watch.printed(), watch.said())
    };
    let (all, _) = printed("0", 2).await;
    let (granted, revoked) = all.split_once('\n').expect("two lines");
    assert!(granted.contains("granted") && revoked.contains("revoked"), "{all}");
    let position = granted.split(' ').next().expect("a first column");
    assert_eq!(printed(position, 1).await.0, revoked, "the event after {position}");
    let (events, said) = printed("1000000", 0).await;
    assert_eq!(events, "");
    assert!(said.contains("the watch waits for events after 1000000"), "{said}");
    let (_, said) = printed("1000000 -o json", 0).await;
    let document: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(document["code"], "waiting", "{document}");
}

async fn stale_read_works_without_a_majority() {
    let mut cluster = Cluster::start("").await;
    cluster.client.acquire("jobs", "a", 60_000).await;
    let leader = cluster.leader().await;
    for id in NODES.into_iter().filter(|id| *id != leader) {
        cluster.kill(id);
    }
    let began = Instant::now();
    let failed = loop {
        let read = run(&cluster, "lease get jobs --timeout 10s").await;
        match read.code {
            Some(0) => assert!(began.elapsed() < SOON, "the leader still leads"),
            _ => break read,
        }
    };
    assert_eq!(failed.code, Some(4), "{failed:?}");
    for endpoint in cluster.client.endpoints().split(',') {
        assert!(failed.stderr.contains(endpoint), "the error of {endpoint} is missing: {failed:?}");
    }
    for command in ["get jobs", "list jo", "history jobs", "explain jobs", "queue jobs"] {
        let stale = run(&cluster, &format!("lease {command} --consistency stale")).await;
        assert_eq!(stale.code, Some(0), "{command}: {stale:?}");
        let age =
            stale.stderr.strip_prefix("stale: the state of one node, ").and_then(|rest| rest.strip_suffix(" old\n"));
        let age = age.and_then(|age| humantime::parse_duration(age).ok());
        // The leader stopped leading one isolation time after the last answer of a majority.
        let least = tenure::config::RaftTimings::lan().isolation();
        assert!(age.is_some_and(|age| age >= least && age <= began.elapsed() + SOON), "{command}: {stale:?}");
    }
    let stale = run(&cluster, "lease get jobs --consistency stale -o json").await;
    assert!(stale.json()["name"] == "jobs" && stale.stderr.is_empty(), "the age is only in tables: {stale:?}");
    let wrong = run(&cluster, "lease get jobs --consistency maybe").await;
    assert!(wrong.code == Some(2) && wrong.stderr.contains("expected leader, linearizable or stale"), "{wrong:?}");
}

/// Waits until a node has logged this text this often.
async fn logs(cluster: &mut Cluster, id: u64, text: &str, count: usize) {
    let began = Instant::now();
    while cluster.node(id).said().matches(text).count() < count {
        assert!(began.elapsed() < SOON, "node {id} does not log {text:?}: {}", cluster.node(id).said());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A follower that survives still has the vote for the dead leader.
async fn survivor_reports_the_loss_of_the_quorum() {
    for leads in [false, true] {
        let mut cluster = Cluster::new("").await;
        let started = Instant::now();
        cluster.launch_all().await;
        let formed = started.elapsed();
        let leader = cluster.leader().await;
        let survivor = if leads { leader } else { cluster.follower().await };
        let dead: Vec<u64> = NODES.into_iter().filter(|id| *id != survivor).collect();
        // Each node notes the contacts once a second.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        // A node can lose the others before the kills only if it starts long before them.
        let losses = |cluster: &mut Cluster| cluster.node(survivor).said().matches("quorum lost").count();
        let before = losses(&mut cluster);
        assert!(before == 0 || formed > Duration::from_secs(2), "the formation within {formed:?} is no loss");
        logs(&mut cluster, survivor, "quorum regained", before).await;
        for id in &dead {
            cluster.kill(*id);
        }
        let killed = Instant::now();
        logs(&mut cluster, survivor, "quorum lost", before + 1).await;
        let endpoints = cluster.client.endpoints();
        let endpoint = endpoints.split(',').nth(place(survivor)).expect("three nodes");
        let most = killed.elapsed().as_millis() as u64 + 2_000;
        let status = run_at(&cluster, endpoint, "cluster status -o json").await;
        assert_eq!(status.code, Some(4), "{status:?}");
        let seen: Value = serde_json::from_str(&status.stdout).expect("a JSON document");
        assert_eq!((&seen["leader"], &seen["quorum"]), (&Value::Null, &false.into()), "{seen}");
        for member in seen["members"].as_array().expect("a list") {
            let is_dead = dead.iter().any(|id| member["id"] == *id);
            assert_eq!(member["state"], if is_dead { "unreachable" } else { "ok" }, "{member}");
            assert_eq!(member["role"], "follower", "{member}");
            let since = member["last_contact_ms"].as_u64().expect("the survivor has heard each member");
            assert!(if is_dead { (1_000..=most + 2_000).contains(&since) } else { since == 0 }, "{member}");
        }
        let table = run_at(&cluster, endpoint, "cluster status").await;
        assert!(table.stderr.contains("no leader") && table.stdout.matches(" ago").count() == 3, "{table:?}");
        cluster.launch(dead[0]);
        logs(&mut cluster, survivor, "quorum regained", before + 1).await;
        assert_eq!(losses(&mut cluster), before + 1);
    }
}
