//! Listeners of a lease: after an acquire, before a release and on a loss.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;

use super::Loss;
use super::hold::Hold;
use crate::token::FencingToken;

pub(super) type AfterAcquire = Arc<dyn Fn(FencingToken) + Send + Sync>;
pub(super) type LossCallback = Arc<dyn Fn(Loss) + Send + Sync>;
pub(super) type BeforeRelease = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// The listeners of one lease, in the order of their subscription.
#[derive(Default)]
pub(super) struct Listeners {
    last: u64,
    all: BTreeMap<u64, ListenerCallback>,
}

pub(super) enum ListenerCallback {
    AfterAcquire(AfterAcquire),
    BeforeRelease(BeforeRelease),
    OnLost(LossCallback),
}

impl Listeners {
    pub fn add(&mut self, listener: ListenerCallback) -> u64 {
        self.last += 1;
        self.all.insert(self.last, listener);
        self.last
    }

    fn remove(&mut self, number: u64) -> Option<ListenerCallback> {
        self.all.remove(&number)
    }

    /// The calls for an event. `last` is the number of the last listener that had subscribed when the event occurred.
    fn callbacks(&self, event: ListenerEvent, last: u64) -> Vec<Box<dyn FnOnce() + Send>> {
        let call = |listener: &ListenerCallback| -> Option<Box<dyn FnOnce() + Send>> {
            match (listener, event) {
                (ListenerCallback::AfterAcquire(call), ListenerEvent::Acquired(token)) => {
                    let call = call.clone();
                    Some(Box::new(move || call(token)))
                }
                (ListenerCallback::OnLost(call), ListenerEvent::Lost(why)) => {
                    let call = call.clone();
                    Some(Box::new(move || call(why)))
                }
                _ => None,
            }
        };
        self.all.range(..=last).filter_map(|(_, listener)| call(listener)).collect()
    }

    pub fn before_release(&self) -> Vec<BeforeRelease> {
        let wanted = |listener: &ListenerCallback| match listener {
            ListenerCallback::BeforeRelease(call) => Some(call.clone()),
            _ => None,
        };
        self.all.values().filter_map(wanted).collect()
    }
}

/// A listener's registration. Dropping it unsubscribes the listener from later events.
#[must_use = "dropping it unsubscribes"]
pub struct Subscription {
    hold: Weak<Hold>,
    number: u64,
}

impl Subscription {
    pub(super) fn new(hold: &Arc<Hold>, listener: ListenerCallback) -> Subscription {
        let number = hold.listeners().add(listener);
        Subscription { hold: Arc::downgrade(hold), number }
    }

    /// Keeps the listener until the manager forgets the lease.
    pub fn detach(mut self) {
        self.hold = Weak::new();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.upgrade() {
            let removed = hold.listeners().remove(self.number);
            // The record is unlocked again: a value that the listener owns may use the lease when it is dropped.
            drop(removed);
        }
    }
}

/// An event of a lease that its listeners receive.
#[derive(Clone, Copy, Debug)]
pub(super) enum ListenerEvent {
    Acquired(FencingToken),
    Lost(Loss),
}

/// Undelivered events of all leases of a manager, in the order in which they occurred.
#[derive(Default)]
pub(super) struct ListenerQueue {
    queue: Mutex<VecDeque<(Arc<Hold>, ListenerEvent, u64)>>,
    pushed: Notify,
    /// Held during the calls for an event: a task of an earlier runtime can call listeners, too, while one of them blocks.
    calling: tokio::sync::Mutex<()>,
}

impl ListenerQueue {
    /// Adds an event that just occurred, for those of its `listeners` that have subscribed by now.
    pub fn push(&self, hold: Arc<Hold>, event: ListenerEvent, listeners: &Listeners) {
        self.queue().push_back((hold, event, listeners.last));
        self.pushed.notify_one();
    }

    /// Calls the listeners until `stop` is cancelled and the queue is empty. A listener that blocks delays only other
    /// listeners. A listener that panics still receives later events.
    pub async fn dispatch(&self, stop: CancellationToken) {
        loop {
            let calling = self.calling.lock().await;
            let next = self.queue().pop_front();
            match next {
                Some((hold, event, last)) => {
                    let calls = hold.listeners().callbacks(event, last);
                    for call in calls {
                        if catch_unwind(AssertUnwindSafe(|| aside(call))).is_err() {
                            tracing::error!(lease = %hold.name, ?event, "a listener panicked");
                        }
                    }
                }
                None if stop.is_cancelled() => return,
                None => {
                    drop(calling);
                    tokio::select! {
                        () = self.pushed.notified() => {}
                        () = stop.cancelled() => {}
                    }
                }
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<(Arc<Hold>, ListenerEvent, u64)>> {
        self.queue.lock().expect("no code panics while it holds this lock")
    }
}

/// Calls a function that may block. The worker thread first gives its tasks away: no other worker takes the task that it
/// would run next, and that can be a renewal.
fn aside(call: impl FnOnce()) {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => block_in_place(call),
        _ => call(),
    }
}
