//! The lease service at `/api/leases`, on a cluster of one node.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::cluster::{Cluster, SOON, read};
use crate::steady::strict;

strict!(
    resource_has_the_record_of_its_last_grant,
    ended_resource_is_listed_by_its_end,
    page_of_long_resources_ends_at_about_a_mebibyte,
    search_of_an_id_passes_3000_leases,
    one_of_several_releases_succeeds,
    renewal_is_for_the_default_ttl,
    answer_names_the_log_entry_that_it_reflects,
);

async fn start() -> Cluster {
    Cluster::start_with(|settings| settings.limits.compat_leases = true).await
}

fn claim(resource: &str) -> Value {
    json!({"resource": resource, "holder": "a"})
}

async fn change(cluster: &Cluster, method: Method, path: &str, resource: &str) -> (u16, Value) {
    read(cluster.client.request(method, cluster.url(path)).json(&claim(resource))).await
}

async fn acquire(cluster: &Cluster, resource: &str) -> Value {
    let (status, lease) = change(cluster, Method::POST, "/api/leases", resource).await;
    assert_eq!(status, 201, "{lease}");
    lease
}

async fn resource_has_the_record_of_its_last_grant() {
    let cluster = start().await;
    acquire(&cluster, "other").await;
    let of_task = async |list: &str| {
        let (status, answer) = cluster.get(list).await;
        assert_eq!(status, 200, "{answer}");
        let leases = answer.get("leases").unwrap_or(&answer).as_array().expect("a list");
        leases.iter().filter(|lease| lease["resource"] == "task").map(|lease| lease["id"].clone()).collect::<Vec<_>>()
    };
    for round in 0..3 {
        let id = acquire(&cluster, "task").await["id"].clone();
        for list in ["/api/leases", "/api/leases/active"] {
            assert_eq!(of_task(list).await, std::slice::from_ref(&id), "{list} in round {round}");
        }
        assert!(of_task("/api/leases/released").await.is_empty(), "in round {round}");
        assert_eq!(change(&cluster, Method::DELETE, "/api/leases/release", "task").await.0, 200);
        for list in ["/api/leases", "/api/leases/released"] {
            assert_eq!(of_task(list).await, std::slice::from_ref(&id), "{list} after the release in round {round}");
        }
    }
    cluster.end().await;
}

async fn ended_resource_is_listed_by_its_end() {
    let cluster = start().await;
    let short = json!({"holder": "a", "ttl_ms": 100});
    assert_eq!(cluster.post("/v1/leases/compat%2Fexpired/acquire", short).await.0, 200);
    acquire(&cluster, "released").await;
    assert_eq!(change(&cluster, Method::DELETE, "/api/leases/release", "released").await.0, 200);
    acquire(&cluster, "revoked").await;
    let revoke = read(cluster.client.delete(cluster.url("/v1/leases/compat%2Frevoked"))).await;
    assert_eq!(revoke, (200, json!({"revoked": 1})));
    let expiry = async { while cluster.get("/v1/leases/compat%2Fexpired").await.1["state"] != json!("expired") {} };
    tokio::time::timeout(SOON, expiry).await.expect("the lease expires in time");
    for (list, expected) in [("expired", &["expired"][..]), ("released", &["released", "revoked"])] {
        let (status, listed) = cluster.get(&format!("/api/leases/{list}")).await;
        assert_eq!(status, 200, "{listed}");
        let leases = listed.as_array().expect("a list").iter();
        let mut resources: Vec<&str> = leases.map(|lease| lease["resource"].as_str().expect("text")).collect();
        resources.sort();
        assert_eq!(resources, expected, "{list}");
    }
    cluster.end().await;
}

/// The records of all resources, in their order.
async fn acquire_all(cluster: &Cluster, resources: &[String]) -> Vec<Value> {
    const AT_ONCE: usize = 50;
    let mut leases = Vec::new();
    for some in resources.chunks(AT_ONCE) {
        leases.extend(join_all(some.iter().map(|resource| acquire(cluster, resource))).await);
    }
    leases
}

/// One read of the node has about 240 of these resources.
async fn page_of_long_resources_ends_at_about_a_mebibyte() {
    const RESOURCES: usize = 900;
    let cluster = start().await;
    let resources: Vec<String> = (0..RESOURCES).map(|number| format!("{number:04}").repeat(1_000)).collect();
    acquire_all(&cluster, &resources).await;
    let (mut seen, mut ids, mut query) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = cluster.client.get(cluster.url(&format!("/api/leases{query}"))).send().await.expect("an answer");
        let next = page.headers().get("x-tenure-cursor").map(|next| next.to_str().expect("text").to_owned());
        let text = page.text().await.expect("text");
        assert!(text.len() < 5 << 19, "a page has {} bytes", text.len());
        let page: Value = serde_json::from_str(&text).expect("JSON");
        let leases = page["leases"].as_array().expect("a list");
        seen.extend(leases.iter().map(|lease| lease["resource"].as_str().expect("text").to_owned()));
        ids.extend(leases.iter().map(|lease| lease["id"].as_u64().expect("an integer")));
        let Some(next) = next else { break };
        query = format!("?cursor={next}");
    }
    seen.sort();
    assert!(seen == resources, "the pages have {} of {RESOURCES} resources", seen.len());
    // A search goes over the same pages.
    let unknown = ids.iter().max().expect("there are some") + 1;
    for (id, expected) in [(ids[0], 200), (ids[RESOURCES - 1], 200), (unknown, 404)] {
        let (status, found) = cluster.get(&format!("/api/leases/{id}")).await;
        assert_eq!(status, expected, "{}", found["detail"]);
        assert!(status != 200 || found["id"] == json!(id), "{}", found["id"]);
    }
    cluster.end().await;
}

/// The bound is 256,000 leases, and one read of the node has 1,000 of these resources.
async fn search_of_an_id_passes_3000_leases() {
    let cluster = start().await;
    let resources: Vec<String> = (0..3_001).map(|number| format!("job-{number:04}")).collect();
    let leases = acquire_all(&cluster, &resources).await;
    let id = leases[3_000]["id"].as_u64().expect("an integer");
    let (status, found) = cluster.get(&format!("/api/leases/{id}")).await;
    assert_eq!((status, &found["resource"]), (200, &json!("job-3000")), "{found}");
    cluster.end().await;
}

async fn one_of_several_releases_succeeds() {
    let cluster = start().await;
    for round in 0..50 {
        acquire(&cluster, "job").await;
        let releases = (0..8).map(|_| change(&cluster, Method::DELETE, "/api/leases/release", "job"));
        let mut statuses: Vec<u16> = join_all(releases).await.into_iter().map(|(status, _)| status).collect();
        statuses.sort();
        assert_eq!(statuses, [200, 404, 404, 404, 404, 404, 404, 404], "in round {round}");
    }
    cluster.end().await;
}

async fn renewal_is_for_the_default_ttl() {
    let cluster = start().await;
    let path = "/v1/leases/compat%2Fjob";
    let (status, lease) = cluster.post(&format!("{path}/acquire"), json!({"holder": "a", "ttl_ms": 10_000})).await;
    assert_eq!((status, &lease["ttl_ms"]), (200, &json!(10_000)), "{lease}");
    let (status, renewed) = change(&cluster, Method::PUT, "/api/leases/renew", "job").await;
    assert_eq!(status, 200, "{renewed}");
    let (_, lease) = cluster.get(path).await;
    assert_eq!((&lease["ttl_ms"], &lease["renewals"]), (&json!(30_000), &json!(1)), "{lease}");
    cluster.end().await;
}

async fn answer_names_the_log_entry_that_it_reflects() {
    let cluster = start().await;
    let id = acquire(&cluster, "first").await["id"].as_u64().expect("an integer");
    let (by_id, mut last) = (format!("/api/leases/{id}"), id >> 13);
    for (method, path, status) in [
        (Method::POST, "/api/leases", 201_u16),
        (Method::PUT, "/api/leases/renew", 200),
        (Method::GET, "/api/leases", 200),
        (Method::GET, "/api/leases/active", 200),
        (Method::GET, by_id.as_str(), 200),
        (Method::DELETE, "/api/leases/release", 200),
        (Method::PUT, "/api/leases/renew", 404),
        (Method::GET, "/api/leases/1", 404),
    ] {
        let request = cluster.client.request(method.clone(), cluster.url(path));
        let request = if method == Method::GET { request } else { request.json(&claim("job")) };
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), status, "{method} {path}");
        let number = |name: &str| answer.headers().get(name).and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
        assert!(number("x-tenure-term") >= Some(1), "{method} {path}: {:?}", answer.headers());
        let index = number("x-tenure-index");
        assert!(index >= Some(last), "{method} {path}: {index:?} after {last}");
        last = index.expect("it is at least the last one");
    }
    cluster.end().await;
}
