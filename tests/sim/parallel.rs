//! Many runs, as many at once as there are threads. A run stays on its thread and shares nothing with the others, so it
//! comes out the same whichever thread takes it, and whatever runs beside it.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::plan::Plan;
use super::run::run;
use super::verdict::Verdict;
use super::world::lock;

/// A run that takes longer than this does not end: a tenth of a second of a core is usual.
const LONGEST_RUN: Duration = Duration::from_secs(180);

/// A number from the environment.
pub fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")))
}

/// Runs the plans of `count` seeds from `first` on, and hands over each verdict as it comes, in no order.
pub fn runs(first: u64, count: u64, plan: impl Fn(u64) -> Plan + Sync, mut see: impl FnMut(u64, Verdict)) {
    let (next, running) = (AtomicU64::new(first), Mutex::new(BTreeSet::new()));
    let (done, verdicts) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads().min(count) {
            let (next, running, plan, done) = (&next, &running, &plan, done.clone());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    lock(running).insert(seed);
                    let verdict = run(plan(seed));
                    lock(running).remove(&seed);
                    if done.send((seed, verdict)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        loop {
            match verdicts.recv_timeout(LONGEST_RUN) {
                Ok((seed, verdict)) => see(seed, verdict),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // Its thread cannot be ended, so everything is.
                    eprintln!("no seed of {:?} ends within {LONGEST_RUN:?}: time stands still in them", lock(&running));
                    std::process::exit(1);
                }
            }
        }
        assert!(lock(&running).is_empty(), "seeds whose runs panicked: {:?}", lock(&running));
    });
}

fn threads() -> u64 {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    number("TENURE_SIM_THREADS", cores).max(1)
}
