//! That tests of time are run again on a machine that stood still, and on no other.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

#[path = "support/steady.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "the tests of time use the rest of it")]
mod steady;

use steady::machine::{Machine, Standstill};

const STOOD_STILL: Standstill = Standstill { from: Duration::from_secs(7), until: Duration::from_secs(8) };

/// How often a case ran of which so many runs fail, and whether it passed in the end.
fn runs(failures: u32, stood_still: &[Standstill]) -> (u32, bool) {
    let runs = Cell::new(0);
    let case = || {
        runs.set(runs.get() + 1);
        assert!(runs.get() > failures, "planted by a test");
    };
    let passed = catch_unwind(AssertUnwindSafe(|| steady::attempts(case, || || stood_still.to_vec()))).is_ok();
    (runs.get(), passed)
}

#[test]
fn on_a_machine_that_runs_the_first_failure_is_final() {
    assert_eq!(runs(0, &[]), (1, true));
    assert_eq!(runs(1, &[]), (1, false));
}

#[test]
fn on_one_that_stands_still_a_failure_does_not_count_for_some_time() {
    assert_eq!(runs(0, &[STOOD_STILL]), (1, true));
    assert_eq!(runs(2, &[STOOD_STILL]), (3, true));
    assert_eq!(runs(u32::MAX, &[STOOD_STILL]), (steady::ATTEMPTS, false));
}

#[test]
fn a_standstill_is_noticed() {
    let machine = Machine::watch(&std::env::temp_dir());
    // To this process, being stopped is the same.
    let stop = "kill -STOP $PPID && sleep 0.4; kill -CONT $PPID";
    assert!(Command::new("sh").args(["-c", stop]).status().expect("there is a shell").success());
    std::thread::sleep(Duration::from_millis(20));
    let longest = machine.standstills().iter().map(Standstill::lasted).max();
    assert!(longest.is_some_and(|longest| longest > Duration::from_millis(300)), "{longest:?}");
}
