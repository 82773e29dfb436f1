//! Tests that inspect their whole process, so each of them runs in a separate process.

use std::process::Command;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// Environment variable that is set in the process of a single test.
const ALONE: &str = "TENURE_TEST_ALONE";

/// Runs a test of this binary in a separate process.
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let this = std::env::current_exe().expect("a test has a binary");
    let ran = Command::new(this).args([test, "--exact", "--nocapture"]).env(ALONE, "1").output();
    let ran = ran.expect("the test binary starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("1 passed"), "no test has the name {test}: {said}");
}

/// Returns a runtime whose idle blocking threads end after 50 ms.
pub fn runtime() -> Runtime {
    let keep_alive = Duration::from_millis(50);
    Builder::new_multi_thread().worker_threads(2).enable_all().thread_keep_alive(keep_alive).build().expect("a runtime")
}
