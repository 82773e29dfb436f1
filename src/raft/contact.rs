//! Time since the last accepted message from a leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;

pub struct LeaderContact {
    clock: Arc<dyn Clock>,
    /// Time of the last message in milliseconds of `clock`, plus one. 0 if there was none.
    last: AtomicU64,
}

impl LeaderContact {
    pub fn new(clock: Arc<dyn Clock>) -> LeaderContact {
        LeaderContact { clock, last: AtomicU64::new(0) }
    }

    pub fn heard(&self) {
        self.last.store(self.now_ms() + 1, Ordering::Relaxed);
    }

    /// `None` if no leader was heard since the start of the node.
    pub fn elapsed(&self) -> Option<Duration> {
        let last = self.last.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.now_ms().saturating_sub(last)))
    }

    fn now_ms(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64
    }
}
