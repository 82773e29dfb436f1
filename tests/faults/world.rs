//! What the tasks of a run share.

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::book::Book;
use super::log::Log;
use super::names::Names;
use super::verdict::Broken;

pub struct World {
    pub nodes: u64,
    pub book: Mutex<Book>,
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
            book: Mutex::default(),
            log: Mutex::new(Log::new(nodes as usize)),
            names: Mutex::new(Names::new(1)),
            broken: Mutex::default(),
            stop: CancellationToken::new(),
        }
    }

    pub fn break_promise(&self, broken: Broken) {
        eprintln!("VIOLATION: {broken}");
        self.broken.lock().push(broken);
    }

    pub fn broken(&self) -> Vec<Broken> {
        self.broken.lock().clone()
    }
}
