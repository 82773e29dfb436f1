//! Tests that look at their whole process, and so need one for themselves.

use std::process::Command;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// Tells the process that it is the one that was started for a test.
const ALONE: &str = "TENURE_TEST_ALONE";

/// Runs a test of this file's binary in a process of its own.
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let this = std::env::current_exe().expect("a test has a binary");
    let ran = Command::new(this).args([test, "--exact", "--nocapture"]).env(ALONE, "1").output();
    let ran = ran.expect("it runs again");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("1 passed"), "no test is called {test}: {said}");
}

/// A runtime whose threads for blocking work go as soon as they have none.
pub fn runtime() -> Runtime {
    let keep_alive = Duration::from_millis(50);
    Builder::new_multi_thread().worker_threads(2).enable_all().thread_keep_alive(keep_alive).build().expect("a runtime")
}
