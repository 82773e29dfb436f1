//! Processes that are stopped, suspended, killed and shut down.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tenure::api::EventKind;
use tenure::clock::{Clock, SystemClock};

use crate::case::{Case, Driver};
use crate::client::Call;
use crate::language::example;
use crate::link::Exchange;
use crate::session::token;
use crate::wait::SOON;

/// Leases with this ttl survive the delays of a busy machine.
const LONG_TTL_MS: u64 = 6_000;

pub async fn leader_killed_keeps_the_lease(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    let held = driver.work(&job, json!({"ttl_ms": 12_000})).await;
    case.cluster.kill_leader().await;
    // The request of the first renewal may have been answered by the old leader.
    let renewals = driver.link.requests("/renew").into_iter().filter(Exchange::is_done).count();
    for more in 1..=2 {
        driver.link.carried_out("/renew", renewals + more).await;
    }
    driver.session.works(&job).await;
    let checked = driver.ask("check", &job, json!({})).await;
    assert_eq!(checked["outcome"], "held", "{checked}");
    assert_eq!(case.cluster.lease(&job).await["token"], json!(held));
    assert!(driver.session.events("state", &job).iter().all(|event| event["state"] != "lost"));
    driver.ask("stop_work", &job, json!({})).await;
    let released = case.cluster.transition(&job, |seen| seen.event == EventKind::Released).await;
    assert_eq!(released.token, held);
}

/// Stops the driver until another holder has its lease. `resume` lets it run again.
async fn stop_until_taken(case: &Case, driver: &Driver, lease: &str, resume: impl FnOnce(Duration)) {
    driver.work(lease, json!({"ttl_ms": LONG_TTL_MS})).await;
    let begun = SystemClock.elapsed();
    driver.session.signal(Signal::STOP);
    let wait = Call::wait(lease, &case.other(), 60_000, SOON);
    assert_eq!(case.cluster.client.done(0, &wait).await["holder"], case.other());
    resume(SystemClock.elapsed() - begun);
    driver.session.signal(Signal::CONT);
    let lost = driver.loses(lease).await;
    assert_eq!(lost["why"], "suspended", "{lost}");
    assert_eq!(driver.ask("state", lease, json!({})).await["held"], false);
}

pub async fn stopped_process_does_no_late_work(case: &Case) {
    let (driver, job) = (case.driver("a").await, case.name("job"));
    stop_until_taken(case, &driver, &job, |_| {}).await;
}

/// `CLOCK_MONOTONIC` does not count a suspend of the machine, and all timers come late. A preloaded library shows such a
/// clock to the driver.
pub async fn suspended_machine_does_no_late_work(case: &Case) {
    let library = example("libsuspended_clock.so");
    let library = library.expect("run cargo build --all-features --example suspended_clock");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |suspended: Duration| {
        use std::os::unix::fs::FileExt;
        let nanos = (suspended.as_nanos() as u64).to_ne_bytes();
        file.as_file().write_all_at(&nanos, 0).expect("the file is writable");
    };
    write(Duration::ZERO);
    let variables = [("LD_PRELOAD", library.display()), ("TENURE_FAULTS_SUSPENDED", file.path().display())];
    let environment = variables.map(|(name, value)| (name.to_owned(), value.to_string()));
    let (driver, job) = (case.driver_with("a", json!({}), &environment).await, case.name("job"));
    stop_until_taken(case, &driver, &job, write).await;
}

pub async fn crashed_driver_leaves_the_lease_to_its_ttl(case: &Case) {
    let (driver, next, job) = (case.driver("a").await, case.driver("b").await, case.name("job"));
    let held = driver.acquire(&job, json!({"ttl_ms": LONG_TTL_MS})).await;
    driver.session.close().await;
    let granted = next.ask("acquire", &job, json!({"ttl_ms": LONG_TTL_MS, "wait_ms": 14_000})).await;
    assert_eq!(granted["outcome"], "held", "{granted}");
    assert!(token(&granted) > held);
    let end = case.cluster.transition(&job, |seen| !seen.is_grant() && seen.token == held).await;
    assert_eq!(end.event, EventKind::Expired, "a crash releases nothing");
}

pub async fn shutdown_releases_all_leases(case: &Case) {
    let driver = case.driver("a").await;
    let names = ["one", "two", "three"].map(|name| case.name(name));
    for name in &names {
        driver.acquire(name, json!({"ttl_ms": 60_000})).await;
    }
    let ended = driver.session.ask(json!({"op": "shutdown"})).await;
    assert_eq!(ended["left"], json!([]), "{ended}");
    assert_eq!(driver.session.exit().await, Some(0));
    for name in &names {
        assert_eq!(case.cluster.lease(name).await["state"], "released", "{name}");
    }
}
