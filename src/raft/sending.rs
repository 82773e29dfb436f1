//! Snapshots on their way to other nodes.
//!
//! While one is, this node takes no new one. A new one would take the place of the one that is being sent, and the
//! transfer would begin again. It would also purge the entries that the receiver needs next. Under enough load a
//! follower would then never catch up.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Longest time for which sending a snapshot keeps this node from taking a new one. The log grows meanwhile. A transfer
/// that takes longer begins again with a newer snapshot.
const MAX_HOLD: Duration = Duration::from_secs(600);

/// The snapshots that this node sends. Clones are the same.
#[derive(Clone, Default)]
pub struct Sending(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    under_way: usize,
    /// The snapshot that was sent last, and since when.
    sent: Option<(u64, Instant)>,
}

/// One transfer, until it is dropped.
pub struct Transfer(Sending);

impl Sending {
    /// Begins to send the snapshot with this id.
    pub fn begin(&self, id: u64) -> Transfer {
        let mut state = self.0.lock();
        state.under_way += 1;
        if state.sent.is_none_or(|(sent, _)| sent != id) {
            state.sent = Some((id, Instant::now()));
        }
        Transfer(self.clone())
    }

    /// Whether a new snapshot has to wait.
    pub fn holds(&self) -> bool {
        let state = self.0.lock();
        state.under_way > 0 && state.sent.is_some_and(|(_, since)| since.elapsed() < MAX_HOLD)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.0.0.lock().under_way -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_is_held_while_it_is_sent() {
        let sending = Sending::default();
        assert!(!sending.holds());
        let (first, second) = (sending.begin(7), sending.begin(7));
        drop(first);
        assert!(sending.holds(), "to another node");
        drop(second);
        assert!(!sending.holds());
    }

    #[tokio::test(start_paused = true)]
    async fn transfers_that_fail_hold_it_no_longer_than_one() {
        let sending = Sending::default();
        for _ in 0..6 {
            let transfer = sending.begin(7);
            assert!(sending.holds());
            tokio::time::sleep(MAX_HOLD / 6).await;
            drop(transfer);
        }
        let _again = sending.begin(7);
        assert!(!sending.holds());
        let _newer = sending.begin(8);
        assert!(sending.holds());
    }
}
