//! Many runs, as many at once as there are threads. A run stays on its thread and shares nothing with the others, so it
//! comes out the same whichever thread takes it, and whatever runs beside it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use super::plan::Plan;
use super::run::run;
use super::verdict::Verdict;

/// A number from the environment.
pub fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")))
}

/// Runs the plans of `count` seeds from `first` on, and hands over each verdict as it comes, in no order. It stops early
/// when `see` says so.
pub fn runs(first: u64, count: u64, plan: impl Fn(u64) -> Plan + Sync, mut see: impl FnMut(u64, Verdict) -> Go) {
    let next = AtomicU64::new(first);
    let (done, verdicts) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads().min(count) {
            let (next, plan, done) = (&next, &plan, done.clone());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || done.send((seed, run(plan(seed)))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        // Dropped, it ends the threads at their next verdict.
        let verdicts = verdicts;
        for (seed, verdict) in &verdicts {
            if see(seed, verdict) == Go::Enough {
                return;
            }
        }
    });
}

/// Whether more verdicts are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    On,
    Enough,
}

fn threads() -> u64 {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    number("TENURE_SIM_THREADS", cores).max(1)
}
