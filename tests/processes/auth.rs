//! Access control on real processes: principals, roles, tokens and certificates.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tenure::access::AccessToken;
use tenure::client::{CallError, Endpoints, Remote};
use tenure::types::Consistency;
use tenure::{FencingToken, Lease, LeaseManager, LeaseName, LeaseOptions, Wait};

use crate::calm;
use crate::cluster::{Cluster, NODES, SOON, place};
use crate::commands::{CommandOutput, run_at};
use crate::plain_http;
use crate::process::tenure;
use crate::restore;
use crate::steady::strict;
use crate::tls;

strict!(
    access_control_is_set_up_with_a_few_commands,
    operator_hands_over_a_lease_of_another_principal,
    principals_cannot_touch_leases_of_others,
    revoked_token_stops_on_each_node_at_once,
    administrator_cannot_lock_itself_out,
    lost_administrator_is_replaced_at_a_node,
    client_certificate_names_a_principal,
    reached_cluster_serves_only_identified_clients,
    token_wins_over_a_certificate,
    access_control_survives_restarts_and_restores,
);

/// A cluster with the role `admin`, the principal `root` and its token; access control is on.
pub struct Guarded {
    pub cluster: Cluster,
    pub root: String,
}

impl Guarded {
    /// Starts a cluster with these settings, which follow those of the section `raft`.
    pub async fn start(settings: &str) -> Guarded {
        Guarded::enable(Cluster::start(&format!("{}{settings}", calm::SETTINGS)).await).await
    }

    /// Turns access control on in a running cluster.
    pub async fn enable(cluster: Cluster) -> Guarded {
        cluster.settled().await;
        done(&cluster, None, "auth role set admin --admin").await;
        done(&cluster, None, "auth principal set root --role admin").await;
        let root = done(&cluster, None, "auth token create root").await.trim_end().to_owned();
        let guarded = Guarded { cluster, root };
        for id in NODES {
            guarded.cluster.caught_up(id).await;
        }
        guarded.admin("auth enable").await;
        guarded.caught_up().await;
        guarded
    }

    /// A node that does not lead.
    pub async fn follower(&self) -> u64 {
        let (began, remote) = (Instant::now(), self.remote(&self.root, 1));
        loop {
            if let Some(leader) = remote.cluster().await.ok().and_then(|status| status.leader) {
                return NODES.into_iter().find(|id| *id != leader).expect("three nodes");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(began.elapsed() < SOON, "node 1 shows no leader");
        }
    }

    /// Runs a command of the administrator.
    pub async fn admin(&self, line: &str) -> String {
        done(&self.cluster, Some(&self.root), line).await
    }

    /// Creates a principal with a role of its own, and returns its token.
    pub async fn principal(&self, name: &str, rights: &str) -> String {
        self.admin(&format!("auth role set {name} {rights}")).await;
        self.admin(&format!("auth principal set {name} --role {name}")).await;
        let token = self.admin(&format!("auth token create {name}")).await.trim_end().to_owned();
        self.caught_up().await;
        token
    }

    /// Waits until all running nodes have applied what one of them has applied now.
    pub async fn caught_up(&self) {
        let began = Instant::now();
        let root = format!("Bearer {}", self.root);
        let applied = async |id: u64| {
            loop {
                let (_, text) = self.status(id, Method::GET, "/v1/cluster", Some(&root)).await;
                let status: Value = serde_json::from_str(&text).expect("JSON");
                if let Some(applied) = status["applied"].as_u64() {
                    return applied;
                }
                assert!(began.elapsed() < SOON, "no position in {text}");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let mut target = 0;
        for id in self.cluster.nodes.keys() {
            target = target.max(applied(*id).await);
        }
        for id in self.cluster.nodes.keys() {
            while applied(*id).await < target {
                assert!(began.elapsed() < SOON, "node {id} has not caught up");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    pub async fn run(&self, token: &str, line: &str) -> CommandOutput {
        run_with(&self.cluster, Some(token), line).await
    }

    pub fn remote(&self, token: &str, node: u64) -> Remote {
        let url = self.url(node);
        let endpoints = url.parse::<Endpoints>().expect("a URL");
        let token: AccessToken = token.parse().expect("a token");
        Remote::new(endpoints).with_timeout(Duration::from_secs(2)).with_token(&token)
    }

    pub fn url(&self, node: u64) -> String {
        self.cluster.client.endpoints().split(',').nth(place(node)).expect("three nodes").to_owned()
    }

    pub async fn status(
        &self,
        node: u64,
        method: Method,
        path: &str,
        authorization: Option<&str>,
    ) -> (StatusCode, String) {
        let mut request = plain_http::client().request(method, format!("{}{path}", self.url(node)));
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        let response = request.send().await.expect("an answer");
        (response.status(), response.text().await.expect("text"))
    }
}

/// Runs a command with an access token in a file.
pub async fn run_with(cluster: &Cluster, token: Option<&str>, line: &str) -> CommandOutput {
    let line = match token {
        Some(token) => {
            let file = cluster.folder().join("token");
            std::fs::write(&file, format!("{token}\n")).expect("writable");
            format!("{line} --access-token-file {}", file.display())
        }
        None => line.to_owned(),
    };
    run_at(cluster, &cluster.client.endpoints(), &line).await
}

async fn done(cluster: &Cluster, token: Option<&str>, line: &str) -> String {
    let output = run_with(cluster, token, line).await;
    assert_eq!(output.code, Some(0), "{line}: {output:?}");
    output.stdout
}

fn name(text: &str) -> LeaseName {
    LeaseName::new(text).expect("valid")
}

/// The code of a refusal.
fn refused<T: std::fmt::Debug>(result: Result<T, CallError>) -> String {
    match result {
        Err(CallError::Refused(problem)) => problem.code.as_str().to_owned(),
        other => panic!("expected a refusal: {other:?}"),
    }
}

async fn access_control_is_set_up_with_a_few_commands() {
    let guarded = Guarded::start("").await;
    let anonymous = run_with(&guarded.cluster, None, "lease acquire jobs/a --holder a --ttl 60s").await;
    anonymous.refused("unauthenticated");
    run_with(&guarded.cluster, None, "cluster status").await.refused("unauthenticated");
    run_with(&guarded.cluster, None, "auth status").await.refused("unauthenticated");
    let worker = guarded.principal("worker", "--hold jobs/").await;
    assert_eq!(guarded.run(&worker, "lease acquire jobs/a --holder a --ttl 60s").await.code, Some(0));
    assert_eq!(guarded.run(&worker, "lease list jobs/").await.code, Some(0));
    let began = Instant::now();
    // The status of a node that does not know the leader is no success.
    while guarded.run(&worker, "cluster status").await.code != Some(0) {
        assert!(began.elapsed() < SOON, "a status is open to each principal");
    }
    for line in [
        "lease acquire other --holder a --ttl 60s",
        "lease get other",
        "lease get other --consistency stale",
        "lease history other",
        "lease history other --consistency stale",
        "lease queue other",
        "lease explain other",
        "lease list",
        "lease list job",
        "lease revoke jobs/a",
        "member remove 3",
        "cluster transfer",
        "auth status",
        "auth token create root",
        "auth disable",
    ] {
        guarded.run(&worker, line).await.refused("forbidden");
    }
    let backup = guarded.cluster.folder().join("b").display().to_string();
    guarded.run(&worker, &format!("snapshot save {backup}")).await.refused("forbidden");
    guarded.run(&worker, "lease watch other/").await.refused("forbidden");
    run_with(&guarded.cluster, None, "lease watch jobs/").await.refused("unauthenticated");
    guarded.admin(&format!("snapshot save {backup}")).await;
    let operator = guarded.principal("operator", "--operate jobs/").await;
    assert_eq!(guarded.run(&operator, "lease revoke jobs/a").await.code, Some(0));
    guarded.run(&operator, "lease acquire jobs/a --holder a --ttl 60s").await.refused("forbidden");
    for (path, open) in [("/livez", true), ("/readyz", true), ("/version", true), ("/openapi.json", true)]
        .into_iter()
        .chain([("/metrics", false), ("/v1/cluster", false), ("/v1/watch?prefix=jobs/", false)])
    {
        let began = Instant::now();
        let (status, body) = loop {
            let (status, body) = guarded.status(1, Method::GET, path, None).await;
            if status != StatusCode::SERVICE_UNAVAILABLE || began.elapsed() > SOON {
                break (status, body);
            }
        };
        assert_eq!(status, if open { StatusCode::OK } else { StatusCode::UNAUTHORIZED }, "{path}: {body}");
    }
    guarded.admin("auth principal set operator --role operator --role worker").await;
    let shown: Value = serde_json::from_str(&guarded.admin("auth status -o json").await).expect("JSON");
    assert_eq!(shown["enabled"], true);
    assert_eq!(shown["principals"][0]["roles"], json!(["operator", "worker"]), "{shown}");
    assert_eq!(shown["roles"][2], json!({"name": "worker", "permissions": [{"right": "hold", "prefix": "jobs/"}]}));
    assert!(!shown.to_string().contains(&worker[10..40]), "no secret: {shown}");
    guarded.admin("auth disable").await;
    assert_eq!(run_with(&guarded.cluster, None, "lease get jobs/a").await.code, Some(0));
}

type Waiting = tokio::task::JoinHandle<Result<(FencingToken, Lease), CallError>>;

/// Waits for a lease in the background, with the access token of a principal. Returns when the queue has it.
async fn waiter_of(guarded: &Guarded, access_token: &str, name: &str) -> Waiting {
    let endpoints: Endpoints = guarded.cluster.client.endpoints().parse().expect("URLs");
    let remote = Remote::new(endpoints).with_token(&access_token.parse().expect("a token"));
    let manager = LeaseManager::new(remote);
    let lease = manager.lease_with(name, LeaseOptions::default().ttl(Duration::from_secs(30))).expect("valid");
    let waiting = tokio::spawn(async move { lease.acquire(Wait::UpTo(SOON)).await.map(|token| (token, lease)) });
    let began = Instant::now();
    while !guarded.run(access_token, &format!("lease queue {name} -o json")).await.stdout.contains("since_at") {
        assert!(began.elapsed() < SOON, "it does not wait");
    }
    waiting
}

async fn principals_cannot_touch_leases_of_others() {
    let guarded = Guarded::start("").await;
    let (one, two) = (guarded.principal("one", "--hold jobs/").await, guarded.principal("two", "--hold jobs/").await);
    let token = guarded.run(&one, "lease acquire jobs/a --holder h --ttl 60s").await.stdout.trim_end().to_owned();
    let stolen = guarded.run(&two, "lease acquire jobs/a --holder h --ttl 60s").await;
    stolen.refused("forbidden");
    assert!(!stolen.stderr.contains(&token), "the fencing token of the other principal: {stolen:?}");
    guarded.run(&two, &format!("lease renew jobs/a --holder h --token {token}")).await.refused("lost");
    guarded.run(&two, &format!("lease release jobs/a --holder h --token {token}")).await.refused("lost");
    guarded.run(&two, &format!("lease handover jobs/a --holder h --token {token}")).await.refused("lost");
    let seen: Value = serde_json::from_str(&guarded.run(&two, "lease get jobs/a -o json").await.stdout).expect("JSON");
    assert_eq!((&seen["token"], &seen["holder"]), (&json!(token), &json!("h")), "the lease is as before");
    assert_eq!(guarded.run(&one, &format!("lease renew jobs/a --holder h --token {token}")).await.code, Some(0));
    // The queue works across principals, and the lease then belongs to the waiter.
    let waiting = waiter_of(&guarded, &two, "jobs/a").await;
    assert_eq!(guarded.run(&one, &format!("lease release jobs/a --holder h --token {token}")).await.code, Some(0));
    let (next, _lease) = waiting.await.expect("no panic").expect("granted");
    assert!(next.to_string().parse::<u64>().expect("digits") > token.parse().expect("digits"));
    // A lease from before access control belongs to each principal that may hold its name.
    guarded.admin("auth disable").await;
    let old = done(&guarded.cluster, None, "lease acquire jobs/old --holder h --ttl 60s").await;
    guarded.admin("auth enable").await;
    let renew = format!("lease renew jobs/old --holder h --token {}", old.trim_end());
    assert_eq!(guarded.run(&one, &renew).await.code, Some(0));
    assert_eq!(guarded.run(&two, &renew).await.code, Some(0));
}

async fn operator_hands_over_a_lease_of_another_principal() {
    let guarded = Guarded::start("").await;
    let (one, two) = (guarded.principal("one", "--hold jobs/").await, guarded.principal("two", "--hold jobs/").await);
    let operator = guarded.principal("operator", "--operate jobs/").await;
    let token = guarded.run(&one, "lease acquire jobs/a --holder h --ttl 60s").await.stdout.trim_end().to_owned();
    let lease = waiter_of(&guarded, &two, "jobs/a").await;
    let hand_over = format!("lease handover jobs/a --holder h --token {token}");
    guarded.run(&two, &hand_over).await.refused("lost");
    assert_eq!(guarded.run(&operator, &hand_over).await.code, Some(0));
    let (next, _lease) = lease.await.expect("no panic").expect("granted");
    // The lease now belongs to the waiter's principal, and to no other one.
    let renew = format!("lease renew jobs/a --holder h --token {token}");
    guarded.run(&one, &renew).await.refused("lost");
    let shown = guarded.run(&two, "lease get jobs/a -o json").await.stdout;
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["token"], json!(next.to_string()));
    let taken = format!("lease renew jobs/a --holder {} --token {next}", shown["holder"].as_str().expect("a text"));
    guarded.run(&one, &taken).await.refused("lost");
    assert_eq!(guarded.run(&two, &taken).await.code, Some(0));
}

/// The documented bound: a heartbeat interval after the answer, each node refuses the token. The test allows a second for a
/// busy machine.
async fn revoked_token_stops_on_each_node_at_once() {
    let guarded = Guarded::start("").await;
    let token = guarded.principal("worker", "--hold jobs/").await;
    let follower = guarded.follower().await;
    let manager = LeaseManager::new(guarded.remote(&token, follower));
    let lease = manager.lease_with("jobs/a", LeaseOptions::default().ttl(Duration::from_secs(6))).expect("valid");
    lease.acquire(Wait::No).await.expect("free");
    let stale = NODES.map(|node| guarded.remote(&token, node).with_consistency(Consistency::Stale));
    let watch = plain_http::client().get(format!("{}/v1/watch?prefix=jobs/", guarded.url(follower)));
    let mut watch = watch.header("authorization", format!("Bearer {token}")).send().await.expect("an answer");
    assert_eq!(watch.status(), StatusCode::OK);
    let state: Value = serde_json::from_str(&guarded.admin("auth status -o json").await).expect("JSON");
    let worker = state["principals"].as_array().expect("principals").iter().find(|it| it["name"] == "worker");
    let id = worker.expect("it exists")["tokens"][0]["id"].as_str().expect("an id").to_owned();
    guarded.admin(&format!("auth token revoke {id}")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (node, remote) in NODES.into_iter().zip(&stale) {
        assert_eq!(refused(remote.get(&name("jobs/a")).await), "unauthenticated", "a stale read at node {node}");
        let current = guarded.remote(&token, node);
        assert_eq!(refused(current.get(&name("jobs/a")).await), "unauthenticated", "a read at node {node}");
    }
    let ended = tokio::time::timeout(SOON, async { while let Ok(Some(_)) = watch.chunk().await {} }).await;
    assert!(ended.is_ok(), "the watch of the revoked token is open");
    // The lease expires by its ttl, as after a crash, and the next principal gets it.
    let other = guarded.principal("other", "--hold jobs/").await;
    let taken = guarded.run(&other, "lease acquire jobs/a --holder next --ttl 60s --wait 10s").await;
    assert_eq!(taken.code, Some(0), "{taken:?}");
}

async fn administrator_cannot_lock_itself_out() {
    let cluster = Cluster::start("").await;
    let without = run_with(&cluster, None, "auth enable").await;
    without.refused("access_refused");
    assert!(without.stderr.contains("you could not undo it"), "{without:?}");
    drop(cluster);
    let guarded = Guarded::start("").await;
    let state: Value = serde_json::from_str(&guarded.admin("auth status -o json").await).expect("JSON");
    let id = state["principals"][0]["tokens"][0]["id"].as_str().expect("an id");
    for line in [
        format!("auth token revoke {id}"),
        "auth principal remove root".to_owned(),
        "auth principal set root".to_owned(),
        "auth role set admin --read jobs/".to_owned(),
        "auth role remove admin".to_owned(),
    ] {
        guarded.run(&guarded.root, &line).await.refused("access_refused");
    }
    // With a second token, the first one can be revoked.
    let second = guarded.admin("auth token create root").await.trim_end().to_owned();
    done(&guarded.cluster, Some(&second), &format!("auth token revoke {id}")).await;
    guarded.run(&guarded.root, "auth status").await.refused("unauthenticated");
    run_with(&guarded.cluster, Some(&second), "auth token revoke 0123456789abcdef").await.refused("not_found");
    // The text of an id leads to no other route.
    done(&guarded.cluster, Some(&second), "auth principal set ci").await;
    for id in ["x", "../principals/ci", "%2e%2e/principals/ci", ".."] {
        let revoked = run_with(&guarded.cluster, Some(&second), &format!("auth token revoke {id}")).await;
        assert_eq!(revoked.code, Some(2), "{id}: {revoked:?}");
    }
    let status = done(&guarded.cluster, Some(&second), "auth status").await;
    assert!(status.contains("principal ci:"), "{status}");
}

async fn lost_administrator_is_replaced_at_a_node() {
    let mut guarded = Guarded::start("").await;
    let worker = guarded.principal("worker", "--hold jobs/").await;
    run_with(&guarded.cluster, None, "auth token create root").await.refused("unauthenticated");
    let follower = guarded.follower().await;
    guarded.cluster.kill(follower);
    let config = guarded.cluster.config().to_owned();
    let restarted = guarded.cluster.process_with(follower, &config, &["--disable-access-control"]);
    guarded.cluster.nodes.insert(follower, restarted);
    guarded.cluster.ready(follower).await;
    let start = Instant::now();
    let root = loop {
        let created = run_with(&guarded.cluster, None, "auth token create root").await;
        if created.code == Some(0) {
            break created.stdout.trim_end().to_owned();
        }
        assert!(start.elapsed() < SOON, "{created:?}");
    };
    done(&guarded.cluster, Some(&root), "auth enable").await;
    run_with(&guarded.cluster, None, "auth status").await.refused("unauthenticated");
    // The node turns access control off only once. Roles, principals and other tokens stay.
    assert_eq!(guarded.run(&worker, "lease acquire jobs/a --holder a --ttl 60s").await.code, Some(0));
    tls::said(&guarded.cluster, follower, "access control is off").await;
    let said = guarded.cluster.node(follower).said();
    assert_eq!(said.matches("access control is off").count(), 1, "{said}");
    run_with(&guarded.cluster, None, "auth status").await.refused("unauthenticated");
}

/// A cluster with TLS and optional client certificates. Access control is on. Of the clients `ops` and `guest`, `ops` is a
/// principal and has the right `admin`.
struct Certified(Cluster);

impl Certified {
    async fn start() -> Certified {
        let settings = tls::SETTINGS.replace("client_cert = \"require\"\n", "client_cert = \"optional\"\n");
        let mut cluster = Cluster::new(&settings).await;
        tls::make_certificates(&cluster);
        for client in ["ops", "guest"] {
            let mut issue = tenure();
            issue.args(["tls", "issue", "tls", "--client", client, "--config"]).arg(cluster.config());
            let issued = issue.current_dir(cluster.folder()).output().expect("the command runs");
            assert!(issued.status.success(), "{}", String::from_utf8_lossy(&issued.stderr));
        }
        for id in NODES {
            cluster.launch(id);
        }
        let certified = Certified(cluster);
        // The members must have agreed on the feature level of access control.
        let began = Instant::now();
        while certified.run("ops", "auth role set admin --admin").await.code != Some(0) {
            assert!(began.elapsed() < SOON, "{:?}", certified.run("ops", "cluster status").await);
        }
        for command in ["auth role set admin --admin", "auth principal set ops --role admin", "auth enable"] {
            certified.admin(command).await;
        }
        certified
    }

    fn file(&self, name: &str) -> String {
        self.0.folder().join("tls").join(name).display().to_string()
    }

    /// Runs a command with the certificate of this client.
    async fn run(&self, client: &str, line: &str) -> CommandOutput {
        let [ca, cert, key] = ["ca.pem".to_owned(), format!("{client}.pem"), format!("{client}.key")];
        let [ca, cert, key] = [ca, cert, key].map(|name| self.file(&name));
        run_at(&self.0, &tls::https(&self.0), &format!("{line} --ca {ca} --cert {cert} --key {key}")).await
    }

    /// Runs a command with the certificate of the administrator.
    async fn admin(&self, line: &str) -> String {
        let output = self.run("ops", line).await;
        assert_eq!(output.code, Some(0), "{line}: {output:?}");
        output.stdout
    }
}

async fn client_certificate_names_a_principal() {
    let certified = Certified::start().await;
    certified.admin("lease acquire a --holder h --ttl 60s").await;
    certified.run("guest", "lease get a").await.refused("unauthenticated");
    let ca = format!("lease get a --ca {}", certified.file("ca.pem"));
    run_at(&certified.0, &tls::https(&certified.0), &ca).await.refused("unauthenticated");
}

/// The certificate alone has the right `admin`.
async fn token_wins_over_a_certificate() {
    let certified = Certified::start().await;
    certified.admin("auth role set worker --hold jobs/").await;
    certified.admin("auth principal set worker --role worker").await;
    let token = certified.admin("auth token create worker").await;
    let file = certified.0.folder().join("token");
    let with_token = async |token: &str, line: &str| {
        std::fs::write(&file, token).expect("writable");
        certified.run("ops", &format!("{line} --access-token-file {}", file.display())).await
    };
    assert_eq!(with_token(&token, "lease acquire jobs/a --holder h --ttl 60s").await.code, Some(0));
    with_token(&token, "lease acquire other --holder h --ttl 60s").await.refused("forbidden");
    let unknown = format!("tenure_{}c097aaa3", "a7".repeat(32));
    with_token(&unknown, "lease get jobs/a").await.refused("unauthenticated");
    let state: Value = serde_json::from_str(&certified.admin("auth status -o json").await).expect("JSON");
    let worker = state["principals"].as_array().expect("principals").iter().find(|it| it["name"] == "worker");
    let id = worker.expect("it exists")["tokens"][0]["id"].as_str().expect("an id");
    certified.admin(&format!("auth token revoke {id}")).await;
    with_token(&token, "lease get jobs/a").await.refused("unauthenticated");
}

/// Other machines reach the listeners, and TLS requires no certificate of a client.
async fn reached_cluster_serves_only_identified_clients() {
    let settings = tls::SETTINGS.replace("client_cert = \"require\"\n", "");
    let mut cluster = Cluster::new(&settings).await;
    let file = std::fs::read_to_string(cluster.config()).expect("a file");
    let on_all_addresses = |line: &str| match line.strip_prefix("http = \"127.0.0.1:") {
        Some(port) => format!("{line}\nlisten_http = \"0.0.0.0:{port}\n"),
        None => format!("{line}\n"),
    };
    std::fs::write(cluster.config(), file.lines().map(on_all_addresses).collect::<String>()).expect("writable");
    tls::make_certificates(&cluster);
    for id in NODES {
        cluster.launch(id);
    }
    let path = |file: &str| cluster.folder().join("tls").join(file).display().to_string();
    let (ca, certificate) = (path("ca.pem"), format!("--cert {} --key {}", path("client.pem"), path("client.key")));
    let token = cluster.folder().join("token");
    let run = async |line: &str, credential: &str| {
        run_at(&cluster, &tls::https(&cluster), format!("{line} --ca {ca} {credential}").trim_end()).await
    };
    let with_token = format!("--access-token-file {}", token.display());
    let began = Instant::now();
    // The members must have agreed on the feature level of access control.
    while run("auth role set admin --admin", &certificate).await.code != Some(0) {
        assert!(began.elapsed() < SOON, "the cluster does not serve");
    }
    for line in ["auth principal set root --role admin", "auth token create root"] {
        let output = run(line, &certificate).await;
        assert_eq!(output.code, Some(0), "{line}: {output:?}");
        std::fs::write(&token, output.stdout).expect("writable");
    }
    let claim = "lease acquire a --holder h --ttl 60s";
    let applied = async |credential: &str, code: Option<i32>| {
        for endpoint in tls::https(&cluster).split(',') {
            let (began, line) = (Instant::now(), format!("lease get a --consistency stale --ca {ca} {credential}"));
            while run_at(&cluster, endpoint, &line).await.code != code {
                assert!(began.elapsed() < SOON, "{endpoint} has not applied the change");
            }
        }
    };
    run(claim, "").await.refused("unauthenticated");
    run("lease get a", "").await.refused("unauthenticated");
    run("cluster status", "").await.refused("unauthenticated");
    run(claim, &with_token).await.refused("unauthenticated");

    assert_eq!(run("auth enable", &format!("{certificate} {with_token}")).await.code, Some(0));
    // A node refuses the certificate as soon as it has applied the change.
    applied(&certificate, Some(1)).await;
    run(claim, "").await.refused("unauthenticated");
    assert_eq!(run(claim, &with_token).await.code, Some(0), "a token is enough");
    run("lease get a", &certificate).await.refused("unauthenticated");

    assert_eq!(run("auth disable", &with_token).await.code, Some(0));
    applied(&certificate, Some(0)).await;
    run("lease get a", &with_token).await.refused("unauthenticated");
    assert_eq!(run("lease get a", &certificate).await.code, Some(0));
}

async fn access_control_survives_restarts_and_restores() {
    let mut guarded = Guarded::start("snapshot_every = 100\nsnapshot_keep = 10\n").await;
    let worker = guarded.principal("worker", "--hold jobs/").await;
    let held = guarded.run(&worker, "lease acquire jobs/kept --holder h --ttl 10m").await.stdout;
    for _ in 0..120 {
        let remote = guarded.remote(&worker, 1);
        let lease: Value = remote_acquire(&remote).await;
        assert_eq!(lease["holder"], "h");
    }
    for id in NODES {
        guarded.cluster.kill(id);
    }
    guarded.cluster.launch_all().await;
    run_with(&guarded.cluster, None, "lease get jobs/kept").await.refused("unauthenticated");
    let other = guarded.principal("other", "--hold jobs/").await;
    let renew = format!("lease renew jobs/kept --holder h --token {}", held.trim_end());
    guarded.run(&other, &renew).await.refused("lost");
    assert_eq!(guarded.run(&worker, &renew).await.code, Some(0), "its owner is in the snapshot");
    let backup = guarded.cluster.folder().join("backup").display().to_string();
    guarded.admin(&format!("snapshot save {backup}")).await;
    for id in NODES {
        guarded.cluster.kill(id);
    }
    let config = restore::new_config(&guarded.cluster);
    let restore = format!("snapshot restore {backup} --config {} --node 1 --holders-stopped", config.display());
    done(&guarded.cluster, None, &restore).await;
    let nodes = NODES.map(|id| guarded.cluster.other_process(id, &config));
    let began = Instant::now();
    while guarded.run(&worker, "lease acquire jobs/new --holder h --ttl 60s").await.code != Some(0) {
        assert!(began.elapsed() < SOON, "{}", nodes[0].said());
    }
    run_with(&guarded.cluster, None, "lease get jobs/new").await.refused("unauthenticated");
}

/// Acquires a lease with a new name.
async fn remote_acquire(remote: &Remote) -> Value {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let claim: tenure::api::Acquire =
        serde_json::from_value(json!({"holder": "h", "ttl_ms": 60_000})).expect("a claim");
    let lease = remote.acquire(&name(&format!("jobs/{number}")), &claim).await.expect("free");
    serde_json::to_value(lease).expect("JSON")
}
