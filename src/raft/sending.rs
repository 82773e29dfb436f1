//! Snapshots that this node sends to other nodes.
//!
//! During a transfer, this node takes no new snapshot. A new snapshot would replace the one in transfer, and the
//! transfer would restart. openraft would also purge the entries that the receiver needs next. Under sufficient load, a
//! follower would never catch up.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Longest time for which a transfer defers the next snapshot. The log grows during that time. A longer transfer
/// restarts with a newer snapshot.
const MAX_DEFERRAL: Duration = Duration::from_secs(600);

/// The snapshots that this node sends. Clones share the state.
#[derive(Clone, Default)]
pub struct OutgoingSnapshots(Arc<Mutex<TransferState>>);

#[derive(Default)]
struct TransferState {
    active: usize,
    /// The id of the last sent snapshot, and when its first transfer began.
    sent: Option<(u64, Instant)>,
}

/// Counts one transfer as active until it is dropped.
pub struct TransferGuard(OutgoingSnapshots);

impl OutgoingSnapshots {
    /// Registers a transfer of the snapshot with this id.
    pub fn begin(&self, id: u64) -> TransferGuard {
        let mut state = self.0.lock();
        state.active += 1;
        if state.sent.is_none_or(|(sent, _)| sent != id) {
            state.sent = Some((id, Instant::now()));
        }
        TransferGuard(self.clone())
    }

    /// Whether a transfer defers the next snapshot.
    pub fn defers_next(&self) -> bool {
        let state = self.0.lock();
        state.active > 0 && state.sent.is_some_and(|(_, since)| since.elapsed() < MAX_DEFERRAL)
    }
}

impl Drop for TransferGuard {
    fn drop(&mut self) {
        self.0.0.lock().active -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn transfer_defers_the_next_snapshot() {
        let sending = OutgoingSnapshots::default();
        assert!(!sending.defers_next());
        let (first, second) = (sending.begin(7), sending.begin(7));
        drop(first);
        assert!(sending.defers_next(), "the second transfer is active");
        drop(second);
        assert!(!sending.defers_next());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_transfers_defer_no_longer_than_one() {
        let sending = OutgoingSnapshots::default();
        for _ in 0..6 {
            let transfer = sending.begin(7);
            assert!(sending.defers_next());
            tokio::time::sleep(MAX_DEFERRAL / 6).await;
            drop(transfer);
        }
        let _again = sending.begin(7);
        assert!(!sending.defers_next());
        let _newer = sending.begin(8);
        assert!(sending.defers_next());
    }
}
