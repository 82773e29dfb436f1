//! Answers that docs/http.md documents, one test per sentence.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure::access::AccessToken;
use tenure::config::{LeaseSettings, RaftTimings};
use tenure::http::RenderMetrics;
use tenure::lease::{Command, WaiterId};
use tenure::node::{Forward, Request};
use tenure::types::{HolderId, LeaseName};

use crate::cluster::{Cluster, SOON, read};
use crate::steady::{steady, strict};

steady!(filtered_events_do_not_delay_the_position,);
strict!(
    lease_shows_its_grant_and_its_ttl,
    claim_refusals_have_the_documented_codes,
    refusal_names_the_bound_of_waiters_or_leases,
    lost_renewal_names_the_cause_and_the_holder,
    batch_renewal_has_one_result_per_lease,
    batch_renewal_has_no_metadata,
    list_has_the_leases_of_its_filter,
    list_without_a_limit_has_100_leases,
    metadata_update_requires_the_current_version,
    hand_over_goes_to_the_named_waiter,
    revoke_keeps_the_reason_and_the_queue,
    explanation_names_the_next_waiter,
    explained_holder_has_the_cause_of_its_grant,
    watch_events_have_cause_and_receiver,
    filtered_watch_reports_its_position,
    watch_of_a_later_position_waits_for_it,
    watch_behind_a_snapshot_is_compacted,
    renewal_without_ttl_is_for_the_ttl_of_the_grant,
    wait_whose_place_is_dropped_is_abandoned,
    listener_that_requires_an_identity_refuses_the_others,
);

async fn delete(cluster: &Cluster, path: &str) -> (u16, Value) {
    read(cluster.client.delete(cluster.url(path))).await
}

async fn claim(cluster: &Cluster, name: &str, claim: Value) -> (u16, Value) {
    cluster.post(&format!("/v1/leases/{name}/acquire"), claim).await
}

/// Sends a waiting claim. Returns when it is in the queue as the last of `waiters`.
async fn wait(cluster: &Cluster, name: &str, holder: &str, waiters: u32) -> tokio::task::JoinHandle<Value> {
    let request = cluster.client.post(cluster.url(&format!("/v1/leases/{name}/acquire")));
    let request = request.json(&json!({"holder": holder, "wait_ms": 60000}));
    let waiting = tokio::spawn(async move { read(request).await.1 });
    let queued = async { while cluster.get(&format!("/v1/leases/{name}/queue")).await.1["total"] != json!(waiters) {} };
    tokio::time::timeout(SOON, queued).await.expect("the claim is queued in time");
    waiting
}

async fn lease_shows_its_grant_and_its_ttl() {
    let cluster = Cluster::start().await;
    let (_, lease) = claim(&cluster, "job", json!({"holder": "a"})).await;
    assert_eq!((&lease["ttl_ms"], &lease["limit"], &lease["lock_delay_ms"]), (&json!(30000), &json!(1), &json!(0)));
    assert!(lease["expires_in_ms"].as_u64().is_some_and(|ms| ms <= 30_000), "{lease}");
    assert!(lease.get("metadata").is_none() && lease["metadata_version"] == 0, "{lease}");
    let number = |field: &str| lease[field].as_u64().expect("a number");
    let token: u64 = lease["token"].as_str().expect("a string").parse().expect("a number");
    assert_eq!(token, number("term") << 48 | number("index"));
    let (_, again) = claim(&cluster, "job", json!({"holder": "a", "metadata": {"k": "v"}})).await;
    assert_eq!((&again["renewals"], again.get("metadata")), (&json!(1), None), "the metadata stays: {again}");
    assert_eq!(again["granted_at"], lease["granted_at"]);
    let (_, infinite) = claim(&cluster, "for-ever", json!({"holder": "a", "ttl_ms": "infinite"})).await;
    assert_eq!((&infinite["ttl_ms"], &infinite["expires_in_ms"]), (&json!("infinite"), &Value::Null), "{infinite}");
    let (status, held) = claim(&cluster, "for-ever", json!({"holder": "b"})).await;
    assert_eq!((status, &held["code"], held.get("retry_after_ms")), (409, &json!("held"), None), "{held}");
    cluster.end().await;
}

async fn claim_refusals_have_the_documented_codes() {
    let cluster = Cluster::start().await;
    cluster.acquire("job", "a").await;
    let (status, problem) = claim(&cluster, "job", json!({"holder": "b", "limit": 2})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("limit_differs")), "{problem}");
    let (status, problem) = claim(&cluster, "job", json!({"holder": "b", "wait_ms": 1})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("wait_timeout")), "{problem}");
    let (_, held) = claim(&cluster, "job", json!({"holder": "b", "wait_ms": 0})).await;
    assert_eq!((&held["code"], &held["waiters"]), (&json!("held"), &json!(0)), "0 does not wait: {held}");
    let delayed = json!({"holder": "a", "lock_delay_ms": 86_400_000});
    assert_eq!(claim(&cluster, "delayed", delayed).await.1["lock_delay_ms"], json!(86_400_000));
    assert_eq!(delete(&cluster, "/v1/leases/delayed").await.1, json!({"revoked": 1}));
    let (status, problem) = claim(&cluster, "delayed", json!({"holder": "b"})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("lock_delay")), "{problem}");
    // The name is free 1 ms after the last millisecond of the delay.
    assert!(problem["retry_after_ms"].as_u64().is_some_and(|ms| 0 < ms && ms <= 86_400_001), "{problem}");
    let (_, explanation) = cluster.get("/v1/leases/delayed/explain").await;
    let left = explanation["lock_delay_left_ms"].as_u64();
    assert!(left.is_some_and(|ms| 0 < ms && ms <= 86_400_001), "{explanation}");
    cluster.end().await;
}

async fn refusal_names_the_bound_of_waiters_or_leases() {
    let mut bounds = LeaseSettings::default();
    (bounds.limits.max_waiters, bounds.limits.max_leases) = (1, 2);
    let cluster = Cluster::start_node(|node| node.lease(bounds)).await;
    let token = cluster.acquire("job", "a").await;
    let waiting = wait(&cluster, "job", "b", 1).await;
    let full = |name: &str, holder: &str, wait_ms: u64| {
        let request = cluster.client.post(cluster.url(&format!("/v1/leases/{name}/acquire")));
        request.json(&json!({"holder": holder, "wait_ms": wait_ms})).send()
    };
    cluster.acquire("second", "a").await;
    for (name, wait_ms, code, limit) in [("job", 60_000, "queue_full", 1), ("third", 0, "too_many_leases", 2)] {
        let answer = full(name, "c", wait_ms).await.expect("an answer");
        assert!(answer.headers().contains_key("retry-after"), "{code}");
        assert_eq!(answer.status(), 429, "{code}");
        let problem: Value = answer.json().await.expect("JSON");
        assert_eq!((&problem["code"], &problem["limit"]), (&json!(code), &json!(limit)), "{problem}");
    }
    cluster.post("/v1/leases/job/release", json!({"holder": "a", "token": token})).await;
    assert_eq!(waiting.await.expect("the task does not panic")["holder"], json!("b"));
    cluster.end().await;
}

async fn lost_renewal_names_the_cause_and_the_holder() {
    let cluster = Cluster::start().await;
    let renew = |name: &'static str, token: String| {
        let cluster = &cluster;
        async move { cluster.post(&format!("/v1/leases/{name}/renew"), json!({"holder": "a", "token": token})).await }
    };
    let revoked = cluster.acquire("revoked", "a").await;
    delete(&cluster, "/v1/leases/revoked").await;
    cluster.acquire("revoked", "b").await;
    let handed = cluster.acquire("handed", "a").await;
    let waiting = wait(&cluster, "handed", "b", 1).await;
    cluster.post("/v1/leases/handed/handover", json!({"holder": "a", "token": handed})).await;
    waiting.await.expect("the task does not panic");
    let (_, short) = claim(&cluster, "expired", json!({"holder": "a", "ttl_ms": 100})).await;
    let expired = async { while cluster.get("/v1/leases/expired").await.1["state"] != json!("expired") {} };
    tokio::time::timeout(SOON, expired).await.expect("the lease expires in time");
    let short = short["token"].as_str().expect("a token").to_owned();
    for (name, token, why, holder) in [
        ("revoked", revoked, "revoked", json!("b")),
        ("handed", handed, "handed_over", json!("b")),
        ("expired", short, "expired", Value::Null),
        ("never", "5".to_owned(), "unknown", Value::Null),
    ] {
        let (status, lost) = renew(name, token).await;
        assert_eq!((status, &lost["code"], &lost["why"]), (409, &json!("lost"), &json!(why)), "{lost}");
        assert_eq!(lost["holder"], holder, "{lost}");
    }
    assert_eq!(cluster.get("/v1/leases/expired").await.1["expires_in_ms"], Value::Null);
    cluster.end().await;
}

async fn batch_renewal_has_one_result_per_lease() {
    let cluster = Cluster::start().await;
    let (first, last) = (cluster.acquire("first", "a").await, cluster.acquire("last", "a").await);
    let item = |name: &str, token: &str| json!({"name": name, "token": token});
    let leases = [item("last", &last), item("never", "5"), item("first", &first)];
    let (status, renewed) = cluster.post("/v1/renew", json!({"holder": "a", "leases": leases})).await;
    let results = renewed["results"].as_array().expect("a list");
    assert_eq!((status, results.len()), (200, 3), "{renewed}");
    for (result, (name, token)) in results.iter().zip([("last", Some(&last)), ("never", None), ("first", Some(&first))])
    {
        assert_eq!(result["name"], json!(name), "{renewed}");
        match token {
            Some(token) => assert_eq!((&result["lease"]["token"], result.get("problem")), (&json!(token), None)),
            None => assert_eq!((&result["problem"]["code"], result.get("lease")), (&json!("lost"), None)),
        }
    }
    cluster.end().await;
}

/// The first batch has one lease, and the second one has two.
async fn batch_renewal_has_no_metadata() {
    let cluster = Cluster::start().await;
    let mut leases = Vec::new();
    for name in ["first", "second"] {
        let (_, lease) = claim(&cluster, name, json!({"holder": "a", "metadata": {"k": "v"}})).await;
        leases.push(json!({"name": name, "token": lease["token"]}));
        let (status, renewed) = cluster.post("/v1/renew", json!({"holder": "a", "leases": leases})).await;
        let results = renewed["results"].as_array().expect("a list");
        assert_eq!((status, results.len()), (200, leases.len()), "{renewed}");
        for lease in results.iter().map(|result| &result["lease"]) {
            assert!(lease["token"].is_string() && lease.get("metadata").is_none(), "{lease}");
        }
    }
    assert_eq!(cluster.get("/v1/leases/first").await.1["metadata"], json!({"k": "v"}), "the lease keeps its metadata");
    cluster.end().await;
}

async fn list_has_the_leases_of_its_filter() {
    let cluster = Cluster::start().await;
    cluster.acquire("active-a", "a").await;
    cluster.acquire("active-b", "b").await;
    for (name, holder, change) in [("released-a", "a", "release"), ("renewed-b", "b", "renew")] {
        let token = cluster.acquire(name, holder).await;
        let body = json!({"holder": holder, "token": token});
        assert_eq!(cluster.post(&format!("/v1/leases/{name}/{change}"), body).await.0, 200);
    }
    for (query, expected) in [
        ("", &["active-a", "active-b", "released-a", "renewed-b"][..]),
        ("holder=a", &["active-a", "released-a"]),
        ("holder=b", &["active-b", "renewed-b"]),
        ("state=released", &["released-a"]),
        ("state=active", &["active-a", "active-b", "renewed-b"]),
        ("state=renewed", &["renewed-b"]),
        ("state=active,released&holder=a", &["active-a", "released-a"]),
        ("state=released&holder=b", &[]),
        ("prefix=re&holder=b", &["renewed-b"]),
    ] {
        let (_, page) = cluster.get(&format!("/v1/leases?{query}")).await;
        let names: Vec<&str> = leases(&page).iter().filter_map(|lease| lease["name"].as_str()).collect();
        assert_eq!(names, expected, "{query}: {page}");
    }
    cluster.end().await;
}

async fn list_without_a_limit_has_100_leases() {
    let cluster = Cluster::start().await;
    for number in 0..101 {
        cluster.acquire(&format!("job-{number:03}"), "a").await;
    }
    let (_, page) = cluster.get("/v1/leases").await;
    assert_eq!(leases(&page).len(), 100);
    let cursor = page["cursor"].as_str().expect("one lease is left");
    let (_, rest) = cluster.get(&format!("/v1/leases?cursor={cursor}")).await;
    assert_eq!((leases(&rest).len(), &leases(&rest)[0]["name"]), (1, &json!("job-100")), "{rest}");
    cluster.end().await;
}

fn leases(page: &Value) -> &[Value] {
    page["leases"].as_array().expect("a list")
}

async fn metadata_update_requires_the_current_version() {
    let cluster = Cluster::start().await;
    let token = cluster.acquire("job", "a").await;
    let change = |version: u64, text: &str, token: &str| {
        let body = json!({"holder": "a", "token": token, "version": version, "metadata": {"k": text}});
        let cluster = &cluster;
        async move { cluster.post("/v1/leases/job/metadata", body).await }
    };
    for _ in 0..2 {
        let (status, lease) = change(0, "v", &token).await;
        assert_eq!((status, &lease["metadata"]["k"], &lease["metadata_version"]), (200, &json!("v"), &json!(1)));
    }
    let (status, problem) = change(0, "w", &token).await;
    assert_eq!((status, &problem["code"], &problem["metadata_version"]), (409, &json!("metadata_changed"), &json!(1)));
    assert_eq!(cluster.get("/v1/leases/job").await.1["metadata"]["k"], json!("v"), "the metadata is unchanged");
    let (status, problem) = change(1, "w", "5").await;
    assert_eq!((status, &problem["code"]), (409, &json!("lost")), "{problem}");
    cluster.end().await;
}

async fn hand_over_goes_to_the_named_waiter() {
    let cluster = Cluster::start().await;
    let token = cluster.acquire("job", "a").await;
    let hand_over = |body: Value| {
        let cluster = &cluster;
        async move { cluster.post("/v1/leases/job/handover", body).await }
    };
    let (status, problem) = hand_over(json!({"holder": "a", "token": token})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("no_such_waiter")), "the queue is empty: {problem}");
    let (first, named) = (wait(&cluster, "job", "first", 1).await, wait(&cluster, "job", "named", 2).await);
    let (status, problem) = hand_over(json!({"holder": "a", "token": token, "to": "other"})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("no_such_waiter")), "{problem}");
    let (status, lease) = hand_over(json!({"holder": "a", "token": token, "to": "named"})).await;
    assert_eq!((status, &lease["holder"], &lease["state"]), (200, &json!("named"), &json!("active")), "{lease}");
    assert_eq!(named.await.expect("the task does not panic")["token"], lease["token"]);
    let (status, problem) = hand_over(json!({"holder": "a", "token": token})).await;
    assert_eq!((status, &problem["code"], &problem["why"]), (409, &json!("lost"), &json!("handed_over")), "{problem}");
    let (_, lease) = hand_over(json!({"holder": "named", "token": lease["token"]})).await;
    assert_eq!(
        first.await.expect("the task does not panic")["token"],
        lease["token"],
        "the lease goes to the first waiter"
    );
    cluster.end().await;
}

async fn revoke_keeps_the_reason_and_the_queue() {
    let cluster = Cluster::start().await;
    assert_eq!(delete(&cluster, "/v1/leases/job").await, (200, json!({"revoked": 0})));
    cluster.acquire("job", "a").await;
    let (first, _second) = (wait(&cluster, "job", "first", 1).await, wait(&cluster, "job", "second", 2).await);
    let reason = "r".repeat(500);
    let (status, problem) = delete(&cluster, &format!("/v1/leases/job?reason={reason}r")).await;
    assert_eq!((status, &problem["code"]), (400, &json!("invalid")), "{problem}");
    assert_eq!(delete(&cluster, &format!("/v1/leases/job?reason={reason}")).await, (200, json!({"revoked": 1})));
    assert_eq!(first.await.expect("the task does not panic")["holder"], json!("first"));
    let (_, history) = cluster.get("/v1/leases/job/history").await;
    let revoked = history["transitions"].as_array().expect("a list").iter().find(|event| event["event"] == "revoked");
    assert_eq!(revoked.expect("the history has the revoke")["reason"], json!(reason));
    let (_, queue) = cluster.get("/v1/leases/job/queue").await;
    assert_eq!((&queue["total"], &queue["waiters"][0]["holder"]), (&json!(1), &json!("second")), "{queue}");
    cluster.end().await;
}

async fn explanation_names_the_next_waiter() {
    let cluster = Cluster::start().await;
    let token = cluster.acquire("job", "a").await;
    let _waiting = wait(&cluster, "job", "b", 1).await;
    let (_, all) = cluster.get("/v1/leases/job/explain").await;
    assert_eq!(
        (&all["holders"], &all["held"][0]["holder"], &all["waiters"]),
        (&json!(1), &json!("a"), &json!(1)),
        "{all}"
    );
    assert_eq!(all["next"]["holder"], json!("b"), "{all}");
    assert!(all["summary"].as_str().is_some_and(|text| text.contains("held by a")), "{all}");
    assert!(all.get("standing").is_none(), "the request names no holder: {all}");
    for (holder, status) in [("a", "holds"), ("b", "waits"), ("c", "unknown")] {
        let (_, explanation) = cluster.get(&format!("/v1/leases/job/explain?holder={holder}")).await;
        assert_eq!(explanation["standing"]["status"], json!(status), "{explanation}");
    }
    cluster.post("/v1/leases/job/release", json!({"holder": "a", "token": token})).await;
    let (_, ended) = cluster.get("/v1/leases/job/explain?holder=a").await;
    let standing = &ended["standing"];
    assert_eq!((&standing["status"], &standing["event"]["event"]), (&json!("ended"), &json!("released")), "{ended}");
    cluster.end().await;
}

async fn explained_holder_has_the_cause_of_its_grant() {
    let cluster = Cluster::start().await;
    let token = cluster.acquire("job", "a").await;
    let waiting = wait(&cluster, "job", "b", 1).await;
    let standing = async |holder: &str| {
        let (_, explanation) = cluster.get(&format!("/v1/leases/job/explain?holder={holder}")).await;
        let standing = &explanation["standing"];
        (standing["status"].clone(), standing["cause"].clone())
    };
    assert_eq!(standing("a").await, (json!("holds"), json!("asked")));
    let handed = cluster.post("/v1/leases/job/handover", json!({"holder": "a", "token": token})).await;
    assert_eq!((handed.0, &handed.1["holder"]), (200, &json!("b")), "{}", handed.1);
    waiting.await.expect("the task does not panic");
    assert_eq!(standing("b").await, (json!("holds"), json!("hand_over")));
    cluster.end().await;
}

/// Reads the text of a watch until it `is_complete`.
async fn watch(cluster: &Cluster, query: &str, is_complete: impl Fn(&str) -> bool) -> String {
    let mut response = cluster.client.get(cluster.url(&format!("/v1/watch?{query}"))).send().await.expect("a stream");
    let mut text = String::new();
    let reading = async {
        while !is_complete(&text) {
            let chunk = response.chunk().await.expect("the stream is readable").expect("the stream has no end");
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    };
    tokio::time::timeout(SOON, reading).await.expect("the watch is complete in time");
    text
}

fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

async fn watch_events_have_cause_and_receiver() {
    let cluster = Cluster::start().await;
    let token = cluster.acquire("job", "a").await;
    let (_b, _c) = (wait(&cluster, "job", "b", 1).await, wait(&cluster, "job", "c", 2).await);
    cluster.post("/v1/leases/job/handover", json!({"holder": "a", "token": token})).await;
    delete(&cluster, "/v1/leases/job?reason=stuck").await;
    let text = watch(&cluster, "after=0", |text| text.matches("data: ").count() >= 5).await;
    let seen: Vec<(Value, Value, Value)> = events(&text)
        .into_iter()
        .map(|event| {
            let detail = ["cause", "to", "reason"].into_iter().find_map(|field| event.get(field));
            (event["event"].clone(), event["holder"].clone(), detail.cloned().unwrap_or_default())
        })
        .collect();
    let expected = [
        ("granted", "a", "asked"),
        ("handed_over", "a", "b"),
        ("granted", "b", "hand_over"),
        ("revoked", "b", "stuck"),
        ("granted", "c", "queue"),
    ];
    assert_eq!(seen, expected.map(|(event, holder, detail)| (json!(event), json!(holder), json!(detail))));
    cluster.end().await;
}

async fn filtered_watch_reports_its_position() {
    let quiet = std::time::Duration::from_millis(50);
    let cluster = Cluster::start_with(|settings| settings.watch_keep_alive = quiet).await;
    let token: u64 = cluster.acquire("other", "a").await.parse().expect("a number");
    let index = token & ((1 << 48) - 1);
    // `watch` fails if no position at or after the filtered event comes.
    let position = |line: &str| line.strip_prefix("id: ").and_then(|id| id.parse::<u64>().ok());
    let is_after = |text: &str| text.lines().filter_map(position).any(|seen| seen >= index);
    let text = watch(&cluster, "after=0&prefix=job", is_after).await;
    assert!(text.starts_with("id: 0\n\n"), "the start position: {text}");
    assert!(!text.contains("data: "), "{text}");
    cluster.end().await;
}

/// The interval between two filtered events is a fraction of the keep-alive interval.
async fn filtered_events_do_not_delay_the_position() {
    const EVENTS: u32 = 200;
    let quiet = std::time::Duration::from_millis(300);
    let cluster = Cluster::start_with(|settings| settings.watch_keep_alive = quiet).await;
    let mut stream = cluster.client.get(cluster.url("/v1/watch?prefix=job")).send().await.expect("a stream");
    stream.chunk().await.expect("the stream is readable").expect("the stream begins with its position");
    let filtered = async {
        for number in 0..EVENTS {
            cluster.acquire(&format!("other-{number}"), "a").await;
            tokio::time::sleep(quiet / 20).await;
        }
    };
    tokio::select! {
        position = stream.chunk() => {
            let position = position.expect("the stream is readable").expect("the stream has no end");
            assert!(position.starts_with(b"id: ") && position.ends_with(b"\n\n"), "{position:?}");
        }
        () = filtered => panic!("the stream was silent during {EVENTS} filtered events"),
    }
    cluster.end().await;
}

async fn watch_of_a_later_position_waits_for_it() {
    let cluster = Cluster::start().await;
    let token: u64 = cluster.acquire("before", "a").await.parse().expect("a number");
    let later = (token & ((1 << 48) - 1)) + 2;
    let mut response =
        cluster.client.get(cluster.url(&format!("/v1/watch?after={later}"))).send().await.expect("a stream");
    assert_eq!(response.status(), 200);
    for number in 0..4 {
        cluster.acquire(&format!("job-{number}"), "a").await;
    }
    let mut text = String::new();
    let reading = async {
        while !text.contains("job-3") {
            let chunk = response.chunk().await.expect("the stream is readable").expect("the stream has no end");
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    };
    tokio::time::timeout(SOON, reading).await.expect("the events arrive in time");
    let early = events(&text).into_iter().find(|event| event["index"].as_u64() <= Some(later));
    assert_eq!(early, None, "no event at or before the requested position");
    cluster.end().await;
}

/// After a snapshot the node restarts, so it replays only the last entries of its log.
async fn watch_behind_a_snapshot_is_compacted() {
    let mut timings = RaftTimings::lan();
    (timings.snapshot_every, timings.snapshot_keep) = (100, 10);
    let cluster = Cluster::start_node(|node| node.timings(timings)).await;
    for number in 0..250 {
        // No lease expires during the test, so each of them causes one event.
        let (status, lease) =
            claim(&cluster, &format!("job-{number}"), json!({"holder": "a", "ttl_ms": "infinite"})).await;
        assert_eq!(status, 200, "{lease}");
    }
    let cluster = cluster.restart(|node| node.timings(timings)).await;
    let (status, problem) = cluster.get("/v1/watch?after=0").await;
    assert_eq!((status, &problem["code"]), (410, &json!("compacted")), "{problem}");
    let oldest = problem["oldest"].as_u64().expect("a log index");
    let before_oldest = cluster.get(&format!("/v1/watch?after={}", oldest - 1)).await;
    assert_eq!(
        (before_oldest.0, &before_oldest.1["oldest"]),
        (410, &json!(oldest)),
        "`oldest` is the first position that can be resumed"
    );
    let (_, listed) = cluster.get("/v1/leases?limit=1000").await;
    let indexes = listed["leases"].as_array().expect("a list").iter().map(|lease| lease["index"].as_u64());
    let later: Vec<u64> = indexes.flatten().filter(|index| *index > oldest).collect();
    cluster.acquire("last", "a").await;
    let text = watch(&cluster, &format!("after={oldest}"), |text| text.contains("\"last\"")).await;
    assert_eq!(events(&text).len(), later.len() + 1, "the watch delivers all later events");
    cluster.end().await;
}

async fn renewal_without_ttl_is_for_the_ttl_of_the_grant() {
    let cluster = Cluster::start().await;
    // The default is 30 s.
    for ttl_ms in [10_000, 60_000] {
        let name = format!("job-{ttl_ms}");
        let (_, lease) = claim(&cluster, &name, json!({"holder": "a", "ttl_ms": ttl_ms})).await;
        let token = &lease["token"];
        let (_, one) = cluster.post(&format!("/v1/leases/{name}/renew"), json!({"holder": "a", "token": token})).await;
        let batch = json!({"holder": "a", "leases": [{"name": name, "token": token}]});
        let (_, batch) = cluster.post("/v1/renew", batch).await;
        for (renewals, renewed) in [(1, &one), (2, &batch["results"][0]["lease"])] {
            let seen = (&renewed["ttl_ms"], &renewed["renewals"]);
            assert_eq!(seen, (&json!(ttl_ms), &json!(renewals)), "{renewed}");
            assert!(renewed["expires_in_ms"].as_u64().is_some_and(|ms| ms <= ttl_ms), "{renewed}");
        }
        let (_, named) = cluster
            .post(&format!("/v1/leases/{name}/renew"), json!({"holder": "a", "token": token, "ttl_ms": 90_000}))
            .await;
        assert_eq!(named["ttl_ms"], json!(90_000), "{named}");
    }
    cluster.end().await;
}

async fn wait_whose_place_is_dropped_is_abandoned() {
    let cluster = Cluster::start().await;
    cluster.acquire("job", "a").await;
    let (dropped, stays) = (wait(&cluster, "job", "b", 1).await, wait(&cluster, "job", "c", 2).await);
    let (name, holder) = (LeaseName::new("job").expect("valid"), HolderId::new("b").expect("valid"));
    let leave = Request::Change(Command::LeaveQueue { waiter: WaiterId { name, holder } });
    cluster.node.request(leave, Forward::Never).await.expect("the node leads");
    let problem = tokio::time::timeout(SOON, dropped).await.expect("it ends").expect("no panic");
    assert_eq!((&problem["status"], &problem["code"]), (&json!(409), &json!("wait_abandoned")), "{problem}");
    let (_, queue) = cluster.get("/v1/leases/job/queue").await;
    assert_eq!((&queue["total"], &queue["waiters"][0]["holder"]), (&json!(1), &json!("c")), "{queue}");
    stays.abort();
    cluster.end().await;
}

async fn listener_that_requires_an_identity_refuses_the_others() {
    let metrics: RenderMetrics = Arc::new(String::new);
    for is_public in [false, true] {
        let cluster = Cluster::start_with(|settings| {
            settings.require_identity = Some(true);
            settings.metrics = Some(metrics.clone());
            settings.limits.public_metrics = is_public;
        });
        let cluster = cluster.await;
        for open in ["/livez", "/readyz", "/version", "/openapi.json"] {
            assert_eq!(cluster.get(open).await.0, 200, "{open}");
        }
        let claim = || cluster.client.post(cluster.url("/v1/leases/a/acquire")).json(&json!({"holder": "a"}));
        let token = format!("Bearer {}", AccessToken::from_secret([7; 32]).expose());
        let headers = [None, Some("Basic YTpi"), Some(token.as_str())];
        for header in headers {
            let with = |request: reqwest::RequestBuilder| match header {
                Some(header) => request.header("authorization", header),
                None => request,
            };
            for request in [claim(), cluster.client.get(cluster.url("/v1/leases/a?consistency=stale"))] {
                let (status, problem) = read(with(request)).await;
                assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{header:?}: {problem}");
            }
            let metrics = with(cluster.client.get(cluster.url("/metrics"))).send().await.expect("an answer");
            assert_eq!(metrics.status(), if is_public { 200 } else { 401 }, "{header:?}");
        }
        cluster.end().await;
    }
}
