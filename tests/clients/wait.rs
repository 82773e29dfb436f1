//! Waits for conditions.

use std::time::{Duration, Instant};

/// The limit for events that come soon unless there is a fault, also on a busy machine.
pub const SOON: Duration = Duration::from_secs(20);
pub const POLL: Duration = Duration::from_millis(10);

/// Polls until `condition` returns a value. Panics after a long time.
pub async fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(began.elapsed() < SOON, "no {what} within {SOON:?}");
        tokio::time::sleep(POLL).await;
    }
}
