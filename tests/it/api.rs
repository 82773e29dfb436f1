//! The HTTP API of a cluster of one node, over a real socket.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};
use tenure::api::{Acquire, Code, HandOver, Release, Renew, UpdateMetadata};
use tenure::client::{CallError, Remote};
use tenure::types::{HolderId, LeaseName, Metadata};

use crate::cluster::{Cluster, SOON, read};
use crate::steady::strict;

strict!(
    lease_goes_from_claim_to_release,
    resumed_watch_delivers_each_transition_once,
    small_pages_give_the_whole_list,
    pages_and_batches_with_large_metadata_stay_small,
    read_of_one_name_lists_1000_and_counts_the_others,
    disconnected_waiter_leaves_the_queue,
    names_with_slashes_work_in_each_path,
);

async fn lease_goes_from_claim_to_release() {
    let cluster = Cluster::start().await;
    let claim = json!({"holder": "a", "ttl_ms": 60000, "metadata": {"pid": "7"}});
    let (status, lease) = cluster.post("/v1/leases/jobs/acquire", claim.clone()).await;
    assert_eq!((status, &lease["state"], &lease["ttl_ms"]), (200, &json!("active"), &json!(60000)), "{lease}");
    assert_eq!(lease["metadata"], json!({"pid": "7"}));
    let token = lease["token"].clone();
    let (_, again) = cluster.post("/v1/leases/jobs/acquire", claim).await;
    assert_eq!(again["token"], token, "the holder keeps its token, and its lease is renewed");

    let (status, held) = cluster.post("/v1/leases/jobs/acquire", json!({"holder": "b"})).await;
    assert_eq!((status, &held["code"], &held["holder"], &held["token"]), (409, &json!("held"), &json!("a"), &token));
    // The name is free 1 ms after the last millisecond of the ttl.
    assert!(held["retry_after_ms"].as_u64().is_some_and(|ms| 0 < ms && ms <= 60_001), "{held}");
    assert!(held["since"].is_string(), "{held}");

    let (status, renewed) = cluster.post("/v1/leases/jobs/renew", json!({"holder": "a", "token": token})).await;
    assert_eq!((status, &renewed["renewals"], &renewed["token"]), (200, &json!(2), &token), "{renewed}");
    assert_eq!(renewed["metadata"], json!({"pid": "7"}));
    let (_, other) = cluster.post("/v1/leases/jobs/release", json!({"holder": "b", "token": token})).await;
    assert_eq!(other, json!({"released": false}));
    let (_, released) = cluster.post("/v1/leases/jobs/release", json!({"holder": "a", "token": token})).await;
    assert_eq!(released, json!({"released": true}));

    let (status, lost) = cluster.post("/v1/leases/jobs/renew", json!({"holder": "a", "token": token})).await;
    assert_eq!((status, &lost["code"], &lost["why"]), (409, &json!("lost"), &json!("released")), "{lost}");
    let (status, ended) = cluster.get("/v1/leases/jobs").await;
    assert_eq!((status, &ended["state"], &ended["expires_in_ms"]), (200, &json!("released"), &Value::Null));
    let (_, history) = cluster.get("/v1/leases/jobs/history").await;
    let events: Vec<&Value> =
        history["transitions"].as_array().expect("a list").iter().map(|event| &event["event"]).collect();
    assert_eq!(events, ["granted", "released"]);
    assert_eq!(cluster.get("/v1/leases/nothing").await.0, 404);
    cluster.end().await;
}

async fn resumed_watch_delivers_each_transition_once() {
    let cluster = Cluster::start().await;
    for holder in ["a", "b", "c"] {
        let claim = json!({"holder": holder, "limit": 3});
        assert_eq!(cluster.post("/v1/leases/pool/acquire", claim).await.0, 200);
    }
    let revoke = cluster.client.delete(cluster.url("/v1/leases/pool?reason=test"));
    let (status, revoked) = read(revoke).await;
    assert_eq!((status, &revoked), (200, &json!({"revoked": 3})));
    let token: u64 = cluster.acquire("last", "a").await.parse().expect("a token is an integer");
    let last = (token & ((1 << 48) - 1)).to_string();

    let all = watch(&cluster, "after=0", &last).await;
    let kinds: Vec<&str> = all.iter().map(|frame| kind(frame)).collect();
    assert_eq!(kinds, ["granted", "granted", "granted", "revoked", "revoked", "revoked", "granted"]);
    for (index, frame) in all.iter().enumerate().take(all.len() - 1) {
        let rest = watch(&cluster, &format!("after={}", id(frame)), &last).await;
        assert_eq!(rest, all[index + 1..], "resumed after {}", id(frame));
    }
    let filtered = watch(&cluster, "after=0&prefix=las", &last).await;
    assert_eq!(filtered, all[all.len() - 1..]);
    cluster.end().await;
}

/// Returns the event frames of a watch up to the event with the id `last`, inclusive.
async fn watch(cluster: &Cluster, query: &str, last: &str) -> Vec<String> {
    let mut response = cluster.client.get(cluster.url(&format!("/v1/watch?{query}"))).send().await.expect("a stream");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    let read = async {
        while !text.contains(&format!("id: {last}\n")) {
            let chunk = response.chunk().await.expect("the stream is readable").expect("the stream has no end");
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    };
    tokio::time::timeout(SOON, read).await.expect("the event arrives in time");
    text.split("\n\n").filter(|frame| frame.contains("data: ")).map(str::to_owned).collect()
}

fn id(frame: &str) -> &str {
    frame.lines().find_map(|line| line.strip_prefix("id: ")).expect("an event has an id")
}

fn kind(frame: &str) -> &str {
    frame.lines().find_map(|line| line.strip_prefix("event: ")).expect("an event has a kind")
}

async fn small_pages_give_the_whole_list() {
    let cluster = Cluster::start().await;
    for number in 0..7 {
        cluster.acquire(&format!("job-{number}"), "a").await;
    }
    cluster.acquire("other", "a").await;
    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let (status, page) = cluster.get(&format!("/v1/leases?prefix=job-&state=active&limit=2{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        let leases = page["leases"].as_array().expect("a list");
        assert!(leases.len() <= 2);
        names.extend(leases.iter().map(|lease| lease["name"].as_str().expect("a name").to_owned()));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let expected: Vec<String> = (0..7).map(|number| format!("job-{number}")).collect();
    assert_eq!(names, expected);
    cluster.end().await;
}

async fn pages_and_batches_with_large_metadata_stay_small() {
    const LEASES: usize = 600;
    let cluster = Cluster::start().await;
    let claims = (0..LEASES).map(|number| {
        let (cluster, name) = (&cluster, format!("large-{number:03}"));
        async move {
            let claim = json!({"holder": "h", "metadata": {"text": "x".repeat(4_000)}});
            let path = format!("/v1/leases/{name}/acquire");
            let began = Instant::now();
            let (status, lease) = loop {
                let answer = cluster.post(&path, claim.clone()).await;
                // A node whose disk is slow has no room for more claims.
                if answer.0 != 429 || began.elapsed() > SOON {
                    break answer;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            assert_eq!(status, 200, "{lease}");
            json!({"name": name, "token": lease["token"]})
        }
    });
    let leases: Vec<Value> = futures_util::stream::iter(claims).buffered(50).collect().await;
    let (mut names, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let (status, page) = cluster.get(&format!("/v1/leases?prefix=large-&limit=1000{cursor}")).await;
        assert!(status == 200 && page.to_string().len() < 2 << 20, "{status}, {} bytes", page.to_string().len());
        pages += 1;
        let listed = page["leases"].as_array().expect("a list");
        names.extend(listed.iter().map(|lease| lease["name"].as_str().expect("a name").to_owned()));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let expected: Vec<String> = (0..LEASES).map(|number| format!("large-{number:03}")).collect();
    assert_eq!((names, pages), (expected, 3));
    let (status, renewed) = cluster.post("/v1/renew", json!({"holder": "h", "leases": leases})).await;
    let results = renewed["results"].as_array().expect("a list");
    assert!(status == 200 && results.len() == LEASES && renewed.to_string().len() < 1 << 20, "{status}");
    let kept = |result: &Value| result["lease"]["renewals"] == 1 && result["lease"].get("metadata").is_none();
    assert!(results.iter().all(kept), "{}", results[0]);
    let (_, lease) = cluster.get("/v1/leases/large-000").await;
    assert_eq!(lease["metadata"]["text"].as_str().map(str::len), Some(4_000), "the lease keeps its metadata");
    cluster.end().await;
}

async fn read_of_one_name_lists_1000_and_counts_the_others() {
    const COUNT: usize = 1_001;
    let cluster = Cluster::start().await;
    let claims = (0..COUNT).map(|number| {
        let claim = json!({"holder": format!("h-{number}"), "limit": COUNT, "ttl_ms": 600_000});
        cluster.post("/v1/leases/pool/acquire", claim)
    });
    let held: Vec<(u16, Value)> = futures_util::stream::iter(claims).buffer_unordered(4).collect().await;
    assert!(held.iter().all(|(status, _)| *status == 200), "{held:?}");
    let waits: Vec<_> = (0..COUNT)
        .map(|number| {
            let claim = json!({"holder": format!("w-{number}"), "limit": COUNT, "wait_ms": 60000});
            let request = cluster.client.post(cluster.url("/v1/leases/pool/acquire")).json(&claim);
            tokio::spawn(async move {
                let send = || request.try_clone().expect("the body is not a stream").send();
                while send().await.expect("an answer").status() == 429 {}
            })
        })
        .collect();
    let all_wait = async {
        while cluster.get("/v1/leases/pool").await.1["waiters"] != json!(COUNT) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(3 * SOON, all_wait).await.expect("all claims are queued in time");

    let count = |list: &Value| list.as_array().map(Vec::len);
    let (_, lease) = cluster.get("/v1/leases/pool").await;
    assert_eq!(count(&lease["holders"]), Some(1_000));
    let cursor = lease["holders_cursor"].as_str().expect("one holder is left for the next page");
    let (_, rest) = cluster.get(&format!("/v1/leases?prefix=pool&state=active&cursor={cursor}")).await;
    assert_eq!((count(&rest["leases"]), &rest["cursor"]), (Some(1), &Value::Null));
    let (_, explanation) = cluster.get("/v1/leases/pool/explain?holder=w-7").await;
    assert_eq!((count(&explanation["held"]), &explanation["holders"]), (Some(1_000), &json!(COUNT)));
    assert_eq!(explanation["standing"]["status"], "waits");
    let summary = explanation["summary"].as_str().expect("text");
    assert!(summary.starts_with("held by 1001 of at most 1001; 1001 waiting"), "{summary}");
    let (_, queue) = cluster.get("/v1/leases/pool/queue").await;
    assert_eq!((count(&queue["waiters"]), &queue["total"]), (Some(1_000), &json!(COUNT)));
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    cluster.end().await;
}

async fn disconnected_waiter_leaves_the_queue() {
    let cluster = Cluster::start().await;
    let token = cluster.acquire("jobs", "a").await;
    let claim = |holder: &str| {
        let request = cluster.client.post(cluster.url("/v1/leases/jobs/acquire"));
        tokio::spawn(request.json(&json!({"holder": holder, "wait_ms": 60000})).send())
    };
    let (disconnects, stays) = (claim("disconnects"), claim("stays"));
    let waiting = |count: usize| {
        let cluster = &cluster;
        async move {
            while cluster.get("/v1/leases/jobs/queue").await.1["waiters"].as_array().map(Vec::len) != Some(count) {}
        }
    };
    tokio::time::timeout(SOON, waiting(2)).await.expect("both claims are queued in time");
    disconnects.abort();
    tokio::time::timeout(SOON, waiting(1)).await.expect("one waiter leaves the queue in time");
    let (status, granted) = cluster.post("/v1/leases/jobs/handover", json!({"holder": "a", "token": token})).await;
    assert_eq!((status, &granted["holder"]), (200, &json!("stays")), "{granted}");
    let answer = tokio::time::timeout(SOON, stays)
        .await
        .expect("the answer arrives in time")
        .expect("the task does not panic")
        .expect("an answer");
    let lease: Value = answer.json().await.expect("JSON");
    assert_eq!(lease["token"], granted["token"]);
    cluster.end().await;
}

/// The second name ends like a path of the API, and the third one has an empty part.
async fn names_with_slashes_work_in_each_path() {
    let cluster = Cluster::start().await;
    let remote = Remote::new(format!("http://{}", cluster.address).parse().expect("an endpoint"));
    let holder = HolderId::new("a").expect("valid");
    for text in ["billing/nightly", "billing/nightly/acquire", "billing//nightly/"] {
        let name = LeaseName::new(text).expect("valid");
        let lease = remote.acquire(&name, &Acquire::new(holder.clone())).await.expect("free");
        assert_eq!(lease.name, text);
        let renew = Renew::new(holder.clone(), lease.token);
        assert_eq!(remote.renew(&name, &renew).await.expect("held").token, lease.token);
        let metadata = Metadata::new([("a".to_owned(), "b".to_owned())].into()).expect("valid");
        let update = UpdateMetadata::new(holder.clone(), lease.token, 0, metadata);
        assert_eq!(remote.update_metadata(&name, &update).await.expect("held").metadata_version, 1);
        assert_eq!(remote.get(&name).await.expect("held").token, lease.token);
        assert_eq!(remote.history(&name).await.expect("a list").transitions.len(), 1);
        assert_eq!(remote.queue(&name).await.expect("a list").total, 0);
        assert_eq!(remote.explain(&name, None).await.expect("held").held.len(), 1);
        let refused = remote.hand_over(&name, &HandOver::new(holder.clone(), lease.token)).await;
        assert!(matches!(refused, Err(CallError::Refused(problem)) if problem.code == Code::NoSuchWaiter));
        let release = Release::new(holder.clone(), lease.token);
        assert!(remote.release(&name, &release).await.expect("held").released);
        assert_eq!(remote.revoke(&name, "").await.expect("answered").revoked, 0);
    }
    let (status, lease) = cluster.get("/v1/leases/billing%2Fnightly").await;
    assert_eq!((status, &lease["name"]), (200, &json!("billing/nightly")));
    let (status, page) = cluster.get("/v1/leases?prefix=billing/nightly&state=released").await;
    assert_eq!((status, page["leases"].as_array().map(Vec::len)), (200, Some(2)), "{page}");
    cluster.end().await;
}
