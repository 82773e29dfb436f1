//! Runs tests with real-time bounds on machines that sometimes stand still.
//!
//! If no thread runs in time, a lease expires correctly, and a test that wanted to keep it shows nothing. So a test
//! with a real-time bound ([`steady`]) runs a second time if the [`Machine`] stood still during its failure. If the
//! machine did not stand still, the first failure is final.
//!
//! A test can also state what it [`needs`] from the machine, for example how much load it can make. If that is missing,
//! the run shows nothing, and the test runs a second time, too.
//!
//! A test without such a bound ([`strict`]) runs once. A failed [`safety`] assertion is final, too: no pause excuses
//! two holders or a falling token.
//!
//! Each such failure is printed to standard error. If `TENURE_REPEATED_TESTS` names a file, the failure is appended to
//! it as one line, and the test passes for now: `scripts/check` runs the tests of that file again, one at a time, after
//! all others have ended. It sets `TENURE_SECOND_ATTEMPT`, so that their failures are final. Without the file, the
//! second run follows at once.
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

/// The variable with the path of the report: one line per repetition, with the test program and the test.
const REPORT: &str = "TENURE_REPEATED_TESTS";
/// The variable of a second run.
const SECOND_ATTEMPT: &str = "TENURE_SECOND_ATTEMPT";

/// When a test runs for the second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    Now,
    /// In another process.
    Later,
}

/// Set when a safety assertion fails in any task of this process.
static SAFETY_FAILED: AtomicBool = AtomicBool::new(false);
/// Set when the machine lacked what a test needs.
static IS_TOO_SLOW: AtomicBool = AtomicBool::new(false);

/// Runs a test case with a real-time bound in a new runtime.
pub fn run<F: Future<Output = ()>>(case: impl Fn() -> F) {
    if std::env::var_os(SECOND_ATTEMPT).is_some() {
        return run_strictly(case);
    }
    repeated_once(
        || block_on(&case),
        || {
            let machine = Machine::watch(&std::env::temp_dir());
            move || match machine.standstills().iter().map(Standstill::lasted).max() {
                Some(longest) => Some(format!("the machine stood still for {longest:.1?}")),
                None => IS_TOO_SLOW.load(Ordering::SeqCst).then(|| "the machine is too slow".to_owned()),
            }
        },
        || SAFETY_FAILED.load(Ordering::SeqCst),
        report,
    );
}

/// Runs a test case without a real-time bound in a new runtime.
pub fn run_strictly<F: Future<Output = ()>>(case: impl Fn() -> F) {
    block_on(&case);
}

/// Repeats a failed `case` once if the machine made the run inconclusive and no safety assertion failed.
///
/// `watch` begins to watch the machine. The function that it returns says why the run since then is inconclusive, if it
/// is. `report` decides when the case runs again.
pub fn repeated_once<S: FnOnce() -> Option<String>>(
    case: impl Fn(),
    watch: impl Fn() -> S,
    safety_failed: impl Fn() -> bool,
    report: impl Fn(&str, &(dyn Any + Send)) -> Repeat,
) {
    let inconclusive = watch();
    let Err(panic) = catch_unwind(AssertUnwindSafe(&case)) else { return };
    let repeat = match inconclusive() {
        Some(why) if !safety_failed() => report(&why, panic.as_ref()),
        _ => resume_unwind(panic),
    };
    if repeat == Repeat::Now {
        case();
    }
}

/// Makes the failure of this test final. [`safety`] calls it.
pub fn fail_safety() {
    SAFETY_FAILED.store(true, Ordering::SeqCst);
}

/// Says that the machine lacks what a test needs. [`needs`] calls it.
pub fn fail_need() {
    IS_TOO_SLOW.store(true, Ordering::SeqCst);
}

fn report(why: &str, panic: &(dyn Any + Send)) -> Repeat {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
    let first_line = text.lines().next().unwrap_or_default();
    let (program, test) = (program(), std::thread::current().name().unwrap_or("main").to_owned());
    let line = format!("{program} {test}: {why}; the first run failed with: {first_line}\n");
    eprint!("--- repeated once: {line}");
    // A test in the main thread does not know its name, so no other process can repeat it.
    let Some(path) = std::env::var_os(REPORT).filter(|_| test != "main") else { return Repeat::Now };
    let file = OpenOptions::new().create(true).append(true).open(path);
    // A single write per report: tests that run at the same time do not mix their lines.
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of TENURE_REPEATED_TESTS is writable");
    Repeat::Later
}

/// The name of this test program without the hash that cargo appends.
fn program() -> String {
    let path = std::env::current_exe().expect("the test program has a path");
    let name = path.file_stem().expect("the path has a file name").to_string_lossy();
    name.rsplit_once('-').map_or(&*name, |(name, _)| name).to_owned()
}

/// A case that panicked does not wait for its blocking calls: they may never return.
fn block_on<F: Future<Output = ()>>(case: &impl Fn() -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("the system has threads");
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| runtime.block_on(case()))) {
        runtime.shutdown_background();
        resume_unwind(panic);
    }
}

/// Declares tests with real-time bounds in a module `timed`.
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

/// Declares tests without real-time bounds in a module `strict`. Their first failure is final.
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

/// An assertion whose failure is final, also in a test that may run twice.
macro_rules! safety {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            $crate::steady::fail_safety();
            panic!($($message)+);
        }
    };
}

/// An assertion about the machine. Without it, the run shows nothing about the product.
macro_rules! needs {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            $crate::steady::fail_need();
            panic!($($message)+);
        }
    };
}

pub(crate) use {needs, safety, steady, strict};
