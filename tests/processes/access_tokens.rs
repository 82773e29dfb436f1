//! Access tokens on real processes: their list, their expiry, and tokens that a node does not know.

use std::time::{Duration, Instant, SystemTime};

use reqwest::redirect::Policy;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tenure::client::CallError;

use crate::auth::{Guarded, run_with};
use crate::cluster::{NODES, SOON};
use crate::plain_http;
use crate::steady::strict;
use crate::tls;

strict!(
    tokens_are_listed_without_their_secrets,
    token_expires_after_its_ttl,
    unknown_tokens_are_limited_per_address,
    new_token_passes_at_a_follower_that_limits_its_address,
    leader_is_shown_only_to_callers_with_a_credential,
    node_without_a_leader_calls_no_token_unknown,
    access_control_is_turned_off_once_a_majority_runs,
);

async fn tokens_are_listed_without_their_secrets() {
    let guarded = Guarded::start("").await;
    let first = guarded.principal("worker", "--hold jobs/").await;
    guarded.admin("auth token create worker").await;
    let json: Value = serde_json::from_str(&guarded.admin("auth token list -o json").await).expect("JSON");
    let owners: Vec<&str> =
        json.as_array().expect("an array").iter().filter_map(|token| token["principal"].as_str()).collect();
    assert_eq!(owners, ["root", "worker", "worker"], "{json}");
    let json: Value = serde_json::from_str(&guarded.admin("auth token list worker -o json").await).expect("JSON");
    let ids: Vec<&str> = json.as_array().expect("an array").iter().filter_map(|token| token["id"].as_str()).collect();
    assert!(ids.len() == 2 && ids.iter().all(|id| id.len() == 16), "{json}");
    assert!(json[0]["created_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{json}");
    let table = guarded.admin("auth token list worker").await;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 3 && lines[0].trim_start().starts_with("TOKEN"), "{table}");
    assert!(ids.iter().all(|id| table.contains(id)) && !table.contains("root"), "{table}");
    assert!(!format!("{table}{json}").contains(&first[7..39]), "a secret");
    guarded.run(&first, "auth token list").await.refused("forbidden");
    // Revoke takes an id of the list.
    guarded.admin(&format!("auth token revoke {}", ids[0])).await;
    assert_eq!(guarded.admin("auth token list worker").await.lines().count(), 2);
    guarded.run(&guarded.root, "auth token list stranger").await.refused("not_found");
}

async fn token_expires_after_its_ttl() {
    let guarded = Guarded::start("").await;
    guarded.principal("worker", "--hold jobs/").await;
    let created = guarded.admin("auth token create worker --ttl 1h -o json").await;
    let created: Value = serde_json::from_str(&created).expect("JSON");
    let token = created["token"].as_str().expect("the secret").to_owned();
    assert!(created["expires_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{created}");
    let listed: Value = serde_json::from_str(&guarded.admin("auth token list worker -o json").await).expect("JSON");
    let ends: Vec<&Value> = listed.as_array().expect("an array").iter().map(|token| &token["expires_at"]).collect();
    assert_eq!(ends.iter().filter(|end| ***end == created["expires_at"]).count(), 1, "{listed}");
    assert_eq!(ends.iter().filter(|end| end.is_null()).count(), 1, "{listed}");
    let table = guarded.admin("auth token list worker").await;
    assert!(table.contains(created["expires_at"].as_str().expect("text")), "{table}");
    assert_eq!(guarded.run(&token, "lease acquire jobs/a --holder h --ttl 60s").await.code, Some(0));
    guarded.admin(&format!("auth token revoke {}", created["id"].as_str().expect("an id"))).await;
    let created = guarded.admin("auth token create worker --ttl 3s -o json").await;
    let created: Value = serde_json::from_str(&created).expect("JSON");
    let token = created["token"].as_str().expect("the secret").to_owned();
    guarded.caught_up().await;
    let expires_at = humantime::parse_rfc3339(created["expires_at"].as_str().expect("a time")).expect("a time");
    let remote = guarded.remote(&token, 1);
    let mut watch = remote.watch("jobs/", None);
    let ended = tokio::time::timeout(SOON, async {
        loop {
            if let Err(error) = watch.next().await {
                return error;
            }
        }
    });
    let ended = ended.await.expect("the watch ends with the token");
    assert!(matches!(&ended, CallError::Refused(problem) if problem.code.as_str() == "unauthenticated"), "{ended:?}");
    // The cluster counts the ttl with a clock of its own.
    let early = expires_at.duration_since(SystemTime::now()).unwrap_or_default();
    assert!(early < Duration::from_millis(200), "it ended {early:?} before the token expires");
    guarded.run(&token, "lease get jobs/a").await.refused("unauthenticated");
    assert_eq!(guarded.admin("auth token list worker").await.lines().count(), 2, "the other token stays");
    let refused = guarded.run(&guarded.root, "auth token create worker --ttl 0s").await;
    assert!(refused.code == Some(2) && refused.stderr.contains("1 ms to 100 years"), "{refused:?}");
}

async fn unknown_tokens_are_limited_per_address() {
    let mut guarded = Guarded::start("").await;
    let began = Instant::now();
    let unknown = format!("Bearer tenure_{}c097aaa3", "a7".repeat(32));
    let (mut seen, mut last) = (Vec::new(), String::new());
    for _ in 0..12 {
        let (status, body) = guarded.status(1, Method::GET, "/v1/leases", Some(&unknown)).await;
        seen.push(status.as_u16());
        last = body;
    }
    assert_eq!(seen, [[401; 10].as_slice(), &[429; 2]].concat());
    let problem: Value = serde_json::from_str(&last).expect("JSON");
    let hint = Duration::from_millis(problem["retry_after_ms"].as_u64().expect("a time"));
    let window = Duration::from_secs(10);
    assert!(hint <= window && began.elapsed() + hint >= window, "the window ends in {hint:?}: {problem}");
    let root = format!("Bearer {}", guarded.root);
    let (status, body) = guarded.status(1, Method::GET, "/v1/leases", Some(&root)).await;
    assert_eq!(status, StatusCode::OK, "a valid token always passes: {body}");
    let (status, body) = guarded.status(1, Method::GET, "/v1/leases", Some("Basic abc")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{body}");
    // The test reads the lines of the node after their requests.
    let listed = loop {
        let said = guarded.cluster.node(1).said();
        let count = |outcome: &str| said.matches(&format!("outcome=\"{outcome}\"")).count();
        let listed = (count("unauthenticated"), count("too_busy"));
        if listed >= (11, 1) || began.elapsed() > SOON {
            break listed;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(listed, (11, 1), "a flood has one line");
    let (_, metrics) = guarded.status(1, Method::GET, "/metrics", Some(&root)).await;
    for line in ["reason=\"unauthenticated\"} 11", "reason=\"limited\"} 2", "reason=\"forbidden\"} 0"] {
        let line = format!("tenure_access_refused_total{{node=\"1\",{line}\n");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
    for _ in 0..100 {
        let (status, body) = guarded.status(1, Method::GET, "/v1/leases", None).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{body}");
    }
    let (_, metrics) = guarded.status(1, Method::GET, "/metrics", Some(&root)).await;
    assert!(metrics.contains("reason=\"unauthenticated\"} 111\n"), "the metrics count each refusal: {metrics}");
    let windows = began.elapsed().as_secs() as usize / 10 + 1;
    let said = guarded.cluster.node(1).said();
    let lines = said.matches("outcome=\"unauthenticated\"").count();
    assert!((20..=20 * windows).contains(&lines), "{lines} lines in {windows} windows of 10 s");
}

/// A follower applies a new token up to one heartbeat interval after its creation. A client with a revoked token at the
/// same address has used up the limit.
async fn new_token_passes_at_a_follower_that_limits_its_address() {
    let guarded = Guarded::start("").await;
    guarded.principal("worker", "--hold jobs/").await;
    let (follower, root) = (guarded.follower().await, format!("Bearer {}", guarded.root));
    let unknown = format!("Bearer tenure_{}c097aaa3", "a7".repeat(32));
    let list = async |token: &str| guarded.status(follower, Method::GET, "/v1/leases?prefix=jobs/", Some(token)).await;
    for _ in 0..10 {
        assert_eq!(list(&unknown).await.0, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(list(&unknown).await.0, StatusCode::TOO_MANY_REQUESTS, "control");
    for _ in 0..10 {
        let create = "/v1/access/principals/worker/tokens";
        let (status, body) = guarded.status(follower, Method::POST, create, Some(&root)).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let created: Value = serde_json::from_str(&body).expect("JSON");
        let token = format!("Bearer {}", created["token"].as_str().expect("the secret"));
        let (status, body) = list(&token).await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }
}

/// Without a credential, neither a redirect nor an error tells about the leader, and the audit log stays short. A follower
/// may not know a new token yet, so it refuses none in place of the leader.
async fn leader_is_shown_only_to_callers_with_a_credential() {
    let mut guarded = Guarded::start("").await;
    let began = Instant::now();
    let (follower, root) = (guarded.follower().await, guarded.root.clone());
    let client = plain_http::builder().redirect(Policy::none()).build().expect("plain options");
    let url = format!("{}/v1/leases/jobs", guarded.url(follower));
    let ask = async |method: Method, forwards: bool, token: Option<&str>| {
        let mut request = client.request(method, &url);
        if !forwards {
            request = request.header("x-tenure-no-forward", "1");
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.expect("an answer").status().as_u16()
    };
    let unknown = format!("tenure_{}c097aaa3", "a7".repeat(32));
    for method in [Method::GET, Method::DELETE] {
        for (token, expected) in [(None, 401), (Some(&*unknown), 307), (Some(&*root), 307)] {
            // More attempts than an address may fail with.
            for _ in 0..12 {
                let status = ask(method.clone(), false, token).await;
                assert_eq!(status, expected, "{method} with {token:?}");
            }
        }
    }
    for _ in 0..100 {
        assert_eq!(ask(Method::DELETE, false, None).await, 401);
    }
    for other in NODES.into_iter().filter(|node| *node != follower) {
        guarded.cluster.kill(other);
    }
    while guarded.status(follower, Method::GET, "/readyz", None).await.0 == StatusCode::OK {
        assert!(began.elapsed() < 2 * SOON, "{}", guarded.cluster.node(follower).said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (token, expected) in [(None, 401), (Some(&*root), 503)] {
        for method in [Method::GET, Method::DELETE] {
            let status = ask(method.clone(), true, token).await;
            assert_eq!(status, expected, "without a leader: {method} with {token:?}");
        }
    }
    let windows = began.elapsed().as_secs() as usize / 10 + 1;
    let said = guarded.cluster.node(follower).said();
    let is_of_unknown = |line: &&str| line.contains("tenure::audit") && line.contains(" principal=\"-\"");
    let lines = said.lines().filter(is_of_unknown).count();
    assert!((20..=20 * windows).contains(&lines), "{lines} lines in {windows} windows of 10 s");
}

/// After a restart, a node can lack the newest tokens. It learns them from the leader.
async fn node_without_a_leader_calls_no_token_unknown() {
    let mut guarded = Guarded::start("").await;
    // Node 1 stores that all entries before the newest ones are committed.
    guarded.principal("worker", "--hold jobs/").await;
    guarded.principal("other", "--hold jobs/").await;
    for id in NODES {
        guarded.cluster.kill(id);
    }
    guarded.cluster.launch(1);
    let began = Instant::now();
    let root = format!("Bearer {}", guarded.root);
    while guarded.cluster.ask(1, "/livez").await.is_none()
        || guarded.status(1, Method::GET, "/v1/cluster", Some(&root)).await.0 != StatusCode::OK
    {
        assert!(began.elapsed() < SOON, "{}", guarded.cluster.node(1).said());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let unknown = format!("Bearer tenure_{}c097aaa3", "a7".repeat(32));
    for path in ["/v1/watch", "/v1/leases/a?consistency=stale", "/v1/cluster"] {
        let (status, body) = guarded.status(1, Method::GET, path, None).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}: {body}");
        for _ in 0..12 {
            let (status, body) = guarded.status(1, Method::GET, path, Some(&unknown)).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {body}");
        }
    }
    for id in [2, 3] {
        guarded.cluster.launch(id);
    }
    guarded.cluster.ready(1).await;
    let (status, body) = guarded.status(1, Method::GET, "/v1/watch", Some(&unknown)).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{body}");
}

/// After an outage, the node with the option can start first.
async fn access_control_is_turned_off_once_a_majority_runs() {
    let mut guarded = Guarded::start("").await;
    for id in NODES {
        guarded.cluster.kill(id);
    }
    let config = guarded.cluster.config().to_owned();
    let first = guarded.cluster.process_with(1, &config, &["--disable-access-control"]);
    guarded.cluster.nodes.insert(1, first);
    tls::said(&guarded.cluster, 1, "cannot turn access control off yet").await;
    for id in [2, 3] {
        guarded.cluster.launch(id);
    }
    let began = Instant::now();
    while run_with(&guarded.cluster, None, "auth token create root").await.code != Some(0) {
        assert!(began.elapsed() < SOON, "{}", guarded.cluster.node(1).said());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
