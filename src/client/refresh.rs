//! When to look at leases that somebody else may hold.
//!
//! Events say that something changed, and not all that changed: metadata has none, and a stream can miss some, as while
//! it is being opened. So what
//! is true is always read, as a whole, from the committed state. The stream only says when to read sooner.

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
    /// The longest time between two looks.
    refresh: Duration,
    next: Instant,
    /// The stream failed: it is asked again when it is time to look anyhow, so that one that fails at once does not spin.
    stream_failed: bool,
}

impl RefreshTrigger {
    /// Time to look at once, at each transition of a name with this prefix, and after each `refresh`.
    pub fn new(coordinator: Arc<dyn Coordinator>, prefix: String, refresh: Duration) -> RefreshTrigger {
        let events = coordinator.watch(prefix.clone(), None);
        RefreshTrigger { coordinator, prefix, events, refresh, next: Instant::now(), stream_failed: false }
    }

    /// Waits until it is time to look, because of an event that matters or because it was long enough. Dropping the
    /// future loses nothing.
    pub async fn changed(&mut self, matters: impl Fn(&Event) -> bool) {
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.next) => break,
                event = self.events.next(), if !self.stream_failed => {
                    if self.hear(event, &matters) {
                        break;
                    }
                }
            }
        }
        // One look is enough for all that has come by now.
        while !self.stream_failed {
            let Some(event) = self.events.next().now_or_never() else { break };
            self.hear(event, &matters);
        }
        // A look that is given up on its way is made good at once by the next call.
        self.next = Instant::now();
    }

    /// Whether it is time to look because of what came from the stream.
    fn hear(&mut self, event: Result<Event, CallError>, matters: impl Fn(&Event) -> bool) -> bool {
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

    /// What was looked for has been seen; it need not be looked for again before the refresh, or an event.
    pub fn looked(&mut self) {
        self.next = Instant::now() + self.refresh;
        self.stream_failed = false;
    }

    /// The look failed: the next one is due after a pause, whatever happens.
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
    fn only_compacted_means_that_events_are_missing() {
        assert!(is_compacted(&refused(Code::Compacted, "forgotten")));
        assert!(!is_compacted(&refused(Code::NoLeader, "none")));
        assert!(!is_compacted(&CallError::Unavailable("none".to_owned())));
    }
}
