//! Cancelled acquires. The client must release the grant or leave the queue in the background, long before the ttl.

use serde_json::{Value, json};
use tenure::api::EventKind;
use tenure::token::FencingToken;
use tokio_util::sync::CancellationToken;

use super::queues::queued;
use crate::case::{Case, Driver};
use crate::judge::Transition;
use crate::link::Fault;
use crate::session::token;

/// Longer than a case may take: only the client can end the grant in time.
const TTL_MS: u64 = 120_000;
const WAIT_MS: u64 = 60_000;

/// The answer arrives after the cancellation.
pub async fn cancelled_acquire_releases_a_late_grant(case: &Case) {
    let (driver, job, signal) = (case.driver("a").await, case.name("job"), CancellationToken::new());
    driver.link.always("/acquire", Fault::DelayAnswerUntil(signal.clone()));
    let acquire = driver.send("acquire", &job, json!({"ttl_ms": TTL_MS}));
    let granted = token(&driver.link.carried_out("/acquire", 1).await[0].answer);
    cancel(&driver, acquire).await;
    signal.cancel();
    released(case, &driver, &job, granted).await;
}

/// No answer to the acquire arrives, nor the first one to the release.
pub async fn cancelled_acquire_releases_a_lost_grant(case: &Case) {
    // The acquire must not reach its time limit before the cancellation.
    let driver = case.driver_with("a", json!({"operation_timeout_ms": 5_000}), &[]).await;
    let (job, signal) = (case.name("job"), CancellationToken::new());
    driver.link.once("/acquire", Fault::CutAnswerAt(signal.clone()));
    driver.link.always("/acquire", Fault::CutAnswer);
    driver.link.once("/release", Fault::CutAnswer);
    let acquire = driver.send("acquire", &job, json!({"ttl_ms": TTL_MS}));
    let granted = token(&driver.link.carried_out("/acquire", 1).await[0].answer);
    cancel(&driver, acquire).await;
    signal.cancel();
    ended(case, &job, granted).await;
    driver.link.heal();
    released(case, &driver, &job, granted).await;
}

pub async fn cancelled_wait_leaves_the_queue(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let first = case.other_acquires(&job, TTL_MS).await;
    let waiting = driver.send("acquire", &job, json!({"ttl_ms": TTL_MS, "wait_ms": WAIT_MS}));
    queued(case, &job, 1).await;
    cancel(&driver, waiting).await;
    queued(case, &job, 0).await;
    case.other_releases(&job, first).await;
    let held = driver.acquire(&job, json!({})).await;
    case.cluster.transition(&job, |seen| seen.token == held).await;
    // A client can leave the queue with a short claim, which can be granted. It releases that grant.
    let seen = case.cluster.transitions(&job);
    let is_left = |grant: &&Transition| {
        grant.is_grant() && grant.token != held && !seen.iter().any(|end| end.token == grant.token && !end.is_grant())
    };
    assert_eq!(seen.iter().find(is_left), None, "the abandoned wait holds the lease");
}

/// The cluster has granted the lease to the waiter, and the answer is on its way.
pub async fn cancelled_wait_releases_its_grant(case: &Case) {
    let (driver, job, signal) = (case.driver("a").await, case.name("job"), CancellationToken::new());
    let first = case.other_acquires(&job, TTL_MS).await;
    driver.link.once("/acquire", Fault::CutAnswerAt(signal.clone()));
    let waiting = driver.send("acquire", &job, json!({"ttl_ms": TTL_MS, "wait_ms": WAIT_MS}));
    queued(case, &job, 1).await;
    case.other_releases(&job, first).await;
    let granted = token(&driver.link.carried_out("/acquire", 1).await[0].answer);
    cancel(&driver, waiting).await;
    signal.cancel();
    released(case, &driver, &job, granted).await;
}

/// Cancels an acquire whose answer has not arrived.
async fn cancel(driver: &Driver, acquire: usize) {
    driver.session.ask(json!({"op": "cancel", "acquire": acquire})).await;
    let cancelled = driver.session.response(acquire).await;
    assert_eq!(cancelled["outcome"], "cancelled", "{cancelled}");
}

/// Waits until the grant has ended by a release.
async fn ended(case: &Case, lease: &str, granted: FencingToken) {
    let end = case.cluster.transition(lease, |seen| seen.token == granted && !seen.is_grant()).await;
    assert_eq!(end.event, EventKind::Released, "{end:?}");
}

/// Waits until nothing of the abandoned grant is left. Then other holders and this one can acquire the lease.
async fn released(case: &Case, driver: &Driver, lease: &str, granted: FencingToken) {
    ended(case, lease, granted).await;
    queued(case, lease, 0).await;
    let state: Value = driver.ask("state", lease, json!({})).await;
    assert_eq!(state["held"], false, "{state}");
    let other = case.other_acquires(lease, TTL_MS).await;
    case.other_releases(lease, other).await;
    assert!(driver.acquire(lease, json!({})).await > granted);
}
