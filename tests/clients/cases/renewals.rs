//! Renewals: their times, their number, and late ones.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::api::EventKind;

use crate::case::Case;
use crate::link::{Exchange, Fault, Path};
use crate::session::at;
use crate::wait::eventually;

/// The ttl of the cases whose leases must survive the delays of a busy machine.
const LONG_TTL_MS: u64 = 6_000;
const LONG_TTL: Duration = Duration::from_millis(LONG_TTL_MS);

/// The times from the first answer of a renewal to the next renewal, each by the arrival of its request. A renewal can have
/// further attempts, also in parallel.
fn intervals(requests: &[Exchange]) -> Vec<Duration> {
    let (mut intervals, mut left) = (Vec::new(), requests);
    let answered = |request: &Exchange| request.answered.filter(|_| request.is_done());
    let first =
        |left: &[Exchange]| left.iter().filter_map(|request| Some((answered(request)?, request.received))).min();
    while let Some((end, received)) = first(left) {
        let Some(next) = left.iter().position(|request| request.received > end) else { break };
        intervals.push(left[next].received - received);
        left = &left[next..];
    }
    intervals
}

/// The ttl is long, so that the jitter and the delays of a busy machine stay in the range.
pub async fn renewals_come_at_a_third_of_the_ttl(case: &Case) {
    let (driver, job, ttl) = (case.driver("a").await, case.name("job"), 2 * LONG_TTL);
    driver.acquire(&job, json!({"ttl_ms": 2 * LONG_TTL_MS})).await;
    let seen = || {
        let requests = [driver.link.requests("/acquire"), driver.link.requests("/renew")];
        intervals(&requests.concat())
    };
    for count in 1..=3 {
        eventually("next renewal", || (seen().len() >= count).then_some(())).await;
    }
    let intervals = seen();
    // The proxy sees a request some time after the client has read its clock, in particular the first one.
    let range = ttl / 4..ttl / 2;
    let is_in_range = intervals[0] < range.end && intervals[1..].iter().all(|interval| range.contains(interval));
    assert!(is_in_range, "{intervals:?} are not in {range:?}");
}

pub async fn one_request_renews_all_leases(case: &Case) {
    let driver = case.driver("a").await;
    let jobs: Vec<String> = (1..=5).map(|number| case.name(&format!("job-{number}"))).collect();
    for job in &jobs {
        driver.acquire(job, json!({"ttl_ms": LONG_TTL_MS})).await;
    }
    let has_all = |request: &Exchange| request.body["leases"].as_array().map(Vec::len) == Some(5);
    let batches = eventually("three requests for all leases", || {
        let requests = driver.link.requests("/renew").into_iter();
        let batches: Vec<Exchange> = requests.filter(|request| request.is_done() && has_all(request)).collect();
        Some(batches).filter(|batches| batches.len() >= 3)
    })
    .await;
    let (first, last) = (batches[0].received, batches[2].received);
    // Each of the three renewals can have two further attempts.
    let between = |request: &Exchange| (first..last).contains(&request.received) && request.status < Some(500);
    let requests: Vec<Exchange> = driver.link.requests("/renew").into_iter().filter(between).collect();
    assert!(requests.iter().all(has_all), "between two requests for all leases there is one for some");
    assert!(requests.len() <= 3 * 3, "{} requests for three renewals", requests.len());
    let renewed = |result: &Value| result["lease"]["token"].is_string();
    assert!(batches[2].answer["results"].as_array().is_some_and(|results| results.iter().all(renewed)));
}

pub async fn slow_node_does_not_cost_the_lease(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    driver.work(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    let renewed = driver.link.carried_out("/renew", 1).await;
    driver.link.set(renewed[0].node, Path::Frozen).await;
    // Two more renewals at other nodes, and then work beyond the ttl of the first one.
    driver.link.carried_out("/renew", 3).await;
    driver.works_for(&job, LONG_TTL).await;
    assert!(driver.session.events("state", &job).iter().all(|event| event["state"] != "lost"));
}

pub async fn lost_lease_is_not_renewed(case: &Case) {
    let (driver, job, later) = (case.driver("a").await, case.name("job"), case.name("later"));
    driver.link.always("/renew", Fault::CutRequest);
    let token = driver.work(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    let lost = driver.loses(&job).await;
    driver.link.heal();
    // The renewals of a second lease show that the client renews again.
    driver.acquire(&later, json!({"ttl_ms": LONG_TTL_MS})).await;
    // An attempt that began before the loss takes at most a third of the ttl.
    let ended = at(&lost) + LONG_TTL / 3;
    let renewals = eventually("two renewals of another lease", || {
        let requests = driver.link.requests("/renew").into_iter();
        let late: Vec<Exchange> = requests.filter(|renewal| renewal.received > ended).collect();
        (late.iter().filter(|renewal| renewal.is_done()).count() >= 2).then_some(late)
    })
    .await;
    let late = renewals.iter().find(|renewal| renewal.tokens().contains(&token));
    assert!(late.is_none(), "a renewal after {lost}: {late:?}");
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], false, "a renewal does not restore a lost lease");
    case.cluster.transition(&job, |seen| !seen.is_grant() && seen.token == token).await;
    let next = driver.acquire(&job, json!({})).await;
    assert!(next > token, "{next:?} after {token:?}");
}

/// The drift is large, so that a renewal after the loss would find the grant.
pub async fn lost_lease_expires_by_its_ttl(case: &Case) {
    let (driver, job) = (case.driver_with("a", json!({"drift_permille": 200}), &[]).await, case.name("job"));
    driver.link.always("/renew", Fault::CutRequest);
    let token = driver.acquire(&job, json!({"ttl_ms": 3_000})).await;
    driver.session.state(&job, "lost").await;
    driver.link.heal();
    let end = case.cluster.transition(&job, |seen| !seen.is_grant() && seen.token == token).await;
    assert_eq!(end.event, EventKind::Expired, "a loss by the clock of the client releases nothing");
}

pub async fn late_duplicate_renewal_has_no_effect(case: &Case) {
    let (first, second, job) = (case.driver("a").await, case.driver("b").await, case.name("job"));
    first.acquire(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    let renewal = first.link.carried_out("/renew", 1).await.remove(0);
    first.ask("release", &job, json!({})).await;
    let held = second.work(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    let (status, answer) = first.link.repeat(&renewal, &case.cluster.addresses).await;
    let problem = if status == 200 { &answer["results"][0]["problem"] } else { &answer };
    assert_eq!((&problem["code"], &problem["why"]), (&json!("lost"), &json!("released")), "{status} {answer}");
    second.session.works(&job).await;
    assert_eq!(second.ask("check", &job, json!({})).await["outcome"], "held");
    assert_eq!(case.cluster.lease(&job).await["token"], json!(held));
    assert_eq!(first.ask("state", &job, json!({})).await["held"], false);
}
