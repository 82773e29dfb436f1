//! Deadlines: work ends before the cluster's expiry, although no renewal succeeds.

use std::time::Duration;

use serde_json::json;

use crate::case::{Case, Driver};
use crate::link::{Exchange, Fault, Path};
use crate::session::at;

/// A third of this ttl is longer than the delays of a busy machine.
const LONG_TTL_MS: u64 = 12_000;
const LONG_TTL: Duration = Duration::from_millis(LONG_TTL_MS);
/// Shorter than one attempt. That of an acquire has 2 s, and that of a renewal two fifteenths of the ttl.
const DELAY: Duration = Duration::from_millis(LONG_TTL_MS / 12);
/// The ttl of the case with a grant after a third of it, which is shorter than an attempt.
const LATE_TTL_MS: u64 = 4_500;
const LATE: Duration = Duration::from_millis(LATE_TTL_MS / 3 + 100);

/// Waits for the loss by the clock of the client, and for the expiry at the cluster.
async fn ends_unreachable(case: &Case, driver: &Driver, lease: &str) {
    let lost = driver.loses(lease).await;
    // A client that does not run for 250 ms at its deadline says that it was suspended.
    assert!(lost["why"] == "unreachable" || lost["why"] == "suspended", "{lost}");
    case.cluster.transition(lease, |seen| !seen.is_grant()).await;
}

pub async fn late_grant_counts_from_its_request(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    // A client renews a grant that comes after a third of the ttl.
    driver.link.once("/acquire", Fault::DelayAnswer(DELAY));
    driver.link.always("/renew", Fault::CutRequest);
    driver.work(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    ends_unreachable(case, &driver, &job).await;
}

pub async fn very_late_grant_is_renewed_first(case: &Case) {
    let driver = case.driver_with("a", json!({"operation_timeout_ms": 15_000}), &[]).await;
    let job = case.name("job");
    // All attempts are late.
    driver.link.always("/acquire", Fault::DelayAnswer(LATE));
    driver.work(&job, json!({"ttl_ms": LATE_TTL_MS})).await;
    let (granted, renewed) = (driver.link.requests("/acquire"), driver.link.requests("/renew"));
    let first = driver.session.events("work", &job).first().map(at).expect("it works");
    let precedes = |renewal: &Exchange| renewal.is_done() && renewal.answered.is_some_and(|answered| answered < first);
    assert!(renewed.iter().any(precedes), "{granted:?}, {renewed:?}");
    driver.link.always("/renew", Fault::CutRequest);
    ends_unreachable(case, &driver, &job).await;
}

pub async fn late_renewal_counts_from_its_request(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    driver.link.once("/renew", Fault::DelayAnswer(DELAY));
    driver.link.always("/renew", Fault::CutRequest);
    driver.work(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    let renewed = driver.link.carried_out("/renew", 1).await;
    ends_unreachable(case, &driver, &job).await;
    let last = driver.session.events("work", &job).last().map(at).expect("it worked");
    // The grant itself would end two thirds of a ttl after the renewal.
    assert!(last > renewed[0].received + LONG_TTL * 3 / 4, "the renewal did not count");
}

/// The ttl begins when the request arrives, later than the client has sent it.
pub async fn delayed_acquire_counts_from_its_send(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    driver.link.once("/acquire", Fault::DelayRequest(DELAY));
    driver.link.always("/renew", Fault::CutRequest);
    driver.work(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    ends_unreachable(case, &driver, &job).await;
    assert_counted(&driver, &job, &driver.link.requests("/acquire")[0], DELAY);
}

pub async fn delayed_renewal_counts_from_its_send(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    driver.link.once("/renew", Fault::DelayRequest(DELAY));
    driver.link.always("/renew", Fault::CutRequest);
    driver.work(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    let renewed = driver.link.carried_out("/renew", 1).await;
    ends_unreachable(case, &driver, &job).await;
    assert_counted(&driver, &job, &renewed[0], DELAY);
}

/// The request was late, and its ttl counted.
fn assert_counted(driver: &Driver, lease: &str, delayed: &Exchange, delay: Duration) {
    let arrived = delayed.forwarded.expect("it arrived");
    assert!(arrived >= delayed.received + delay, "{delayed:?}");
    let last = driver.session.events("work", lease).last().map(at).expect("it worked");
    assert!(last > delayed.received + LONG_TTL * 3 / 4, "{last:?}, {delayed:?}");
}

pub async fn drift_ends_work_early(case: &Case) {
    let (driver, job) = (case.driver_with("a", json!({"drift_permille": 200}), &[]).await, case.name("job"));
    driver.link.always("/renew", Fault::CutRequest);
    driver.work(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    let sent = driver.link.requests("/acquire")[0].received;
    ends_unreachable(case, &driver, &job).await;
    let last = driver.session.events("work", &job).last().map(at).expect("it worked");
    assert!(last > sent + LONG_TTL / 2, "the work ended at the first failed renewal");
}

pub async fn ending_precedes_the_deadline(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let (ttl, grace) = (Duration::from_millis(15_000), Duration::from_millis(7_500));
    driver.link.always("/renew", Fault::CutRequest);
    driver.acquire(&job, json!({"ttl_ms": 15_000, "grace_ms": 7_500})).await;
    let sent = driver.link.requests("/acquire").last().expect("the request of the grant").received;
    let ending = driver.session.state(&job, "ending").await;
    assert!(ending["why"].is_string(), "{ending}");
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], true, "held until the deadline");
    let lost = driver.session.state(&job, "lost").await;
    // A timer of a busy machine can be late.
    assert!(at(&ending) < sent + ttl - grace * 3 / 4, "the grace begins too late: {ending}, sent at {sent:?}");
    assert!(at(&lost) > at(&ending) + grace / 2, "{ending}, {lost}");
    // An attempt that began before the grace takes at most a third of the ttl.
    let ended = at(&ending) + ttl / 3;
    let late = driver.link.requests("/renew").into_iter().find(|renewal| renewal.received > ended);
    assert!(late.is_none(), "a renewal after {ending}: {late:?}");
}

pub async fn failed_renewals_put_the_lease_at_risk(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let token = driver.work(&job, json!({"ttl_ms": 9_000})).await;
    driver.link.set_all(Path::Refused).await;
    let risk = driver.session.state(&job, "at_risk").await;
    driver.link.set_all(Path::Open).await;
    driver.session.event("state", &job, |event| event["state"] == "held" && at(event) > at(&risk)).await;
    driver.session.works(&job).await;
    assert!(driver.session.events("state", &job).iter().all(|event| event["state"] != "lost"));
    assert_eq!(driver.ask("state", &job, json!({})).await["token"], json!(token));
}
