//! The state that the tasks of a run share.

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::judge::Broken;
use super::log::Log;
use super::names::Names;
use super::recorder::Recorder;

/// The largest number of violations on standard error. The file of the table has all of them.
const MAX_SHOWN: usize = 20;

pub struct World {
    pub nodes: u64,
    pub recorder: Mutex<Recorder>,
    pub log: Mutex<Log>,
    pub names: Mutex<Names>,
    broken: Mutex<Vec<Broken>>,
    /// Ends all tasks.
    pub stop: CancellationToken,
}

impl World {
    pub fn new(nodes: u64) -> World {
        World {
            nodes,
            recorder: Mutex::default(),
            log: Mutex::new(Log::new(nodes as usize)),
            names: Mutex::new(Names::new(1)),
            broken: Mutex::default(),
            stop: CancellationToken::new(),
        }
    }

    pub fn break_promise(&self, broken: Broken) {
        let mut all = self.broken.lock();
        if all.len() < MAX_SHOWN {
            eprintln!("VIOLATION: {broken}");
        }
        all.push(broken);
    }

    pub fn broken(&self) -> Vec<Broken> {
        self.broken.lock().clone()
    }
}
