//! A way to a cluster that a test can cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::api::{
    Acquire, Event, EventId, Explanation, HandOver, Lease, Release, Released, RenewBatch, Renewed, UpdateMetadata,
};
use crate::client::{Answer, CallError, Coordinator, Events, RetryBudget};
use crate::types::{HolderId, LeaseName};

/// What becomes of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Line {
    /// They arrive, and so do their answers.
    #[default]
    Up,
    /// Nothing arrives, in either direction.
    Cut,
    /// They arrive and are carried out; their answers are lost.
    Deaf,
}

/// A way to a cluster with a switch in it. Clones are the same switch.
#[derive(Clone)]
pub struct Switch {
    way: Arc<dyn Coordinator>,
    line: watch::Sender<Line>,
    renewals: Arc<AtomicUsize>,
}

impl Switch {
    pub fn new(way: impl Coordinator) -> Switch {
        Switch { way: Arc::new(way), line: watch::Sender::new(Line::Up), renewals: Arc::default() }
    }

    /// From now on, also for requests that are under way.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// How many requests to renew were sent.
    pub fn renewals(&self) -> usize {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Carries a request out as the line allows. A read whose answer is lost was not answered; of anything else the
    /// outcome is unknown. Either way that is known only when the time is over.
    fn pass<'a, T: Send + 'a>(&'a self, request: Answer<'a, T>, total: Duration, is_read: bool) -> Answer<'a, T> {
        let mut line = self.line.subscribe();
        Box::pin(async move {
            let silence = tokio::time::sleep(total);
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
                    silence.await;
                    let why = "the line is cut".to_owned();
                    Err(if is_read { CallError::Unavailable(why) } else { CallError::Unknown { why, last: None } })
                }
            }
        })
    }
}

impl Coordinator for Switch {
    fn acquire(&self, name: LeaseName, claim: Acquire, budget: RetryBudget) -> Answer<'_, Lease> {
        let total = budget.total + Duration::from_millis(claim.wait_ms.unwrap_or(0));
        self.pass(self.way.acquire(name, claim, budget), total, false)
    }

    fn renew(&self, batch: RenewBatch, budget: RetryBudget) -> Answer<'_, Renewed> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.pass(self.way.renew(batch, budget), budget.total, false)
    }

    fn release(&self, name: LeaseName, release: Release, budget: RetryBudget) -> Answer<'_, Released> {
        self.pass(self.way.release(name, release, budget), budget.total, false)
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, budget: RetryBudget) -> Answer<'_, Lease> {
        self.pass(self.way.hand_over(name, hand_over, budget), budget.total, false)
    }

    fn update_metadata(&self, name: LeaseName, update: UpdateMetadata, budget: RetryBudget) -> Answer<'_, Lease> {
        self.pass(self.way.update_metadata(name, update, budget), budget.total, false)
    }

    fn explain(&self, name: LeaseName, holder: HolderId, budget: RetryBudget) -> Answer<'_, Explanation> {
        self.pass(self.way.explain(name, holder, budget), budget.total, true)
    }

    fn held(&self, prefix: String, budget: RetryBudget) -> Answer<'_, Vec<Lease>> {
        self.pass(self.way.held(prefix, budget), budget.total, true)
    }

    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events> {
        Box::new(Watch { events: self.way.watch(prefix, after), line: self.line.subscribe() })
    }
}

struct Watch {
    events: Box<dyn Events>,
    line: watch::Receiver<Line>,
}

impl Events for Watch {
    fn next(&mut self) -> Answer<'_, Event> {
        Box::pin(async {
            // A line without its switch stays as it is.
            let _ = self.line.wait_for(|line| *line == Line::Up).await;
            self.events.next().await
        })
    }

    fn place(&self) -> Option<EventId> {
        self.events.place()
    }
}
