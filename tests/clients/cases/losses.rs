//! Losses that the cluster reports, with their reasons.

use serde_json::{Value, json};
use tenure::api::EventKind;

use crate::case::{Case, Driver};
use crate::client::Call;
use crate::session::at;
use crate::wait::{POLL, SOON};

/// Long enough that a renewal learns of the loss before the deadline, also on a busy machine.
const TTL_MS: u64 = 9_000;

/// Waits for the loss, and checks that no work follows it.
async fn loses(driver: &Driver, lease: &str, why: &str) {
    let lost = driver.loses(lease).await;
    assert_eq!(lost["why"], why, "{lost}");
    let ended = driver.session.event("work_ended", lease, |_| true).await;
    assert_eq!(ended["why"], "lost", "{ended}");
    let late = |event: &Value| at(event) > at(&ended);
    assert!(!driver.session.events("work", lease).iter().any(late), "work after {ended}");
    let state = driver.ask("state", lease, json!({})).await;
    assert_eq!(
        (&state["state"], &state["why"], &state["held"]),
        (&json!("lost"), &json!(why), &json!(false)),
        "{state}"
    );
}

pub async fn revoke_ends_the_work(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let token = driver.work(&job, json!({"ttl_ms": TTL_MS})).await;
    case.revoke(&job, token).await;
    loses(&driver, &job, "revoked").await;
}

pub async fn release_by_another_ends_the_work(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let token = driver.work(&job, json!({"ttl_ms": TTL_MS})).await;
    case.touches(token);
    let release = Call::release(&job, &driver.holder, token.as_u64());
    assert_eq!(case.cluster.client.done(0, &release).await["released"], true);
    loses(&driver, &job, "released").await;
}

pub async fn hand_over_by_another_ends_the_work(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let token = driver.work(&job, json!({"ttl_ms": TTL_MS})).await;
    case.touches(token);
    let (client, wait) = (case.cluster.client.clone(), Call::wait(&job, &case.other(), 10_000, SOON));
    let waiting = tokio::spawn(async move { client.done(1, &wait).await });
    let body = json!({"holder": driver.holder, "token": token});
    let hand_over = Call::post(format!("/v1/leases/{job}/handover"), body);
    // It is refused until the waiter has arrived.
    while case.cluster.client.call_until_known(0, &hand_over).await.is_err() {
        tokio::time::sleep(POLL).await;
    }
    assert_eq!(waiting.await.expect("the wait ends")["holder"], case.other());
    loses(&driver, &job, "handed_over").await;
}

pub async fn check_sees_a_revoke(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let token = driver.acquire(&job, json!({"ttl_ms": 60_000})).await;
    assert_eq!(driver.ask("check", &job, json!({})).await["outcome"], "held");
    case.revoke(&job, token).await;
    // From then on, the judge knows that the read comes later.
    case.cluster.transition(&job, |seen| seen.event == EventKind::Revoked).await;
    let lost = driver.ask("check", &job, json!({})).await;
    assert_eq!((&lost["outcome"], &lost["why"]), (&json!("lost"), &json!("revoked")), "{lost}");
    assert_eq!(driver.ask("state", &job, json!({})).await["held"], false);
}
