//! A failed test of a real-time bound runs again only if the machine stood still. A failed safety assertion is final.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

#[path = "support/steady.rs"]
mod steady;

use steady::machine::{Machine, Standstill};
use steady::safety;

const STOOD_STILL: Standstill = Standstill { from: Duration::from_secs(7), until: Duration::from_secs(8) };
const REPORT: &str = "TENURE_REPEATED_TESTS";
/// A test sets this variable in the child process in which it runs again.
const CASE: &str = "TENURE_TEST_STEADY_CASE";

/// Runs a case whose first `failures` runs fail. Returns the number of runs, and whether the last one passed.
fn runs(failures: u32, stood_still: &[Standstill], safety_failed: bool) -> (u32, bool) {
    let runs = Cell::new(0);
    let case = || {
        runs.set(runs.get() + 1);
        assert!(runs.get() > failures, "planted by a test");
    };
    let repeated = || steady::repeated_once(case, || || stood_still.to_vec(), || safety_failed, |_, _| {});
    let passed = catch_unwind(AssertUnwindSafe(repeated)).is_ok();
    (runs.get(), passed)
}

#[test]
fn first_failure_is_final_on_a_machine_that_runs() {
    assert_eq!(runs(0, &[], false), (1, true));
    assert_eq!(runs(1, &[], false), (1, false));
}

#[test]
fn failure_during_a_standstill_is_repeated_once() {
    assert_eq!(runs(0, &[STOOD_STILL], false), (1, true));
    assert_eq!(runs(1, &[STOOD_STILL], false), (2, true));
    assert_eq!(runs(u32::MAX, &[STOOD_STILL], false), (2, false));
}

#[test]
fn failed_safety_assertion_is_final_during_a_standstill() {
    assert_eq!(runs(1, &[STOOD_STILL], true), (1, false));
}

/// Runs in a child process, because the flag of a failed safety assertion stays set.
#[test]
fn safety_assertion_in_a_task_makes_the_failure_final() {
    if std::env::var_os(CASE).is_some() {
        let runs = Cell::new(0);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            steady::run(async || {
                runs.set(runs.get() + 1);
                stand_still();
                let task = tokio::spawn(async { safety!(1 + 1 == 3, "planted by a test") });
                task.await.expect("the task does not panic");
            });
        }));
        assert!(failed.is_err());
        assert_eq!(runs.get(), 1);
        return;
    }
    let program = std::env::current_exe().expect("the test binary has a path");
    let mut command = Command::new(program);
    command.args(["safety_assertion_in_a_task_makes_the_failure_final", "--exact"]).env(CASE, "1");
    let ended = command.output().expect("the child process starts");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}

/// Runs in a child process, because it changes the environment.
#[test]
fn repetition_is_reported_with_the_first_failure() {
    if std::env::var_os(CASE).is_some() {
        let runs = Cell::new(0);
        steady::run(async || {
            runs.set(runs.get() + 1);
            stand_still();
            assert_eq!(runs.get(), 2, "planted by a test");
        });
        return;
    }
    let program = std::env::current_exe().expect("the test binary has a path");
    let report = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = Command::new(program);
    command
        .args(["repetition_is_reported_with_the_first_failure", "--exact"])
        .env(CASE, "1")
        .env(REPORT, report.path());
    assert!(command.status().expect("the child process starts").success());
    let report = std::fs::read_to_string(report.path()).expect("the report is readable");
    assert_eq!(report.lines().count(), 1, "{report}");
    assert!(
        report.starts_with("repetition_is_reported_with_the_first_failure: the machine stood still for "),
        "{report}"
    );
    assert!(report.contains("planted by a test"), "{report}");
}

#[test]
fn failed_case_does_not_wait_for_its_blocking_calls() {
    const BLOCKED: Duration = Duration::from_secs(20);
    let began = Instant::now();
    let (end, ended) = mpsc::channel::<()>();
    let ended = Mutex::new(Some(ended));
    let failed = catch_unwind(|| {
        steady::run_strictly(|| async {
            let ended = ended.lock().expect("the lock is not poisoned").take().expect("the case runs once");
            let (started, has_started) = tokio::sync::oneshot::channel();
            tokio::task::spawn_blocking(move || {
                started.send(()).expect("the case waits for the signal");
                ended.recv_timeout(BLOCKED)
            });
            has_started.await.expect("the blocking call starts");
            panic!("planted by a test");
        })
    });
    assert!(failed.is_err());
    assert!(began.elapsed() < BLOCKED, "{:?}", began.elapsed());
    drop(end);
}

#[test]
fn standstill_is_detected() {
    let machine = Machine::watch(&std::env::temp_dir());
    stand_still();
    let longest = machine.standstills().iter().map(Standstill::lasted).max();
    assert!(longest.is_some_and(|longest| longest > Duration::from_millis(300)), "{longest:?}");
}

/// Stops this process for 0.4 s. To its threads, the machine stands still.
fn stand_still() {
    let stop = format!("kill -STOP {0} && sleep 0.4; kill -CONT {0}", std::process::id());
    assert!(Command::new("sh").args(["-c", &stop]).status().expect("the shell starts").success());
}
