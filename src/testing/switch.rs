//! A connection to a cluster that a test can cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::api::{
    Acquire, Event, EventId, Explanation, HandOver, LeaseInfo, Release, Released, RenewBatch, Renewed, UpdateMetadata,
};
use crate::client::{CallError, Coordinator, Events, ResponseFuture, RetryBudget};
use crate::types::{HolderId, LeaseName};

/// The state of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Line {
    /// Requests and answers arrive.
    #[default]
    Up,
    /// Neither requests nor answers arrive.
    Cut,
    /// The cluster executes the requests. Their answers are lost.
    Deaf,
}

/// A connection to a cluster that a test can cut. Clones share the state.
#[derive(Clone)]
pub struct Switch {
    cluster: Arc<dyn Coordinator>,
    line: watch::Sender<Line>,
    renewals: Arc<AtomicUsize>,
}

impl Switch {
    /// Creates a connection to `cluster` that is up.
    pub fn new(cluster: impl Coordinator) -> Switch {
        Switch { cluster: Arc::new(cluster), line: watch::Sender::new(Line::Up), renewals: Arc::default() }
    }

    /// Sets the state of the connection, also for requests in progress.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// Number of renewal requests that were sent.
    pub fn renewals(&self) -> usize {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Sends a request according to the state of the connection.
    ///
    /// If the answer is lost, a read fails as unavailable, and a change has an unknown outcome. In both cases, the
    /// error arrives only after the whole `total`.
    fn send<'a, T: Send + 'a>(
        &'a self,
        request: ResponseFuture<'a, T>,
        total: Duration,
        is_read: bool,
    ) -> ResponseFuture<'a, T> {
        let mut line = self.line.subscribe();
        Box::pin(async move {
            let timeout = tokio::time::sleep(total);
            let answered = async {
                if *line.borrow_and_update() == Line::Cut {
                    return None;
                }
                tokio::select! {
                    biased;
                    _ = line.wait_for(|line| *line == Line::Cut) => None,
                    answer = request => Some(answer),
                }
            };
            let answer = answered.await;
            match answer {
                Some(answer) if *self.line.borrow() == Line::Up => answer,
                _ => {
                    timeout.await;
                    let why = "the test cut the connection".to_owned();
                    Err(if is_read { CallError::Unavailable(why) } else { CallError::Unknown { why, last: None } })
                }
            }
        })
    }
}

impl Coordinator for Switch {
    fn acquire(&self, name: LeaseName, claim: Acquire, budget: RetryBudget) -> ResponseFuture<'_, LeaseInfo> {
        let total = budget.total + Duration::from_millis(claim.wait_ms.unwrap_or(0));
        self.send(self.cluster.acquire(name, claim, budget), total, false)
    }

    fn renew(&self, batch: RenewBatch, budget: RetryBudget) -> ResponseFuture<'_, Renewed> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.send(self.cluster.renew(batch, budget), budget.total, false)
    }

    fn release(&self, name: LeaseName, release: Release, budget: RetryBudget) -> ResponseFuture<'_, Released> {
        self.send(self.cluster.release(name, release, budget), budget.total, false)
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, budget: RetryBudget) -> ResponseFuture<'_, LeaseInfo> {
        self.send(self.cluster.hand_over(name, hand_over, budget), budget.total, false)
    }

    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        budget: RetryBudget,
    ) -> ResponseFuture<'_, LeaseInfo> {
        self.send(self.cluster.update_metadata(name, update, budget), budget.total, false)
    }

    fn explain(&self, name: LeaseName, holder: HolderId, budget: RetryBudget) -> ResponseFuture<'_, Explanation> {
        self.send(self.cluster.explain(name, holder, budget), budget.total, true)
    }

    fn held(&self, prefix: String, budget: RetryBudget) -> ResponseFuture<'_, Vec<LeaseInfo>> {
        self.send(self.cluster.held(prefix, budget), budget.total, true)
    }

    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events> {
        Box::new(SwitchedEvents { events: self.cluster.watch(prefix, after), line: self.line.subscribe() })
    }
}

struct SwitchedEvents {
    events: Box<dyn Events>,
    line: watch::Receiver<Line>,
}

impl Events for SwitchedEvents {
    fn next(&mut self) -> ResponseFuture<'_, Event> {
        Box::pin(async {
            loop {
                // A wait fails only if the switch is gone. Then the state stays unchanged.
                if self.line.wait_for(|line| *line == Line::Up).await.is_err() {
                    std::future::pending::<()>().await;
                }
                tokio::select! {
                    biased;
                    Ok(_) = self.line.wait_for(|line| *line != Line::Up) => {}
                    event = self.events.next() => return event,
                }
            }
        })
    }

    fn position(&self) -> Option<EventId> {
        self.events.position()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::client::{ManagerOptions, Wait};
    use crate::testing::FakeCluster;

    #[tokio::test(start_paused = true)]
    async fn read_without_an_answer_is_unavailable() {
        const TOTAL: Duration = Duration::from_secs(5);
        for line in [Line::Cut, Line::Deaf] {
            let cluster = FakeCluster::new();
            let switch = Switch::new(cluster.clone());
            let manager = cluster.manager_through(switch.clone(), ManagerOptions::new().operation_timeout(TOTAL));
            let lease = manager.lease("job").expect("a name");
            lease.acquire(Wait::No).await.expect("it is free");
            switch.set(line);
            let begun = Instant::now();
            let checked = lease.check().await;
            assert!(matches!(checked, Err(CallError::Unavailable(_))), "{line:?}: {checked:?}");
            assert!(begun.elapsed() >= TOTAL, "{:?}", begun.elapsed());
            let listed = switch.held(String::new(), RetryBudget::within(TOTAL)).await;
            assert!(matches!(listed, Err(CallError::Unavailable(_))), "{line:?}: {listed:?}");
            assert!(begun.elapsed() >= TOTAL * 2, "{:?}", begun.elapsed());
            assert!(lease.is_held(), "a failed check changes nothing, {line:?}");
        }
    }

    /// In real time: with a paused clock, a watch that polls without an end would stop the timeout.
    #[tokio::test]
    async fn events_of_a_cut_line_stay_away_after_the_end_of_the_switch() {
        for line in [Line::Cut, Line::Deaf] {
            let cluster = FakeCluster::new();
            let switch = Switch::new(cluster.clone());
            let mut watch = switch.watch(String::new(), None);
            switch.set(line);
            drop(switch);
            let lease = cluster.manager().lease("job").expect("a name");
            lease.acquire(Wait::No).await.expect("it is free");
            let event = tokio::time::timeout(Duration::from_millis(50), watch.next()).await;
            assert!(event.is_err(), "an event arrived, {line:?}: {event:?}");
        }
    }

    /// The watch waits for an event when the line changes.
    #[tokio::test(start_paused = true)]
    async fn events_wait_until_the_line_is_up() {
        const SECOND: Duration = Duration::from_secs(1);
        for line in [Line::Cut, Line::Deaf] {
            let cluster = FakeCluster::new();
            let switch = Switch::new(cluster.clone());
            let mut watch = switch.watch(String::new(), None);
            let watching = tokio::spawn(async move { watch.next().await });
            tokio::time::sleep(SECOND).await;
            switch.set(line);
            let lease = cluster.manager().lease("job").expect("a name");
            let token = lease.acquire(Wait::No).await.expect("it is free");
            tokio::time::sleep(SECOND).await;
            assert!(!watching.is_finished(), "an event arrived, {line:?}");
            switch.set(Line::Up);
            let event = tokio::time::timeout(SECOND, watching).await.expect("the line is up").expect("no panic");
            assert_eq!(event.map(|event| event.token), Ok(token), "{line:?}");
        }
    }
}
