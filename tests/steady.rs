//! A failed test of a real-time bound runs again only if the machine stood still. A failed safety assertion is final.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

#[path = "support/steady.rs"]
mod steady;

use steady::machine::{Machine, Standstill};
use steady::{Repeat, needs, safety};

const STOOD_STILL: Standstill = Standstill { from: Duration::from_secs(7), until: Duration::from_secs(8) };
const REPORT: &str = "TENURE_REPEATED_TESTS";
const SECOND_ATTEMPT: &str = "TENURE_SECOND_ATTEMPT";
/// A test sets this variable in the child process in which it runs again.
const CASE: &str = "TENURE_TEST_STEADY_CASE";

/// Runs a case whose first `failures` runs fail. Returns the number of runs, and whether the last one passed.
fn runs(failures: u32, stood_still: &[Standstill], safety_failed: bool) -> (u32, bool) {
    repeated(Repeat::Now, failures, stood_still, safety_failed)
}

fn repeated(repeat: Repeat, failures: u32, stood_still: &[Standstill], safety_failed: bool) -> (u32, bool) {
    let runs = Cell::new(0);
    let case = || {
        runs.set(runs.get() + 1);
        assert!(runs.get() > failures, "planted by a test");
    };
    let inconclusive = || (!stood_still.is_empty()).then(|| "planted by a test".to_owned());
    let repeated = || steady::repeated_once(case, || inconclusive, || safety_failed, |_, _| repeat);
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
fn failure_that_another_process_repeats_passes_for_now() {
    assert_eq!(repeated(Repeat::Later, u32::MAX, &[STOOD_STILL], false), (1, true));
    assert_eq!(repeated(Repeat::Later, 1, &[], false), (1, false));
    assert_eq!(repeated(Repeat::Later, 1, &[STOOD_STILL], true), (1, false));
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

/// Runs in a child process, because the flag of a missing need stays set.
#[test]
fn run_on_a_machine_that_is_too_slow_is_repeated_once() {
    const TEST: &str = "run_on_a_machine_that_is_too_slow_is_repeated_once";
    if std::env::var_os(CASE).is_some() {
        let runs = Cell::new(0);
        steady::run(async || {
            runs.set(runs.get() + 1);
            needs!(runs.get() == 2, "planted by a test");
        });
        assert_eq!(runs.get(), 2);
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("the test binary has a path"));
    command.args([TEST, "--exact", "--nocapture"]).env_remove(REPORT).env_remove(SECOND_ATTEMPT).env(CASE, "1");
    let ended = command.output().expect("the child process starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    let line = format!("steady {TEST}: the machine is too slow; the first run failed with: planted by a test");
    assert!(ended.status.success() && said.contains(&line), "{said}");
}

const REPEATED: &str = "failure_is_repeated_as_the_environment_asks";

/// Runs in child processes, because it depends on the environment.
#[test]
fn failure_is_repeated_as_the_environment_asks() {
    if std::env::var_os(CASE).is_some() {
        let runs = Cell::new(0);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            steady::run(async || {
                runs.set(runs.get() + 1);
                stand_still();
                assert_eq!(runs.get(), 2, "planted by a test");
            });
        }));
        println!("runs: {}, failed: {}", runs.get(), failed.is_err());
        return;
    }
    let output = |set: &[(&str, &Path)]| {
        let mut command = Command::new(std::env::current_exe().expect("the test binary has a path"));
        command.args([REPEATED, "--exact", "--nocapture"]).env_remove(REPORT).env_remove(SECOND_ATTEMPT).env(CASE, "1");
        let output = command.envs(set.iter().copied()).output().expect("the child process starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let report = tempfile::NamedTempFile::new().expect("a temporary file");
    let read = || std::fs::read_to_string(report.path()).expect("the report is readable");

    let at_once = output(&[]);
    assert!(at_once.contains("runs: 2, failed: false"), "{at_once}");

    let later = output(&[(REPORT, report.path())]);
    assert!(later.contains("runs: 1, failed: false"), "{later}");
    assert_eq!(read().lines().count(), 1, "{}", read());
    assert!(read().starts_with(&format!("steady {REPEATED}: the machine stood still for ")), "{}", read());
    assert!(read().contains("planted by a test"), "{}", read());

    let second = output(&[(REPORT, report.path()), (SECOND_ATTEMPT, Path::new("1"))]);
    assert!(second.contains("runs: 1, failed: true"), "{second}");
    assert_eq!(read().lines().count(), 1, "{}", read());
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
