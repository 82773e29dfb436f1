//! The audit log of nodes, and the places where no secret may appear: logs at each level and in each format, errors,
//! metrics, and the command lines of processes.

use std::fs;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::auth::{Guarded, run_with};
use crate::calm;
use crate::client::{Call, Outcome, token};
use crate::cluster::{Cluster, NODES, SOON};
use crate::plain_http;
use crate::process::{Process, tenure};
use crate::steady::strict;

strict!(
    audit_log_has_each_change_and_refusal,
    grant_after_a_revoke_names_the_principal_of_its_claim,
    secrets_are_in_no_log,
    open_cluster_has_no_audit_log,
);

/// A line of the audit log: principal, action, subject and outcome.
type Line = [String; 4];

fn line(principal: &str, action: &str, subject: &str, outcome: &str) -> Line {
    [principal, action, subject, outcome].map(str::to_owned)
}

/// The audit log in the output of a node, as text or as JSON.
fn audit_log(said: &str) -> Vec<Line> {
    let of_text = |text: &str| {
        let field = |name: &str| {
            let value = text.split_once(&format!(" {name}=\""))?.1.split_once('"')?.0;
            Some(value.to_owned())
        };
        assert_eq!(field("address")?, "127.0.0.1", "{text}");
        Some([field("principal")?, field("action")?, field("subject")?, field("outcome")?])
    };
    let of_json = |json: &Value| {
        let field = |name: &str| Some(json[name].as_str()?.to_owned());
        assert_eq!(field("address")?, "127.0.0.1", "{json}");
        Some([field("principal")?, field("action")?, field("subject")?, field("outcome")?])
    };
    let lines = said.lines().filter(|line| line.contains("tenure::audit"));
    let read = lines.map(|line| match serde_json::from_str::<Value>(line) {
        Ok(json) => of_json(&json).unwrap_or_else(|| panic!("a field is missing: {line}")),
        Err(_) => of_text(line).unwrap_or_else(|| panic!("a field is missing: {line}")),
    });
    read.collect()
}

/// Three nodes with access control. The first one writes JSON and only warnings, the others write all that they can.
async fn guarded() -> Guarded {
    let mut cluster = Cluster::new(calm::SETTINGS).await;
    let config = cluster.config().to_owned();
    cluster.variables = vec![("TENURE_LOG_FORMAT", "json".to_owned()), ("TENURE_LOG", "warn".to_owned())];
    cluster.launch(1);
    cluster.variables = vec![("TENURE_LOG", "trace".to_owned())];
    cluster.launch(2);
    cluster.variables.clear();
    let traced = cluster.process_with(3, &config, &["--log", "trace"]);
    cluster.nodes.insert(3, traced);
    for node in NODES {
        cluster.ready(node).await;
    }
    Guarded::enable(cluster).await
}

/// Without access control, each change would be a line.
async fn open_cluster_has_no_audit_log() {
    let mut cluster = Cluster::start(calm::SETTINGS).await;
    for place in 0..NODES.len() {
        let name = format!("jobs-{place}");
        let lease = cluster.client.done(place, &Call::acquire(&name, "a", 60_000)).await;
        let refused = cluster.client.attempt(place, &Call::acquire(&name, "b", 60_000)).await;
        assert!(!matches!(refused, Outcome::Done(_)), "another holder has it");
        cluster.client.done(place, &Call::release(&name, "a", token(&lease))).await;
    }
    for id in NODES {
        // Its last lines are written before its exit.
        cluster.node(id).signal(Signal::TERM);
        assert_eq!(cluster.node(id).exit(SOON).await.code(), Some(0));
        assert_eq!(audit_log(&cluster.node(id).said()), Vec::<Line>::new(), "node {id}");
    }
}

async fn audit_log_has_each_change_and_refusal() {
    let guarded = guarded().await;
    let worker = guarded.principal("worker", "--hold jobs/").await;
    let other = guarded.principal("other", "--hold jobs/").await;
    let bearer = |token: &str| Some(format!("Bearer {token}"));
    let token = guarded.run(&worker, "lease acquire jobs/a --holder h --ttl 60s").await.stdout;
    for node in NODES {
        let (worker, root) = (bearer(&worker), bearer(&guarded.root));
        let ask = async |path: &str, token: &Option<String>, expected: StatusCode| {
            let (status, body) = guarded.status(node, Method::GET, path, token.as_deref()).await;
            assert_eq!(status, expected, "{path}: {body}");
        };
        ask("/v1/watch?prefix=other/", &worker, StatusCode::FORBIDDEN).await;
        ask("/v1/watch?prefix=jobs/", &None, StatusCode::UNAUTHORIZED).await;
        ask("/v1/cluster/snapshot", &worker, StatusCode::FORBIDDEN).await;
        ask("/v1/cluster", &None, StatusCode::UNAUTHORIZED).await;
        ask("/metrics", &None, StatusCode::UNAUTHORIZED).await;
        ask("/v1/leases/other", &worker, StatusCode::FORBIDDEN).await;
        ask("/v1/cluster/snapshot?consistency=stale", &root, StatusCode::OK).await;
        // These reads are allowed, and have no line.
        ask("/v1/cluster", &worker, StatusCode::OK).await;
        ask("/metrics", &worker, StatusCode::OK).await;
    }
    let held = format!("jobs/a --holder h --token {}", token.trim_end());
    assert_eq!(guarded.run(&worker, &format!("lease renew {held}")).await.code, Some(0));
    guarded.run(&other, &format!("lease renew {held}")).await.refused("lost");
    guarded.run(&other, &format!("lease release {held}")).await;
    leave_queue(&guarded, "jobs/a", &other).await;
    assert_eq!(guarded.run(&worker, &format!("lease release {held}")).await.code, Some(0));
    guarded.run(&worker, "lease acquire other --holder h --ttl 60s").await.refused("forbidden");

    let logs = NODES.map(|node| audit_log(&guarded.cluster.nodes[&node].said()));
    for (node, log) in NODES.into_iter().zip(&logs) {
        for expected in [
            line("worker", "watch", "other/", "forbidden"),
            line("-", "watch", "jobs/", "unauthenticated"),
            line("worker", "backup", "leader", "forbidden"),
            line("worker", "read", "other", "forbidden"),
            line("-", "read", "cluster", "unauthenticated"),
            line("-", "read", "metrics", "unauthenticated"),
            line("root", "backup", "stale", "ok"),
        ] {
            let count = log.iter().filter(|found| **found == expected).count();
            assert_eq!(count, 1, "node {node}: {expected:?} in {log:#?}");
        }
        let refused = |found: &&Line| found[0] == "worker" && found[1] == "read" && found[3] == "forbidden";
        assert_eq!(log.iter().filter(refused).count(), 1, "node {node}: the read of a lease in {log:#?}");
        assert!(!log.iter().any(|found| found[1] == "read" && found[3] == "ok"), "node {node}: {log:#?}");
    }
    let all = logs.concat();
    for expected in [
        line("worker", "acquire", "jobs/a", "ok"),
        line("other", "renew", "jobs/a", "lost"),
        line("other", "release", "jobs/a", "lost"),
        line("other", "acquire", "jobs/a", "outcome_unknown"),
        line("worker", "release", "jobs/a", "ok"),
        line("worker", "acquire", "other", "forbidden"),
    ] {
        assert!(all.contains(&expected), "no {expected:?} in {all:#?}");
    }
    assert!(!all.contains(&line("worker", "renew", "jobs/a", "ok")), "renewals are too many: {all:#?}");
    assert!(all.contains(&line("root", "set principal", "worker", "ok")), "{all:#?}");
}

/// The token of a claim is revoked while it waits.
async fn grant_after_a_revoke_names_the_principal_of_its_claim() {
    let guarded = Guarded::start("").await;
    let holder = guarded.principal("holder", "--hold jobs/").await;
    guarded.principal("worker", "--hold jobs/").await;
    let created = guarded.admin("auth token create worker -o json").await;
    let created: Value = serde_json::from_str(&created).expect("JSON");
    let token = created["token"].as_str().expect("the secret");
    guarded.caught_up().await;
    let held = guarded.run(&holder, "lease acquire jobs/a --holder h --ttl 60s").await.stdout;
    let waits = wait_in_queue(&guarded, "jobs/a", token).await;
    guarded.admin(&format!("auth token revoke {}", created["id"].as_str().expect("an id"))).await;
    guarded.caught_up().await;
    let release = format!("lease release jobs/a --holder h --token {}", held.trim_end());
    assert_eq!(guarded.run(&holder, &release).await.code, Some(0));
    let granted = waits.await.expect("no panic").expect("an answer");
    assert_eq!(granted.status(), StatusCode::OK, "a claim in a queue keeps its place");
    let is_grant = |found: &Line| found[1] == "acquire" && found[3] == "ok" && found[0] != "holder";
    let began = Instant::now();
    let grant = loop {
        if let Some(grant) = audit_log(&guarded.cluster.nodes[&1].said()).into_iter().find(is_grant) {
            break grant;
        }
        assert!(began.elapsed() < SOON, "no line: {}", guarded.cluster.nodes[&1].said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(grant, line("worker", "acquire", "jobs/a", "ok"));
}

/// Waits for a lease as a client that leaves before the answer, and waits until a node has noticed it.
async fn leave_queue(guarded: &Guarded, lease: &str, token: &str) {
    wait_in_queue(guarded, lease, token).await.abort();
    let began = Instant::now();
    let is_listed = || audit_log(&guarded.cluster.nodes[&1].said()).iter().any(|line| line[3] == "outcome_unknown");
    while !is_listed() {
        assert!(began.elapsed() < SOON, "node 1 lists no unanswered request");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for a lease at node 1 in the background. Returns when the queue has the claim.
async fn wait_in_queue(guarded: &Guarded, lease: &str, token: &str) -> JoinHandle<reqwest::Result<reqwest::Response>> {
    let url = format!("{}/v1/leases/{}/acquire", guarded.url(1), lease.replace('/', "%2F"));
    let body = r#"{"holder":"left","ttl_ms":60000,"wait_ms":60000}"#;
    let request =
        plain_http::client().post(url).bearer_auth(token).header("content-type", "application/json").body(body);
    let waits = tokio::spawn(request.send());
    let (began, queue) = (Instant::now(), format!("/v1/leases/{}/queue", lease.replace('/', "%2F")));
    let bearer = format!("Bearer {token}");
    while !guarded.status(1, Method::GET, &queue, Some(&bearer)).await.1.contains("\"left\"") {
        assert!(began.elapsed() < SOON && !waits.is_finished(), "the claim does not wait");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    waits
}

/// The command lines of all processes of this machine.
fn command_lines() -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let read = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    read.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

async fn secrets_are_in_no_log() {
    let guarded = guarded().await;
    let worker = guarded.principal("worker", "--hold jobs/").await;
    let secrets = [&worker, &guarded.root].map(|token| token[7..39].to_owned());
    let mut texts: Vec<(String, String)> = Vec::new();
    let other_end = if worker.ends_with('0') { '1' } else { '0' };
    let broken = format!("{}{other_end}", &worker[..worker.len() - 1]);
    let unknown = format!("tenure_{}c097aaa3", "a7".repeat(32));
    for (token, command, is_refused) in [
        (&worker, "lease acquire jobs/a --holder h --ttl 60s", false),
        (&worker, "lease acquire other --holder h --ttl 60s", true),
        (&worker, "lease acquire other --holder h --ttl 60s -o json", true),
        (&worker, "auth status", true),
        (&worker, "snapshot save backup", true),
        (&worker, "lease watch other/", true),
        (&broken, "lease get jobs/a", true),
        (&unknown, "lease get jobs/a -o json", true),
        (&guarded.root, "auth status -o json", false),
        (&guarded.root, "auth token revoke 0123456789abcdef", true),
        (&guarded.root, "auth principal remove root", true),
    ] {
        let output = run_with(&guarded.cluster, Some(token), command).await;
        assert_eq!(output.code != Some(0), is_refused, "{command}: {output:?}");
        texts.push((format!("stdout of {command}"), output.stdout));
        texts.push((format!("stderr of {command}"), output.stderr));
    }
    for node in NODES {
        let bearer = format!("Bearer {}", guarded.root);
        let (status, metrics) = guarded.status(node, Method::GET, "/metrics", Some(&bearer)).await;
        assert_eq!(status, StatusCode::OK, "{metrics}");
        texts.push((format!("metrics of node {node}"), metrics));
    }
    // A command under a lease, with its token in the environment and in a file.
    let file = guarded.cluster.folder().join("worker.token");
    fs::write(&file, &worker).expect("writable");
    let run = |name: &str, variable: (&str, &str), options: &[&str]| {
        let mut command = tenure();
        let script = "echo begun $TENURE_ACCESS_TOKEN_FILE; sleep 60";
        command.args(["run", name, "--ttl", "10s"]).args(options).args(["--", "sh", "-c", script]);
        command.env("TENURE_ENDPOINTS", guarded.cluster.client.endpoints()).env(variable.0, variable.1);
        Process::start(&format!("tenure run {}", name.replace('/', " ")), command, guarded.cluster.folder())
    };
    let path = file.to_str().expect("UTF-8");
    let mut runs = [
        run("jobs/environment", ("TENURE_ACCESS_TOKEN", &worker), &[]),
        run("jobs/variable", ("TENURE_ACCESS_TOKEN_FILE", path), &[]),
        run("jobs/option", ("LANG", "C"), &["--access-token-file", path]),
    ];
    for run in &mut runs {
        let began = Instant::now();
        while !run.printed().contains("begun") {
            assert!(run.is_running() && began.elapsed() < SOON, "{}", run.said());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    let printed = runs[2].printed();
    assert!(printed.contains(path), "the command gets the file of the option: {printed}");
    let lines = command_lines();
    for part in ["run jobs/environment", "run-guard", "sh -c echo begun", "serve --config"] {
        assert!(lines.iter().any(|line| line.contains(part)), "no process {part:?} in {lines:#?}");
    }
    texts.push(("command lines".to_owned(), lines.join("\n")));
    for run in runs {
        texts.push(("stderr of tenure run".to_owned(), run.said()));
    }
    for (node, process) in &guarded.cluster.nodes {
        let said = process.said();
        let level = if *node == 1 { "\"target\":\"tenure::audit\"" } else { "TRACE" };
        assert!(said.contains(level), "node {node} has no line with {level}");
        texts.push((format!("log of node {node}"), said));
    }
    for (source, text) in &texts {
        for secret in &secrets {
            let found = text.lines().find(|line| line.contains(secret.as_str()));
            assert!(found.is_none(), "a secret is in the {source}: {found:?}");
        }
    }
}
