//! When to read the leases of other holders again.
//!
//! Events do not cover all changes: an update of metadata has no event, and a stream misses events while it opens. So
//! the reader always reads the whole committed state. An event only triggers an earlier read.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::{CallError, Coordinator, Events};
use crate::api::{Code, Event};
use crate::types::InvalidValue;

/// Valid times between two reads.
const REFRESHES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(24 * 60 * 60);

/// Checks the longest time between two reads.
pub(crate) fn check_refresh(refresh: Duration) -> Result<(), InvalidValue> {
    if REFRESHES.contains(&refresh) { Ok(()) } else { Err(InvalidValue::Refresh(refresh)) }
}

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
    use crate::client::error::refused;

    #[test]
    fn refresh_is_10_ms_to_24_hours() {
        let (ms, day) = (Duration::from_millis(1), Duration::from_secs(24 * 60 * 60));
        assert_eq!((check_refresh(10 * ms), check_refresh(day)), (Ok(()), Ok(())));
        for bad in [Duration::ZERO, 9 * ms, day + ms] {
            assert_eq!(check_refresh(bad), Err(InvalidValue::Refresh(bad)));
        }
    }

    #[test]
    fn only_compacted_means_missing_events() {
        assert!(is_compacted(&refused(Code::Compacted, "compacted")));
        assert!(!is_compacted(&refused(Code::NoLeader, "none")));
        assert!(!is_compacted(&CallError::Unavailable("none".to_owned())));
    }
}

#[cfg(all(test, feature = "testing"))]
mod timing {
    use super::*;
    use crate::api::EventId;
    use crate::client::ResponseFuture;
    use crate::client::error::refused;
    use crate::testing::FakeCluster;

    const REFRESH: Duration = Duration::from_secs(60);
    const PAUSE: Duration = Duration::from_secs(5);

    /// A stream that fails each time it is asked.
    struct Failing(Code);

    impl Events for Failing {
        fn next(&mut self) -> ResponseFuture<'_, Event> {
            let error = refused(self.0, "as the test says");
            Box::pin(async move { Err(error) })
        }

        fn position(&self) -> Option<EventId> {
            None
        }
    }

    fn trigger(cluster: &FakeCluster) -> RefreshTrigger {
        RefreshTrigger::new(Arc::new(cluster.clone()), "job".to_owned(), REFRESH)
    }

    /// Seconds until the next look is due. The timer counts whole milliseconds.
    async fn waits(trigger: &mut RefreshTrigger, matters: bool) -> u64 {
        let begun = Instant::now();
        trigger.changed(|_| matters).await;
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn look_is_due_at_once_after_a_pause_or_after_the_refresh() {
        let mut trigger = trigger(&FakeCluster::new());
        assert_eq!(waits(&mut trigger, true).await, 0);
        assert_eq!(waits(&mut trigger, true).await, 0, "the look was given up");
        trigger.refreshed();
        assert_eq!(waits(&mut trigger, true).await, 60);
        trigger.failed(PAUSE);
        assert_eq!(waits(&mut trigger, true).await, 5);
        trigger.failed(2 * REFRESH);
        assert_eq!(waits(&mut trigger, true).await, 60);
    }

    #[tokio::test(start_paused = true)]
    async fn event_makes_one_look_due_if_it_matters() {
        let cluster = FakeCluster::new();
        let mut trigger = trigger(&cluster);
        let change = || {
            cluster.mark_held_elsewhere("job");
            cluster.mark_free("job");
        };
        trigger.refreshed();
        change();
        assert_eq!(waits(&mut trigger, true).await, 0);
        trigger.refreshed();
        assert_eq!(waits(&mut trigger, true).await, 60, "one look is enough for both events");
        trigger.refreshed();
        change();
        assert_eq!(waits(&mut trigger, false).await, 60);
        trigger.failed(PAUSE);
        change();
        assert_eq!(waits(&mut trigger, true).await, 5, "a failed look pauses in spite of events");
        trigger.refreshed();
        assert_eq!(waits(&mut trigger, true).await, 0, "the events of the pause are not forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn look_after_an_event_is_due_again_if_it_is_given_up() {
        let cluster = FakeCluster::new();
        let mut trigger = trigger(&cluster);
        trigger.refreshed();
        cluster.mark_held_elsewhere("job");
        assert_eq!(waits(&mut trigger, true).await, 0);
        assert_eq!(waits(&mut trigger, true).await, 0, "the look was given up");
        trigger.refreshed();
        assert_eq!(waits(&mut trigger, true).await, 60);
    }

    #[tokio::test(start_paused = true)]
    async fn stream_that_fails_is_opened_again_if_events_are_missing() {
        let cluster = FakeCluster::new();
        let mut trigger = trigger(&cluster);
        trigger.events = Box::new(Failing(Code::Compacted));
        trigger.refreshed();
        assert_eq!(waits(&mut trigger, true).await, 0, "events are missing");
        trigger.refreshed();
        cluster.mark_held_elsewhere("job");
        assert_eq!(waits(&mut trigger, true).await, 0, "the new stream has this event");
        trigger.events = Box::new(Failing(Code::NoLeader));
        trigger.refreshed();
        assert_eq!(waits(&mut trigger, true).await, 60, "the refresh is early enough");
        trigger.events = cluster.watch("job".to_owned(), None);
        trigger.refreshed();
        cluster.mark_free("job");
        assert_eq!(waits(&mut trigger, true).await, 0, "the stream works again");
    }
}
