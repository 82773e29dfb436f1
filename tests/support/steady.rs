//! Tests of time, on machines that now and then stand still.
//!
//! A lease that lapses because nothing could run lapses as it should, and the test that wanted it kept has shown
//! nothing. A test that fails is run again if the [`Machine`] stood still meanwhile, and only then: on one that ran,
//! the first failure is final.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

#[path = "machine.rs"]
pub mod machine;

use machine::{Machine, Standstill};

/// How often a test may meet a machine that stands still.
pub const ATTEMPTS: u32 = 5;

/// Runs the case as a test with a runtime of its own.
pub fn run<F: Future<Output = ()>>(case: impl Fn() -> F) {
    attempts(
        || runtime().block_on(case()),
        || {
            let machine = Machine::watch(&std::env::temp_dir());
            move || machine.standstills()
        },
    );
}

/// `watch` begins to watch the machine; what it returns tells when it stood still since.
pub fn attempts<S: FnOnce() -> Vec<Standstill>>(case: impl Fn(), watch: impl Fn() -> S) {
    for attempt in 1.. {
        let stood_still = watch();
        let Err(panic) = catch_unwind(AssertUnwindSafe(&case)) else { return };
        let longest = stood_still().iter().map(Standstill::lasted).max();
        match longest {
            Some(longest) if attempt < ATTEMPTS => tell(attempt, longest),
            _ => resume_unwind(panic),
        }
    }
}

fn tell(attempt: u32, longest: Duration) {
    eprintln!("--- attempt {attempt} does not count: the machine stood still for {longest:.1?}");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("there are threads")
}

/// Makes tests of these functions, in a module `timed`.
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
pub(crate) use steady;
