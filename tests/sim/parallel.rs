//! Runs of many seeds, one per thread at a time.
//!
//! A run stays on its thread and shares no state with other runs. Its result does not depend on the thread.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::verdict::Verdict;
use super::world::lock;

/// Bound for one run, in real time. A run usually takes 0.1 s.
const RUN_TIMEOUT: Duration = Duration::from_secs(180);

/// Reads a number from an environment variable.
///
/// # Panics
///
/// The value is not an unsigned integer.
pub fn env_number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| {
        value.parse().unwrap_or_else(|_| panic!("{variable}={value:?}: expected an unsigned integer"))
    })
}

/// Runs `count` seeds from `first` on and calls `on_verdict` for each, in order of completion.
///
/// Ends the process if a run exceeds [`RUN_TIMEOUT`].
///
/// # Panics
///
/// A run panicked.
pub fn run_seeds(
    first: u64,
    count: u64,
    run: impl Fn(u64) -> Verdict + Sync,
    mut on_verdict: impl FnMut(u64, Verdict),
) {
    let (next, running) = (AtomicU64::new(first), Mutex::new(BTreeSet::new()));
    let (done, verdicts) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads().min(count) {
            let (next, running, run, done) = (&next, &running, &run, done.clone());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    lock(running).insert(seed);
                    let verdict = run(seed);
                    lock(running).remove(&seed);
                    if done.send((seed, verdict)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        loop {
            match verdicts.recv_timeout(RUN_TIMEOUT) {
                Ok((seed, verdict)) => on_verdict(seed, verdict),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // A thread cannot be ended from outside, so the process ends.
                    eprintln!(
                        "seeds {:?} did not end within {RUN_TIMEOUT:?}: their virtual time no longer advances",
                        lock(&running)
                    );
                    std::process::exit(1);
                }
            }
        }
        assert!(lock(&running).is_empty(), "the runs of these seeds panicked: {:?}", lock(&running));
    });
}

fn threads() -> u64 {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    env_number("TENURE_SIM_THREADS", cores).max(1)
}
