//! Waits in the queue of a lease.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure::api::{EventKind, GrantCause};

use crate::case::Case;
use crate::client::Call;
use crate::link::{Exchange, Fault, Path};
use crate::session::token;
use crate::wait::{POLL, SOON, eventually};

/// Leases with this ttl survive the delays of a busy machine.
const TTL_MS: u64 = 6_000;
const WAIT_MS: u64 = 14_000;

/// Waits until this many waiters are in the queue.
pub async fn queued(case: &Case, lease: &str, expected: usize) {
    let queue = Call::get(format!("/v1/leases/{lease}/queue"));
    let reached = async {
        while case.cluster.client.done(0, &queue).await["total"] != json!(expected) {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(SOON, reached).await.unwrap_or_else(|_| panic!("no {expected} waiters"));
}

pub async fn waiter_gets_a_released_lease(case: &Case) {
    let (first, second, job) = (case.driver("a").await, case.driver("b").await, case.name("job"));
    let held = first.work(&job, json!({"ttl_ms": TTL_MS})).await;
    let waiting = second.send("work", &job, json!({"ttl_ms": TTL_MS, "wait_ms": WAIT_MS}));
    queued(case, &job, 1).await;
    // After a wait of more than a third of the ttl, a client renews before it works.
    first.works_for(&job, Duration::from_millis(TTL_MS / 2)).await;
    first.ask("stop_work", &job, json!({})).await;
    let granted = second.session.response(waiting).await;
    assert_eq!(granted["outcome"], "held", "{granted}");
    assert!(token(&granted) > held);
    second.works_for(&job, Duration::from_millis(TTL_MS)).await;
    let grants = case.cluster.transition(&job, |seen| seen.token == token(&granted)).await;
    assert_eq!(grants.cause, Some(GrantCause::Queue));
}

pub async fn hand_over_goes_to_the_waiter(case: &Case) {
    let (first, second, job) = (case.driver("a").await, case.driver("b").await, case.name("job"));
    let held = first.acquire(&job, json!({"ttl_ms": 10_000})).await;
    let refused = first.ask("hand_over", &job, json!({})).await;
    assert_eq!((&refused["outcome"], &refused["code"]), (&json!("refused"), &json!("no_such_waiter")), "{refused}");
    assert_eq!(first.ask("state", &job, json!({})).await["held"], true, "a refused hand-over changes nothing");
    let waiting = second.send("acquire", &job, json!({"ttl_ms": 10_000, "wait_ms": WAIT_MS}));
    queued(case, &job, 1).await;
    let done = first.ask("hand_over", &job, json!({"to": second.holder})).await;
    assert_eq!(done["outcome"], "handed_over", "{done}");
    assert_eq!(first.ask("state", &job, json!({})).await["held"], false);
    let granted = second.session.response(waiting).await;
    assert_eq!(granted["outcome"], "held", "{granted}");
    let end = case.cluster.transition(&job, |seen| seen.event == EventKind::HandedOver && seen.token == held).await;
    let next = case.cluster.transition(&job, |seen| seen.is_grant() && seen.token == token(&granted)).await;
    assert_eq!(end.index, next.index, "the lease is never free in between");
}

pub async fn wait_ends_at_its_limit(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    case.other_acquires(&job, 60_000).await;
    let refused = driver.ask("acquire", &job, json!({"ttl_ms": TTL_MS, "wait_ms": 200})).await;
    // A client that had to send its request again may have had no time left to wait.
    let is_over = refused["code"] == "wait_timeout" || refused["code"] == "held";
    assert!(refused["outcome"] == "refused" && is_over, "{refused}");
    queued(case, &job, 0).await;
}

pub async fn waiter_leaves_a_frozen_node(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let held = case.other_acquires(&job, 60_000).await;
    let waiting = driver.send("acquire", &job, json!({"ttl_ms": TTL_MS, "wait_ms": WAIT_MS}));
    queued(case, &job, 1).await;
    let first = driver.link.requests("/acquire")[0].node;
    driver.link.set(first, Path::Frozen).await;
    let elsewhere = |request: &Exchange| request.node != first && request.forwarded.is_some();
    eventually("wait at another node", || driver.link.requests("/acquire").into_iter().find(elsewhere)).await;
    queued(case, &job, 1).await;
    case.other_releases(&job, held).await;
    let granted = driver.session.response(waiting).await;
    assert_eq!(granted["outcome"], "held", "{granted}");
    driver.ask("release", &job, json!({})).await;
}

pub async fn crashed_waiter_leaves_the_queue(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    case.other_acquires(&job, 60_000).await;
    driver.send("acquire", &job, json!({"ttl_ms": TTL_MS, "wait_ms": WAIT_MS}));
    queued(case, &job, 1).await;
    driver.session.close().await;
    queued(case, &job, 0).await;
}

/// Three holders take turns, and each loses some requests and responses.
pub async fn contending_holders_never_overlap(case: &Case) {
    let job = case.name("job");
    let drivers = join_all(["a", "b", "c"].map(|name| case.driver(name))).await;
    join_all(drivers.iter().map(|driver| async {
        for fault in [Fault::CutAnswer, Fault::CutRequest, Fault::CutAnswer] {
            driver.link.once("/acquire", fault.clone());
            driver.work(&job, json!({"ttl_ms": 5_000, "wait_ms": WAIT_MS})).await;
            driver.works_for(&job, Duration::from_millis(50)).await;
            driver.link.once("/release", fault);
            driver.ask("stop_work", &job, json!({})).await;
        }
    }))
    .await;
    let grants = case.cluster.transitions(&job).into_iter().filter(|seen| seen.is_grant());
    assert!(grants.count() >= 9);
}

pub async fn shutdown_leaves_the_queue(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    case.other_acquires(&job, 60_000).await;
    let waiting = driver.send("acquire", &job, json!({"ttl_ms": TTL_MS, "wait_ms": WAIT_MS}));
    queued(case, &job, 1).await;
    let ended = driver.session.ask(json!({"op": "shutdown"})).await;
    assert_eq!(ended["left"], json!([]), "{ended}");
    queued(case, &job, 0).await;
    let outcome: Value = driver.session.record().asked()[waiting].response["outcome"].clone();
    // The driver can end before it has printed the outcome of the acquire.
    assert!(outcome.is_null() || outcome == "shut_down", "{outcome}");
    assert_eq!(driver.session.exit().await, Some(0));
}
