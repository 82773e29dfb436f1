//! Slows processes down: they run for a short part of the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::process::Process;

/// A slow process is stopped for the first time, and then runs for the second time, in turn.
const STOPPED: Duration = Duration::from_millis(90);
const RUNNING: Duration = Duration::from_millis(10);

/// Slows processes down until it is dropped.
pub struct Slow {
    over: Arc<AtomicBool>,
    turns: Option<JoinHandle<()>>,
}

impl Slow {
    /// Begins to slow the processes down. They must outlive the returned value.
    pub fn begin<'a>(processes: impl Iterator<Item = &'a Process>) -> Slow {
        let pids: Vec<Pid> = processes.map(|process| Pid::from_raw(process.id() as i32).expect("a process")).collect();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let turns = std::thread::spawn(move || {
            // A process that has exited ignores the signals.
            let signal_all = |signal| pids.iter().for_each(|pid| kill_process(*pid, signal).unwrap_or_default());
            while !is_over.load(Ordering::Relaxed) {
                signal_all(Signal::STOP);
                std::thread::sleep(STOPPED);
                signal_all(Signal::CONT);
                std::thread::sleep(RUNNING);
            }
        });
        Slow { over, turns: Some(turns) }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.turns.take().map(JoinHandle::join);
        assert!(
            ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(),
            "the thread of the slowdown panicked"
        );
    }
}
