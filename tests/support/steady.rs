//! Tests on machines that sometimes stand still.
//!
//! A lease that expires because no thread could run expires correctly, and the test that wanted to keep it has shown
//! nothing. So a test of a real-time bound ([`steady`]) runs a second time if the [`Machine`] stood still during its
//! failure. On a machine that ran, the first failure is final.
//!
//! A test without such a bound ([`strict`]) runs once. So does every test in which a [`safety`] assertion failed: no pause
//! excuses two holders or a token that falls.
//!
//! Each repetition is written to standard error, and as one line to the file that `TENURE_REPEATED_TESTS` names.
//! `scripts/check` prints that file.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test program uses a part of it")]

use std::any::Any;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[path = "machine.rs"]
pub mod machine;

use machine::{Machine, Standstill};

/// The file that each repetition adds a line to.
const REPORT: &str = "TENURE_REPEATED_TESTS";

/// A safety assertion failed in this process, in whichever task.
static SAFETY_FAILED: AtomicBool = AtomicBool::new(false);

/// Runs a case with a real-time bound as a test with its own runtime.
pub fn run<F: Future<Output = ()>>(case: impl Fn() -> F) {
    repeated_once(
        || block_on(&case),
        || {
            let machine = Machine::watch(&std::env::temp_dir());
            move || machine.standstills()
        },
        || SAFETY_FAILED.load(Ordering::SeqCst),
        report,
    );
}

/// Runs a case without a real-time bound as a test with its own runtime.
pub fn run_strictly<F: Future<Output = ()>>(case: impl Fn() -> F) {
    block_on(&case);
}

/// `watch` begins to watch the machine; what it returns lists the standstills since then.
pub fn repeated_once<S: FnOnce() -> Vec<Standstill>>(
    case: impl Fn(),
    watch: impl Fn() -> S,
    safety_failed: impl Fn() -> bool,
    report: impl Fn(Duration, &(dyn Any + Send)),
) {
    let stood_still = watch();
    let Err(panic) = catch_unwind(AssertUnwindSafe(&case)) else { return };
    match stood_still().iter().map(Standstill::lasted).max() {
        Some(longest) if !safety_failed() => report(longest, panic.as_ref()),
        _ => resume_unwind(panic),
    }
    case();
}

/// Marks the failure as one that no standstill excuses. [`safety`] calls it.
pub fn fail_safety() {
    SAFETY_FAILED.store(true, Ordering::SeqCst);
}

fn report(longest: Duration, panic: &(dyn Any + Send)) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text");
    let first_line = text.lines().next().unwrap_or_default();
    let line = format!("{test}: the machine stood still for {longest:.1?}; the first run failed with: {first_line}\n");
    eprint!("--- repeated once: {line}");
    if let Some(path) = std::env::var_os(REPORT) {
        let file = OpenOptions::new().create(true).append(true).open(path);
        // One write, so that lines of tests that run at the same time do not mix.
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the report of repeated tests can be written");
    }
}

/// A case that panicked does not wait for the blocking calls that it left behind: they may never return.
fn block_on<F: Future<Output = ()>>(case: &impl Fn() -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("there are threads");
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| runtime.block_on(case()))) {
        runtime.shutdown_background();
        resume_unwind(panic);
    }
}

/// Makes tests of these functions, in a module `timed`. Each has a real-time bound.
macro_rules! steady {
    ($($case:ident),* $(,)?) => {
        mod timed {
            $(#[test]
            fn $case() {
                $crate::steady::run(super::$case);
            })*
        }
    };
}

/// Makes tests of these functions, in a module `strict`. Their first failure is final.
macro_rules! strict {
    ($($case:ident),* $(,)?) => {
        mod strict {
            $(#[test]
            fn $case() {
                $crate::steady::run_strictly(super::$case);
            })*
        }
    };
}

/// An assertion that is final, also in a test that may run twice.
macro_rules! safety {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            $crate::steady::fail_safety();
            panic!($($message)+);
        }
    };
}

pub(crate) use {safety, steady, strict};
