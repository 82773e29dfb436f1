//! Waits of callers in this process. They end with the node, so a shutdown removes them from their queues.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::lease::WaiterId;

/// Counts the waiting requests of this process by waiter.
#[derive(Default)]
pub(crate) struct LocalWaits(Mutex<BTreeMap<WaiterId, usize>>);

/// Registers one waiting request until it is dropped.
pub(crate) struct LocalWaitGuard {
    waits: Arc<LocalWaits>,
    id: WaiterId,
}

impl LocalWaits {
    pub fn register(self: &Arc<Self>, id: WaiterId) -> LocalWaitGuard {
        *self.0.lock().entry(id.clone()).or_default() += 1;
        LocalWaitGuard { waits: self.clone(), id }
    }

    pub fn ids(&self) -> Vec<WaiterId> {
        self.0.lock().keys().cloned().collect()
    }
}

impl Drop for LocalWaitGuard {
    fn drop(&mut self) {
        let mut waits = self.waits.0.lock();
        let Some(count) = waits.get_mut(&self.id) else { return };
        *count -= 1;
        if *count == 0 {
            waits.remove(&self.id);
        }
    }
}
