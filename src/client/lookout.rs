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

pub(crate) struct Lookout {
    coordinator: Arc<dyn Coordinator>,
    prefix: String,
    events: Box<dyn Events>,
    /// The longest time between two looks.
    refresh: Duration,
    next: Instant,
    /// The stream failed: it is asked again when it is time to look anyhow, so that one that fails at once does not spin.
    is_deaf: bool,
}

impl Lookout {
    /// Time to look at once, at each transition of a name with this prefix, and after each `refresh`.
    pub fn new(coordinator: Arc<dyn Coordinator>, prefix: String, refresh: Duration) -> Lookout {
        let events = coordinator.watch(prefix.clone(), None);
        Lookout { coordinator, prefix, events, refresh, next: Instant::now(), is_deaf: false }
    }

    /// Waits until it is time to look, because of an event that matters or because it was long enough. Dropping the
    /// future loses nothing.
    pub async fn time_to_look(&mut self, matters: impl Fn(&Event) -> bool) {
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.next) => break,
                event = self.events.next(), if !self.is_deaf => {
                    if self.hear(event, &matters) {
                        break;
                    }
                }
            }
        }
        // One look is enough for all that has come by now.
        while !self.is_deaf {
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
                self.is_deaf = true;
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
        self.is_deaf = false;
    }

    /// The look failed: the next one is due after a pause, whatever happens.
    pub fn failed(&mut self, pause: Duration) {
        self.next = Instant::now() + pause.min(self.refresh);
        self.is_deaf = true;
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

#[cfg(all(test, feature = "testing"))]
mod timing {
    use super::*;
    use crate::api::EventId;
    use crate::client::Answer;
    use crate::client::operations::refused;
    use crate::testing::FakeCluster;

    const REFRESH: Duration = Duration::from_secs(60);
    const PAUSE: Duration = Duration::from_secs(5);

    /// A stream that fails each time it is asked.
    struct Failing(Code);

    impl Events for Failing {
        fn next(&mut self) -> Answer<'_, Event> {
            let error = refused(self.0, "as the test says");
            Box::pin(async move { Err(error) })
        }

        fn place(&self) -> Option<EventId> {
            None
        }
    }

    fn lookout(cluster: &FakeCluster) -> Lookout {
        Lookout::new(Arc::new(cluster.clone()), "job".to_owned(), REFRESH)
    }

    /// Seconds until the next look is due. The timer counts whole milliseconds.
    async fn waits(lookout: &mut Lookout, matters: bool) -> u64 {
        let begun = Instant::now();
        lookout.time_to_look(|_| matters).await;
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn look_is_due_at_once_after_a_pause_or_after_the_refresh() {
        let mut lookout = lookout(&FakeCluster::new());
        assert_eq!(waits(&mut lookout, true).await, 0);
        assert_eq!(waits(&mut lookout, true).await, 0, "the look was given up");
        lookout.looked();
        assert_eq!(waits(&mut lookout, true).await, 60);
        lookout.failed(PAUSE);
        assert_eq!(waits(&mut lookout, true).await, 5);
        lookout.failed(2 * REFRESH);
        assert_eq!(waits(&mut lookout, true).await, 60);
    }

    #[tokio::test(start_paused = true)]
    async fn event_makes_one_look_due_if_it_matters() {
        let cluster = FakeCluster::new();
        let mut lookout = lookout(&cluster);
        let change = || {
            cluster.mark_held_elsewhere("job");
            cluster.mark_free("job");
        };
        lookout.looked();
        change();
        assert_eq!(waits(&mut lookout, true).await, 0);
        lookout.looked();
        assert_eq!(waits(&mut lookout, true).await, 60, "one look is enough for both events");
        lookout.looked();
        change();
        assert_eq!(waits(&mut lookout, false).await, 60);
        lookout.failed(PAUSE);
        change();
        assert_eq!(waits(&mut lookout, true).await, 5, "a failed look pauses in spite of events");
        lookout.looked();
        assert_eq!(waits(&mut lookout, true).await, 0, "the events of the pause are not forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn stream_that_fails_is_opened_again_if_events_are_missing() {
        let cluster = FakeCluster::new();
        let mut lookout = lookout(&cluster);
        lookout.events = Box::new(Failing(Code::Compacted));
        lookout.looked();
        assert_eq!(waits(&mut lookout, true).await, 0, "events are missing");
        lookout.looked();
        cluster.mark_held_elsewhere("job");
        assert_eq!(waits(&mut lookout, true).await, 0, "the new stream has this event");
        lookout.events = Box::new(Failing(Code::NoLeader));
        lookout.looked();
        assert_eq!(waits(&mut lookout, true).await, 60, "the refresh is early enough");
    }
}
