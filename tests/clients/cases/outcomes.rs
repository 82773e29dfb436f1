//! Outcomes: held, refused, unknown and unavailable.

use std::time::Duration;

use serde_json::json;
use tenure::api::EventKind;
use tokio_util::sync::CancellationToken;

use crate::case::{Case, Driver};
use crate::client::Call;
use crate::link::{Exchange, Fault, Path};
use crate::session::token;
use crate::wait::eventually;

const TTL_MS: u64 = 10_000;

pub async fn held_lease_is_refused_to_others(case: &Case) {
    let (first, second, job) = (case.driver("a").await, case.driver("b").await, case.name("job"));
    let held = first.acquire(&job, json!({"ttl_ms": TTL_MS})).await;
    let refused = second.ask("acquire", &job, json!({"ttl_ms": TTL_MS})).await;
    assert_eq!((&refused["outcome"], &refused["code"]), (&json!("refused"), &json!("held")), "{refused}");
    assert_eq!(second.ask("state", &job, json!({})).await["held"], false);
    let again = first.acquire(&job, json!({"ttl_ms": TTL_MS})).await;
    assert_eq!(again, held, "an acquire of a held lease returns its token");
    let state = first.ask("state", &job, json!({})).await;
    assert_eq!((&state["held"], &state["state"], token(&state)), (&json!(true), &json!("held"), held), "{state}");
    assert!(state["left_ms"].as_f64().is_some_and(|left| left <= TTL_MS as f64), "{state}");
}

pub async fn each_grant_has_a_higher_token(case: &Case) {
    let (first, second, job) = (case.driver("a").await, case.driver("b").await, case.name("job"));
    let mut tokens = Vec::new();
    for driver in [&first, &second, &first] {
        tokens.push(driver.acquire(&job, json!({"ttl_ms": TTL_MS})).await);
        let state = driver.ask("state", &job, json!({})).await;
        assert_eq!(token(&state), *tokens.last().expect("a token"), "{state}");
        let released = driver.ask("release", &job, json!({})).await;
        assert_eq!((&released["outcome"], &released["was_held"]), (&json!("released"), &json!(true)), "{released}");
        let again = driver.ask("release", &job, json!({})).await;
        assert_eq!((&again["outcome"], &again["was_held"]), (&json!("released"), &json!(false)), "{again}");
        assert_eq!(driver.ask("state", &job, json!({})).await["state"], "released");
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

pub async fn options_reach_the_cluster(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let options = json!({"ttl_ms": TTL_MS, "limit": 2, "lock_delay_ms": 1_000, "metadata": {"zone": "eu"}});
    driver.acquire(&job, options).await;
    let lease = case.cluster.lease(&job).await;
    let seen = (&lease["ttl_ms"], &lease["limit"], &lease["lock_delay_ms"], &lease["metadata"]["zone"]);
    assert_eq!(seen, (&json!(TTL_MS), &json!(2), &json!(1_000), &json!("eu")), "{lease}");
    let forever = case.name("forever");
    driver.acquire(&forever, json!({"ttl_ms": "infinite"})).await;
    assert_eq!(case.cluster.lease(&forever).await["ttl_ms"], "infinite");
    assert_eq!(driver.ask("state", &forever, json!({})).await["held"], true);
    driver.ask("release", &forever, json!({})).await;
}

pub async fn refusals_have_codes(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let first = case.other_acquires(&job, TTL_MS).await;
    let differs = driver.ask("acquire", &job, json!({"ttl_ms": TTL_MS, "limit": 2})).await;
    assert_eq!((&differs["outcome"], &differs["code"]), (&json!("refused"), &json!("limit_differs")), "{differs}");
    case.other_releases(&job, first).await;

    let delayed = case.name("delayed");
    let token = driver.acquire(&delayed, json!({"ttl_ms": TTL_MS, "lock_delay_ms": 60_000})).await;
    case.revoke(&delayed, token).await;
    let refused = case.driver("b").await.ask("acquire", &delayed, json!({"ttl_ms": TTL_MS})).await;
    assert_eq!((&refused["outcome"], &refused["code"]), (&json!("refused"), &json!("lock_delay")), "{refused}");
}

pub async fn unreachable_cluster_is_unavailable(case: &Case) {
    let driver = case.driver_with("a", json!({"operation_timeout_ms": 6_000}), &[]).await;
    let job = case.name("job");
    driver.link.set_all(Path::Refused).await;
    let refused = driver.ask("acquire", &job, json!({"ttl_ms": TTL_MS})).await;
    assert_eq!(refused["outcome"], "unavailable", "{refused}");
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], false);
    driver.link.set(2, Path::Open).await;
    driver.acquire(&job, json!({"ttl_ms": TTL_MS})).await;
}

pub async fn lost_answer_is_resolved_by_a_retry(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    driver.link.once("/acquire", Fault::CutAnswer);
    let token = driver.acquire(&job, json!({"ttl_ms": TTL_MS})).await;
    let sent = attempts(&driver);
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent.iter().all(|sent| sent.answer["token"] == json!(token)), "one grant: {sent:?}");
}

pub async fn lost_request_is_sent_again(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    driver.link.once("/acquire", Fault::CutRequest);
    driver.acquire(&job, json!({"ttl_ms": TTL_MS})).await;
    assert_eq!(attempts(&driver).len(), 2);
}

/// The acquires, except those that a node refused during an election or that reached the time limit of an attempt.
fn attempts(driver: &Driver) -> Vec<Exchange> {
    let is_done_or_cut = |sent: &Exchange| sent.is_done() || sent.forwarded.is_none();
    driver.link.requests("/acquire").into_iter().filter(is_done_or_cut).collect()
}

pub async fn lost_answers_are_unknown(case: &Case) {
    let driver = case.driver_with("a", json!({"operation_timeout_ms": 5_000}), &[]).await;
    let job = case.name("job");
    driver.link.always("/acquire", Fault::CutAnswer);
    let unknown = driver.ask("acquire", &job, json!({"ttl_ms": TTL_MS})).await;
    assert_eq!(unknown["outcome"], "unknown", "{unknown}");
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], false, "unknown is not held");
    driver.link.heal();
    driver.acquire(&job, json!({"ttl_ms": TTL_MS})).await;
}

/// The late request is granted without the knowledge of the client, which must not count it as held.
pub async fn late_duplicate_acquire_is_not_held(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    driver.acquire(&job, json!({"ttl_ms": TTL_MS})).await;
    let first = driver.link.requests("/acquire").remove(0);
    driver.ask("release", &job, json!({})).await;
    let (status, granted) = driver.link.repeat(&first, &case.cluster.addresses).await;
    assert_eq!(status, 200, "{granted}");
    case.touches(token(&granted));
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], false);
    let held = driver.acquire(&job, json!({"ttl_ms": TTL_MS})).await;
    assert_eq!(held, token(&granted), "the grant of the duplicate is the same holder's");
}

/// The first attempt arrives after the retry was granted and released. The client does not know the second grant, and does
/// not renew it.
pub async fn acquire_that_arrives_late_is_not_held(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    // An attempt takes at most 2 s.
    driver.link.once("/acquire", Fault::DelayRequest(Duration::from_secs(5)));
    let held = driver.acquire(&job, json!({"ttl_ms": 4_500})).await;
    driver.ask("release", &job, json!({})).await;
    let late = case.cluster.transition(&job, |seen| seen.is_grant() && seen.token > held).await;
    case.touches(late.token);
    assert_eq!(late.holder, driver.holder);
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], false, "the client got no response with {late:?}");
    let end = case.cluster.transition(&job, |seen| !seen.is_grant() && seen.token == late.token).await;
    assert_eq!(end.event, EventKind::Expired);
}

/// No attempt of the release arrives before the client gives up. Then one of them releases the lease.
pub async fn release_that_arrives_late_is_unknown(case: &Case) {
    let driver = case.driver_with("a", json!({"operation_timeout_ms": 4_000}), &[]).await;
    let job = case.name("job");
    let held = driver.acquire(&job, json!({"ttl_ms": 60_000})).await;
    driver.link.always("/release", Fault::DelayRequest(Duration::from_secs(6)));
    let released = driver.ask("release", &job, json!({})).await;
    assert_eq!(released["outcome"], "unknown", "{released}");
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], false, "a lease is given up before its release");
    let end = case.cluster.transition(&job, |seen| !seen.is_grant() && seen.token == held).await;
    assert_eq!(end.event, EventKind::Released);
    driver.link.heal();
    assert!(driver.acquire(&job, json!({})).await > held);
}

/// The nodes get each request twice, and the client gets the response to the first one.
pub async fn duplicated_requests_have_one_effect(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    for request in ["/acquire", "/renew", "/release"] {
        driver.link.always(request, Fault::Duplicate);
    }
    let held = driver.work(&job, json!({"ttl_ms": 6_000})).await;
    driver.link.done("/renew", 3).await;
    driver.session.works(&job).await;
    driver.ask("stop_work", &job, json!({})).await;
    case.cluster.transition(&job, |seen| !seen.is_grant() && seen.token == held).await;
    let next = driver.acquire(&job, json!({})).await;
    assert!(next > held);
    case.cluster.transition(&job, |seen| seen.token == next).await;
    let seen: Vec<EventKind> = case.cluster.transitions(&job).iter().map(|seen| seen.event).collect();
    assert_eq!(seen, [EventKind::Granted, EventKind::Released, EventKind::Granted]);
    let duplicate = |request: &str| driver.link.requests(request).into_iter().find(Exchange::is_done)?.duplicate;
    let acquired = duplicate("/acquire").expect("it was sent twice");
    assert_eq!((acquired.0, &acquired.1["token"]), (200, &json!(held)), "{acquired:?}");
    let released = duplicate("/release").expect("it was sent twice");
    assert_eq!((released.0, &released.1["released"]), (200, &json!(false)), "{released:?}");
}

/// The first attempt is granted, its response is lost, and then another holder gets the lease.
pub async fn refused_retry_after_a_lost_answer_is_unknown(case: &Case) {
    let driver = case.driver_with("a", json!({"operation_timeout_ms": 3_000}), &[]).await;
    let (job, signal) = (case.name("job"), CancellationToken::new());
    driver.link.once("/acquire", Fault::CutAnswerAt(signal.clone()));
    let acquire = driver.send("acquire", &job, json!({"ttl_ms": TTL_MS}));
    let granted = driver.link.carried_out("/acquire", 1).await;
    // The retry of a client whose first attempt reached its time limit must not come first.
    driver.link.set_all(Path::Frozen).await;
    case.revoke(&job, token(&granted[0].answer)).await;
    case.other_acquires(&job, TTL_MS).await;
    driver.link.set_all(Path::Open).await;
    signal.cancel();
    let unknown = driver.session.response(acquire).await;
    assert_eq!(unknown["outcome"], "unknown", "{unknown}");
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], false);
}

pub async fn release_without_an_answer_is_not_held(case: &Case) {
    let driver = case.driver_with("a", json!({"operation_timeout_ms": 5_000}), &[]).await;
    let job = case.name("job");
    driver.acquire(&job, json!({"ttl_ms": 6_000})).await;
    driver.link.always("/release", Fault::CutRequest);
    driver.link.always("/explain", Fault::CutRequest);
    driver.link.always("/history", Fault::CutRequest);
    let released = driver.send("release", &job, json!({}));
    driver.link.arrived("/release", 1).await;
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], false, "a lease is given up before its release");
    let released = driver.session.response(released).await;
    assert_eq!(released["outcome"], "unknown", "{released}");
    // The lease is no longer renewed, and ends by its ttl.
    eventually("end of the lease", || case.cluster.transitions(&job).into_iter().find(|seen| !seen.is_grant())).await;
    let free = case.cluster.client.call_until_known(0, &Call::acquire(&job, &case.other(), TTL_MS)).await;
    assert!(free.is_ok(), "{free:?}");
}
