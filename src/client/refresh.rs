//! When to read the leases of other holders again.
//!
//! Events do not cover all changes: an update of metadata has no event, and a stream misses events while it opens. So
//! the reader always reads the whole committed state. An event only triggers an earlier read.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::{CallError, Coordinator, Events};
use crate::api::{Code, Event};

pub(crate) struct RefreshTrigger {
    coordinator: Arc<dyn Coordinator>,
    prefix: String,
    events: Box<dyn Events>,
    /// The longest time between two reads.
    refresh: Duration,
    next: Instant,
    /// The stream failed. It is used again only after the next read, so that a stream that fails at once causes no busy
    /// loop.
    stream_failed: bool,
}

impl RefreshTrigger {
    /// Triggers at once, at each transition of a name with this prefix, and `refresh` after each read.
    pub fn new(coordinator: Arc<dyn Coordinator>, prefix: String, refresh: Duration) -> RefreshTrigger {
        let events = coordinator.watch(prefix.clone(), None);
        RefreshTrigger { coordinator, prefix, events, refresh, next: Instant::now(), stream_failed: false }
    }

    /// Waits for the next read: for an event for which `matters` returns `true`, or for the refresh time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no trigger.
    pub async fn changed(&mut self, matters: impl Fn(&Event) -> bool) {
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.next) => break,
                event = self.events.next(), if !self.stream_failed => {
                    if self.handle(event, &matters) {
                        break;
                    }
                }
            }
        }
        // One read covers all events that have arrived by now.
        while !self.stream_failed {
            let Some(event) = self.events.next().now_or_never() else { break };
            self.handle(event, &matters);
        }
        // If the caller drops its read, the next call triggers at once.
        self.next = Instant::now();
    }

    /// Whether this item of the stream triggers a read.
    fn handle(&mut self, event: Result<Event, CallError>, matters: impl Fn(&Event) -> bool) -> bool {
        match event {
            Ok(event) => matters(&event),
            Err(error) => {
                self.stream_failed = true;
                let misses_events = is_compacted(&error);
                if misses_events {
                    self.events = self.coordinator.watch(self.prefix.clone(), None);
                }
                misses_events
            }
        }
    }

    /// Records a successful read. The next one follows after the refresh time or an event.
    pub fn refreshed(&mut self) {
        self.next = Instant::now() + self.refresh;
        self.stream_failed = false;
    }

    /// Records a failed read. The next one follows after `pause`, regardless of events.
    pub fn failed(&mut self, pause: Duration) {
        self.next = Instant::now() + pause.min(self.refresh);
        self.stream_failed = true;
    }
}

fn is_compacted(error: &CallError) -> bool {
    matches!(error, CallError::Refused(problem) if problem.code == Code::Compacted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::operations::refused;

    #[test]
    fn only_compacted_means_missing_events() {
        assert!(is_compacted(&refused(Code::Compacted, "compacted")));
        assert!(!is_compacted(&refused(Code::NoLeader, "none")));
        assert!(!is_compacted(&CallError::Unavailable("none".to_owned())));
    }
}
