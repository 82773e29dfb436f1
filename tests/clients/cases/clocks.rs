//! The clock of the client.

use std::path::Path;

use serde_json::json;
use tenure::clock::{Clock, SystemClock};

use crate::case::Case;
use crate::session::at;

/// Where Linux distributions install libfaketime.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

pub async fn clock_of_deadlines_counts_suspend(case: &Case) {
    let driver = case.driver("a").await;
    let before = SystemClock.elapsed();
    let shown = at(&driver.session.ask(json!({"op": "clock"})).await);
    let after = SystemClock.elapsed();
    assert!(shown + case.language.resolution >= before && shown <= after, "{shown:?} is not in {before:?}..{after:?}");
}

pub async fn wall_clock_leaps_have_no_effect(case: &Case) {
    let library = LIBRARIES.into_iter().find(|library| Path::new(library).exists());
    let library = library.expect("libfaketime is installed (Debian: faketime)");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("wall");
    let leap = |seconds: i64| {
        // The library may read the file at any time, and a rename is atomic.
        let new = folder.path().join("new");
        std::fs::write(&new, format!("{seconds:+}\n")).and_then(|()| std::fs::rename(new, &file)).expect("writable");
    };
    leap(0);
    let shown = file.display().to_string();
    let variables = [
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", &shown),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let (driver, job) = (case.driver_with("a", json!({}), &environment).await, case.name("job"));
    let held = driver.work(&job, json!({"ttl_ms": 6_000})).await;
    for seconds in [3_600, -3_600] {
        leap(seconds);
        let renewals = driver.link.requests("/renew").len();
        driver.link.done("/renew", renewals + 2).await;
        driver.session.works(&job).await;
    }
    assert!(driver.session.events("state", &job).iter().all(|event| event["state"] != "lost"));
    let state = driver.ask("state", &job, json!({})).await;
    assert_eq!((&state["held"], &state["token"]), (&json!(true), &json!(held)), "{state}");
    driver.session.close().await;
    for shared in ["faketime_shm", "sem.faketime_sem"] {
        // A process that ended by itself has removed them.
        let _ = std::fs::remove_file(format!("/dev/shm/{shared}_{}", driver.session.id()));
    }
}
