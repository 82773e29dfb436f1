//! The lease service at `/api/leases`, on real processes.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::auth::Guarded;
use crate::calm;
use crate::cluster::{Cluster, NODES, SOON, place};
use crate::plain_http;
use crate::steady::{safety, steady, strict};

strict!(
    lease_service_answers_as_documented,
    lease_service_refuses_invalid_requests,
    lease_service_takes_any_text_as_resource,
    lease_service_needs_the_rights_of_v1,
    lease_service_is_absent_without_its_setting,
    lease_service_lists_page_by_page,
    lease_service_refuses_wrong_holders_and_names_above_the_limit,
    lease_service_without_a_leader_changes_nothing,
);
steady!(
    lease_service_gives_expired_leases_away,
    lease_service_ids_rise_across_a_failover,
    lease_service_says_that_an_outcome_is_unknown,
);

const SETTINGS: &str = "[http]\ncompat_leases = true\n";
/// With room for two names.
const SMALL: &str = "[http]\ncompat_leases = true\n[lease]\nmax_leases = 2\n";
/// With a ttl that a test waits for.
const SHORT: &str = "[http]\ncompat_leases = true\n[lease]\ndefault_ttl_ms = 4000\n";

/// The service at one node.
struct Service {
    url: String,
    token: Option<String>,
}

impl Service {
    fn of(cluster: &Cluster, node: u64) -> Service {
        let endpoints = cluster.client.endpoints();
        let url = endpoints.split(',').nth(place(node)).expect("three nodes").to_owned();
        Service { url, token: None }
    }

    fn with(token: &str, cluster: &Cluster, node: u64) -> Service {
        Service { token: Some(token.to_owned()), ..Service::of(cluster, node) }
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> reqwest::Response {
        let mut request = plain_http::client().request(method, format!("{}{path}", self.url));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.send().await.expect("an answer")
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let response = self.send(method, path, body).await;
        (response.status().as_u16(), response.json().await.expect("JSON"))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(Method::GET, path, None).await
    }

    async fn acquire(&self, resource: &str, holder: &str) -> (u16, Value) {
        self.ask(Method::POST, "/api/leases", Some(claim(resource, holder))).await
    }

    async fn renew(&self, resource: &str, holder: &str) -> (u16, Value) {
        self.ask(Method::PUT, "/api/leases/renew", Some(claim(resource, holder))).await
    }

    async fn release(&self, resource: &str, holder: &str) -> (u16, Value) {
        self.ask(Method::DELETE, "/api/leases/release", Some(claim(resource, holder))).await
    }

    /// The resources in a list.
    async fn resources(&self, list: &str) -> Vec<String> {
        let (status, leases) = self.get(&format!("/api/leases/{list}")).await;
        assert_eq!(status, 200, "{leases}");
        let text = |lease: &Value| lease["resource"].as_str().expect("a text").to_owned();
        leases.as_array().expect("a list").iter().map(text).collect()
    }
}

fn claim(resource: &str, holder: &str) -> Value {
    json!({"resource": resource, "holder": holder})
}

fn id(lease: &Value) -> u64 {
    lease["id"].as_u64().unwrap_or_else(|| panic!("an integer id in {lease}"))
}

/// The time of a field, which has milliseconds.
fn time(lease: &Value, field: &str) -> i64 {
    let text = lease[field].as_str().unwrap_or_else(|| panic!("{field} in {lease}"));
    assert_eq!((text.len(), &text[19..20], &text[23..]), (24, ".", "Z"), "{text}");
    let format = time::format_description::well_known::Rfc3339;
    let time = time::OffsetDateTime::parse(text, &format).expect("RFC 3339");
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).expect("small")
}

/// A cluster with the service, in which no election disturbs a test.
async fn calm_cluster() -> Cluster {
    calm_cluster_with(SETTINGS).await
}

async fn calm_cluster_with(settings: &str) -> Cluster {
    Cluster::start(&format!("{settings}{}", calm::SETTINGS)).await
}

async fn lease_service_answers_as_documented() {
    let cluster = calm_cluster().await;
    let [one, two, three] = NODES.map(|node| Service::of(&cluster, node));
    let (status, lease) = one.acquire("task:1", "a").await;
    assert_eq!((status, &lease["resource"], &lease["holder"]), (201, &json!("task:1"), &json!("a")));
    assert_eq!((&lease["renewed_at"], &lease["released_at"]), (&Value::Null, &Value::Null));
    assert_eq!(time(&lease, "expires_at") - time(&lease, "created_at"), 30_000);
    assert!(id(&lease) < 1 << 53, "{lease}");
    let fields: Vec<&String> = lease.as_object().expect("an object").keys().collect();
    assert_eq!(fields.len(), 7, "{fields:?}");

    let (status, problem) = two.acquire("task:1", "b").await;
    assert_eq!((status, &problem["code"], &problem["holder"]), (409, &json!("held"), &json!("a")));
    let (status, again) = three.acquire("task:1", "a").await;
    assert_eq!((status, id(&again), &again["created_at"]), (200, id(&lease), &lease["created_at"]));
    assert!(time(&again, "renewed_at") >= time(&lease, "created_at"), "the second POST renews: {again}");
    assert_eq!(time(&again, "expires_at") - time(&again, "renewed_at"), 30_000);
    let (status, renewed) = two.renew("task:1", "a").await;
    assert_eq!((status, id(&renewed)), (200, id(&lease)));
    assert_eq!(time(&renewed, "expires_at") - time(&renewed, "renewed_at"), 30_000);
    for (resource, holder) in [("task:1", "b"), ("none", "a")] {
        for (status, problem) in [one.renew(resource, holder).await, one.release(resource, holder).await] {
            assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{resource} {holder}");
        }
    }
    one.acquire("task:2", "b").await;
    for node in [&one, &two, &three] {
        assert_eq!(node.resources("active").await, ["task:1", "task:2"]);
        assert_eq!(node.resources("renewed").await, ["task:1"]);
        assert_eq!(node.get(&format!("/api/leases/{}", id(&lease))).await, (200, renewed.clone()));
    }
    let (status, released) = three.release("task:1", "a").await;
    assert_eq!((status, id(&released), &released["renewed_at"]), (200, id(&lease), &renewed["renewed_at"]));
    assert_eq!(released["released_at"], released["expires_at"]);
    assert!(time(&released, "released_at") >= time(&released, "created_at"));
    assert_eq!(one.release("task:1", "a").await.0, 404, "a second release");
    assert_eq!(one.renew("task:1", "a").await.0, 404, "a renewal after the release");
    assert_eq!(two.resources("released").await, ["task:1"]);
    assert_eq!(two.get(&format!("/api/leases/{}", id(&lease))).await, (200, released.clone()));
    let (status, all) = one.get("/api/leases").await;
    assert_eq!((status, &all["status"], all["leases"].as_array().map(Vec::len)), (200, &json!("ready"), Some(2)));

    let (status, next) = one.acquire("task:1", "b").await;
    assert_eq!((status, &next["renewed_at"], &next["released_at"]), (201, &Value::Null, &Value::Null), "{next}");
    assert!(time(&next, "created_at") >= time(&released, "released_at"), "{next}");
    assert_eq!(time(&next, "expires_at") - time(&next, "created_at"), 30_000);
    safety!(id(&next) > id(&lease), "the id fell from {lease} to {next}");
    let by_id = |id: u64| format!("/api/leases/{id}");
    assert!(one.resources("released").await.is_empty(), "a resource has one record");
    assert_eq!(one.get(&by_id(id(&lease))).await.0, 404, "the record of an earlier grant");
    let wrong = one.ask(Method::DELETE, &by_id(id(&lease)), Some(claim("task:1", "b"))).await;
    assert_eq!(wrong.0, 404, "the id of an earlier grant");
    let (status, ended) = two.ask(Method::DELETE, &by_id(id(&next)), Some(claim("task:1", "b"))).await;
    assert_eq!((status, id(&ended), &ended["released_at"]), (200, id(&next), &ended["expires_at"]));
    assert_eq!(one.get("/api/leases/1").await.0, 404);
}

async fn lease_service_refuses_invalid_requests() {
    let cluster = calm_cluster().await;
    let service = Service::of(&cluster, 1);
    let lengthy = "r".repeat(4089);
    for body in [
        json!({"resource": "a"}),
        json!({"holder": "a"}),
        json!({"resource": "a", "holder": ""}),
        json!({"resource": "a", "holder": "h".repeat(201)}),
        json!({"resource": 1, "holder": "a"}),
        json!({"resource": "a", "holder": "a", "ttl": 1}),
        json!([]),
        claim(&lengthy, "a"),
    ] {
        for (method, path) in [
            (Method::POST, "/api/leases"),
            (Method::PUT, "/api/leases/renew"),
            (Method::DELETE, "/api/leases/release"),
            (Method::DELETE, "/api/leases/1"),
        ] {
            let (status, problem) = service.ask(method.clone(), path, Some(body.clone())).await;
            assert_eq!((status, &problem["code"]), (400, &json!("invalid")), "{method} {path} {body}");
        }
    }
    let (_, problem) = service.acquire(&lengthy, "a").await;
    assert_eq!(problem["detail"], "resource is 4089 bytes long; at most 4088 are allowed");
    for path in
        ["/api/leases/x", "/api/leases/-1", "/api/leases?limit=0", "/api/leases?x=1", "/api/leases/active?cursor=x"]
    {
        assert_eq!(service.get(path).await.0, 400, "{path}");
    }
    assert_eq!(service.ask(Method::PUT, "/api/leases", Some(claim("a", "a"))).await.0, 405);
    let text = plain_http::client().post(format!("{}/api/leases", service.url)).body("{}").send().await;
    assert_eq!(text.expect("an answer").status(), 415);
}

async fn lease_service_takes_any_text_as_resource() {
    let cluster = calm_cluster().await;
    let service = Service::of(&cluster, 2);
    let long = "ж/".repeat(1362);
    let texts =
        ["", "/", "a/b", "..", "%2F", "a b", "é", "任務", "\0\n", "-", "A", "a", ".61", &long, &format!("{long}x")];
    let mut ids = Vec::new();
    for text in texts {
        let (status, lease) = service.acquire(text, "h").await;
        assert_eq!((status, lease["resource"].as_str()), (201, Some(text)), "{text:?}: another resource has its lease");
        ids.push(id(&lease));
    }
    safety!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    for (text, id) in texts.iter().zip(&ids) {
        let (_, lease) = service.get(&format!("/api/leases/{id}")).await;
        assert_eq!(lease["resource"].as_str(), Some(*text));
        assert_eq!(service.acquire(text, "other").await.0, 409, "{text:?}");
        assert_eq!(service.renew(text, "h").await.0, 200, "{text:?}");
        assert_eq!(service.release(text, "h").await.1["resource"].as_str(), Some(*text));
    }
    let mut listed = service.resources("released").await;
    listed.sort();
    let mut expected = texts.map(str::to_owned);
    expected.sort();
    assert_eq!(listed, expected);
}

async fn lease_service_lists_page_by_page() {
    let cluster = calm_cluster().await;
    let service = Service::of(&cluster, 3);
    for number in 0..5 {
        assert_eq!(service.acquire(&format!("page:{number}"), "h").await.0, 201);
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = service.send(Method::GET, &format!("/api/leases/active?limit=2{cursor}"), None).await;
        let next = page.headers().get("x-tenure-cursor").map(|next| next.to_str().expect("text").to_owned());
        let leases: Vec<Value> = page.json().await.expect("a list");
        assert!(leases.len() <= 2, "{leases:?}");
        seen.extend(leases.iter().map(|lease| lease["resource"].as_str().expect("a text").to_owned()));
        match next {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["page:0", "page:1", "page:2", "page:3", "page:4"]);
}

async fn lease_service_gives_expired_leases_away() {
    let cluster = calm_cluster_with(SHORT).await;
    let service = Service::of(&cluster, 1);
    let (_, lease) = service.acquire("job", "a").await;
    assert_eq!(time(&lease, "expires_at") - time(&lease, "created_at"), 4_000);
    let began = Instant::now();
    let (status, lease) = service.renew("job", "a").await;
    assert_eq!(status, 200, "{lease}");
    while service.resources("expired").await.is_empty() {
        assert!(began.elapsed() < SOON, "the lease does not expire");
    }
    safety!(began.elapsed() >= Duration::from_millis(3_900), "the lease expired after {:?}", began.elapsed());
    for (status, problem) in [service.renew("job", "a").await, service.release("job", "a").await] {
        assert_eq!((status, &problem["code"]), (404, &json!("not_found")));
    }
    let (_, expired) = service.get(&format!("/api/leases/{}", id(&lease))).await;
    assert_eq!((&expired["holder"], &expired["released_at"]), (&json!("a"), &Value::Null));
    assert!(time(&expired, "expires_at") >= time(&lease, "expires_at"), "{expired}");
    for kept in ["created_at", "renewed_at"] {
        assert_eq!(expired[kept], lease[kept], "{kept}");
    }
    assert!(service.resources("active").await.is_empty());
    let (status, next) = service.acquire("job", "b").await;
    assert_eq!((status, &next["holder"], &next["renewed_at"]), (201, &json!("b"), &Value::Null));
    assert_eq!(next["released_at"], Value::Null);
    assert!(time(&next, "created_at") >= time(&expired, "expires_at"), "{next} before {expired}");
    assert_eq!(time(&next, "expires_at") - time(&next, "created_at"), 4_000);
    safety!(id(&next) > id(&lease), "the id fell from {lease} to {next}");
    assert_eq!(service.renew("job", "a").await.0, 404, "the former holder");
}

async fn lease_service_refuses_wrong_holders_and_names_above_the_limit() {
    let cluster = calm_cluster_with(SMALL).await;
    let service = Service::of(&cluster, 1);
    let (status, lease) = service.acquire("job", "a").await;
    assert_eq!(status, 201, "{lease}");
    let by_id = service.ask(Method::DELETE, &format!("/api/leases/{}", id(&lease)), Some(claim("job", "b"))).await;
    for (status, problem) in [by_id, service.renew("job", "b").await, service.release("job", "b").await] {
        assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{problem}");
    }
    assert_eq!(service.renew("job", "a").await.0, 200, "no wrong holder changes the lease");

    let delayed = json!({"holder": "a", "lock_delay_ms": 86_400_000});
    let (status, lease) = service.ask(Method::POST, "/v1/leases/compat%2Fdelayed/acquire", Some(delayed)).await;
    assert_eq!(status, 200, "{lease}");
    assert_eq!(service.ask(Method::DELETE, "/v1/leases/compat%2Fdelayed", None).await.0, 200);
    let (_, released) = service.get("/api/leases/released").await;
    assert_eq!((released.as_array().map(Vec::len), &released[0]["resource"]), (Some(1), &json!("delayed")), "revoked");
    assert_eq!(released[0]["released_at"], released[0]["expires_at"]);
    assert!(released[0]["released_at"].is_string(), "{released}");
    let (status, problem) = service.acquire("delayed", "b").await;
    assert_eq!((status, &problem["code"]), (409, &json!("lock_delay")), "{problem}");
    // The name is free 1 ms after the last millisecond of the delay.
    assert!(problem["retry_after_ms"].as_u64().is_some_and(|ms| 0 < ms && ms <= 86_400_001), "{problem}");

    let response = service.send(Method::POST, "/api/leases", Some(claim("third", "a"))).await;
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"), "{:?}", response.headers());
    let problem: Value = response.json().await.expect("JSON");
    assert_eq!((&problem["code"], &problem["limit"]), (&json!("too_many_leases"), &json!(2)), "{problem}");
    assert_eq!(service.release("job", "a").await.0, 200);
    assert_eq!(service.acquire("third", "a").await.0, 201, "there is room for it");
}

/// The leader cannot commit the acquire. It may be done later, and a repetition tells. The leader still leads when the
/// acquire arrives, because its timings are long.
async fn lease_service_says_that_an_outcome_is_unknown() {
    let cluster = calm_cluster().await;
    let leader = cluster.leader().await;
    let followers = NODES.into_iter().filter(|node| *node != leader);
    followers.clone().for_each(|node| cluster.stop(node));
    let service = Service::of(&cluster, leader);
    let (status, problem) = service.acquire("job", "a").await;
    assert_eq!((status, &problem["code"]), (504, &json!("outcome_unknown")), "{problem}");
    followers.for_each(|node| cluster.resume(node));
    cluster.leader().await;
    let began = Instant::now();
    loop {
        match service.acquire("job", "a").await {
            (200 | 201, lease) => break assert_eq!(lease["holder"], "a"),
            (status, problem) => {
                assert!(matches!(status, 503 | 504) && began.elapsed() < SOON, "{status} {problem}");
            }
        }
    }
}

async fn lease_service_without_a_leader_changes_nothing() {
    let mut cluster = Cluster::start(SETTINGS).await;
    NODES.into_iter().for_each(|node| cluster.kill(node));
    cluster.launch(1);
    let began = Instant::now();
    while cluster.ask(1, "/v1/cluster").await.is_none() {
        assert!(began.elapsed() < SOON, "the node does not answer");
    }
    let service = Service::of(&cluster, 1);
    for (method, path) in [
        (Method::POST, "/api/leases"),
        (Method::PUT, "/api/leases/renew"),
        (Method::DELETE, "/api/leases/release"),
        (Method::DELETE, "/api/leases/1"),
        (Method::GET, "/api/leases/1"),
        (Method::GET, "/api/leases"),
        (Method::GET, "/api/leases/active"),
    ] {
        let body = (method != Method::GET).then(|| claim("job", "a"));
        let (status, problem) = service.ask(method.clone(), path, body).await;
        assert_eq!((status, &problem["code"]), (503, &json!("no_leader")), "{method} {path}: {problem}");
    }
}

async fn lease_service_ids_rise_across_a_failover() {
    let mut cluster = Cluster::start(SETTINGS).await;
    let (_, kept) = Service::of(&cluster, 1).acquire("kept", "a").await;
    let mut last = id(&kept);
    for round in 0..3 {
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.leader().await;
        let other = NODES.into_iter().find(|node| *node != leader).expect("three nodes");
        let service = Service::of(&cluster, other);
        let began = Instant::now();
        let lease = loop {
            match service.acquire(&format!("round:{round}"), "h").await {
                (200 | 201, lease) => break lease,
                (status, problem) => assert!(began.elapsed() < SOON, "{status} {problem}"),
            }
        };
        safety!(id(&lease) > last, "the id fell from {last} to {lease}");
        last = id(&lease);
        let (status, same) = loop {
            match service.renew("kept", "a").await {
                // Certainly not done: the cluster elects again.
                (503, problem) => assert!(began.elapsed() < SOON, "{problem}"),
                answer => break answer,
            }
        };
        assert_eq!((status, id(&same), &same["created_at"]), (200, id(&kept), &kept["created_at"]));
        cluster.launch(leader);
        cluster.ready(leader).await;
    }
    println!("ids of 4 grants with 3 changes of leader: {} to {last}, each higher than the one before", id(&kept));
}

async fn lease_service_needs_the_rights_of_v1() {
    let guarded = Guarded::start(SETTINGS).await;
    let one = guarded.principal("one", "--hold compat/jobs/").await;
    let two = guarded.principal("two", "--hold compat/jobs/").await;
    let reader = guarded.principal("reader", "--read compat/").await;
    let at = |token: &str| Service::with(token, &guarded.cluster, 2);
    let anonymous = Service::of(&guarded.cluster, 2);
    for (method, path) in [
        (Method::POST, "/api/leases"),
        (Method::PUT, "/api/leases/renew"),
        (Method::DELETE, "/api/leases/release"),
        (Method::DELETE, "/api/leases/1"),
        (Method::GET, "/api/leases"),
        (Method::GET, "/api/leases/active"),
        (Method::GET, "/api/leases/1"),
    ] {
        let body = (method != Method::GET).then(|| claim("jobs/a", "h"));
        let (status, problem) = anonymous.ask(method.clone(), path, body).await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{method} {path}");
    }
    let (one, two, reader) = (at(&one), at(&two), at(&reader));
    let began = Instant::now();
    let lease = loop {
        // Another node may apply the new token later.
        match one.acquire("jobs/a", "h").await {
            (201, lease) => break lease,
            (status, problem) => assert!(status == 401 && began.elapsed() < SOON, "{problem}"),
        }
    };
    let long = format!("jobs/{}", "x".repeat(300));
    assert_eq!(one.acquire(&long, "h").await.0, 201, "the name keeps the beginning of a long resource");
    assert_eq!(one.acquire("other", "h").await.0, 403);
    assert_eq!(one.get("/api/leases").await.0, 403, "a list shows leases of other names");
    assert_eq!(two.acquire("jobs/a", "h").await.0, 403, "the lease of another principal with the same holder");
    assert_eq!(two.renew("jobs/a", "h").await.0, 404);
    assert_eq!(two.release("jobs/a", "h").await.0, 404);
    assert_eq!(reader.get(&format!("/api/leases/{}", id(&lease))).await.0, 200);
    assert_eq!(reader.resources("active").await.len(), 2);
    assert_eq!(reader.acquire("jobs/b", "h").await.0, 403);
    assert_eq!(reader.release("jobs/a", "h").await.0, 403);
    assert_eq!(one.release("jobs/a", "h").await.0, 200);
    let said = guarded.cluster.nodes[&2].said();
    for action in ["acquire", "release"] {
        let is_audited =
            |line: &str| [action, "compat/jobs/a", "tenure::audit", "one"].iter().all(|word| line.contains(word));
        assert!(said.lines().any(is_audited), "no audit line of {action} in {said}");
    }
}

async fn lease_service_is_absent_without_its_setting() {
    let cluster = Cluster::start(calm::SETTINGS).await;
    let service = Service::of(&cluster, 1);
    for path in ["/api/leases", "/api/leases/active", "/api/leases/1"] {
        assert_eq!(service.get(path).await.0, 404, "{path}");
    }
    let (_, document) = service.get("/openapi.json").await;
    assert!(document["paths"].as_object().expect("paths").keys().all(|path| !path.starts_with("/api")));
}
