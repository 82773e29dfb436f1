//! Requests at this leader that wait in a queue of the replicated state.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::lease::{Change, DropCause, Effects, GrantCause, HolderLease, Lost, Machine, WaiterId};
use crate::raft::{AppliedEntry, ApplyObserver};

/// The end of a wait.
#[derive(Clone, Debug)]
pub(in crate::node) enum Wake {
    Granted(Box<HolderLease>),
    /// Granted, and ended again by the same log entry.
    Ended(Lost),
    Dropped(DropCause),
}

/// The waiting requests of this node.
pub(in crate::node) struct WaitRegistry {
    waiters: Mutex<Waiters>,
    /// Receives each waiter whose last request was dropped before an answer.
    abandoned: mpsc::UnboundedSender<WaiterId>,
}

#[derive(Default)]
struct Waiters {
    by_id: BTreeMap<WaiterId, Vec<(u64, oneshot::Sender<Wake>)>>,
    next_handle: u64,
}

/// The wait of one request. If it is dropped before it is woken, its waiter leaves the queue, unless another request
/// has the same waiter.
pub(in crate::node) struct WaitHandle {
    registry: Arc<WaitRegistry>,
    id: WaiterId,
    handle: u64,
    wake: oneshot::Receiver<Wake>,
    /// The waiter may be in the replicated queue, so a drop of the last handle must remove it.
    may_be_in_queue: bool,
}

impl WaitRegistry {
    /// Returns a registry, and a receiver of the waiters that must leave their queues.
    pub fn new() -> (Arc<WaitRegistry>, mpsc::UnboundedReceiver<WaiterId>) {
        let (abandoned, left) = mpsc::unbounded_channel();
        (Arc::new(WaitRegistry { waiters: Mutex::default(), abandoned }), left)
    }

    /// Registers a wait. Call it before the acquire is proposed, because its grant may be applied at once.
    pub fn register(self: &Arc<Self>, id: WaiterId) -> WaitHandle {
        let (sender, wake) = oneshot::channel();
        let mut waiters = self.waiters.lock();
        let handle = waiters.next_handle;
        waiters.next_handle += 1;
        waiters.by_id.entry(id.clone()).or_default().push((handle, sender));
        WaitHandle { registry: self.clone(), id, handle, wake, may_be_in_queue: true }
    }

    /// Whether a request of this node waits for this waiter.
    pub fn has(&self, id: &WaiterId) -> bool {
        self.waiters.lock().by_id.contains_key(id)
    }

    /// Returns all waiters of the requests of this node.
    pub fn ids(&self) -> Vec<WaiterId> {
        self.waiters.lock().by_id.keys().cloned().collect()
    }

    /// Wakes the requests whose waiters were granted or dropped by an entry.
    fn wake(&self, effects: &Effects, machine: &Machine) {
        let mut waiters = self.waiters.lock();
        if waiters.by_id.is_empty() {
            return;
        }
        for transition in &effects.transitions {
            if !matches!(transition.change, Change::Granted(GrantCause::Queue | GrantCause::HandOver)) {
                continue;
            }
            let id = WaiterId { name: transition.name.clone(), holder: transition.holder.clone() };
            let Some(handles) = waiters.by_id.remove(&id) else { continue };
            let wake = match machine.held_with(&id.name, transition.token) {
                Some(lease) => Wake::Granted(Box::new(lease)),
                None => Wake::Ended(machine.lost(&id.name, &id.holder, transition.token)),
            };
            wake_all(handles, &wake);
        }
        for dropped in &effects.dropped {
            if let Some(handles) = waiters.by_id.remove(&dropped.waiter) {
                wake_all(handles, &Wake::Dropped(dropped.cause));
            }
        }
    }
}

impl ApplyObserver for WaitRegistry {
    fn applied(&self, entry: &AppliedEntry<'_>) {
        self.wake(entry.effects, entry.machine);
    }
}

fn wake_all(handles: Vec<(u64, oneshot::Sender<Wake>)>, wake: &Wake) {
    for (_, sender) in handles {
        // The request may have been dropped just now.
        let _ = sender.send(wake.clone());
    }
}

impl WaitHandle {
    /// Leaves the waiter in the queue when this handle is dropped: the request continues at another leader.
    pub fn keep_position(&mut self) {
        self.may_be_in_queue = false;
    }

    /// Waits for the end of the wait; `None` if this node can no longer learn it.
    pub async fn woken(&mut self) -> Option<Wake> {
        let wake = (&mut self.wake).await.ok();
        self.may_be_in_queue = false;
        wake
    }
}

impl Drop for WaitHandle {
    fn drop(&mut self) {
        let mut waiters = self.registry.waiters.lock();
        let Some(handles) = waiters.by_id.get_mut(&self.id) else { return };
        handles.retain(|(handle, _)| *handle != self.handle);
        if !handles.is_empty() {
            return;
        }
        waiters.by_id.remove(&self.id);
        if self.may_be_in_queue {
            // The receiver is gone if the node has stopped. The leader then drops the waiter after `waiter_timeout_ms`.
            let _ = self.registry.abandoned.send(self.id.clone());
        }
    }
}

/// Counts the waiting requests of callers in this process by waiter. They end with the node, so a shutdown removes them
/// from their queues.
#[derive(Default)]
pub(crate) struct LocalWaits(Mutex<BTreeMap<WaiterId, usize>>);

/// Registers one waiting request until it is dropped.
pub(crate) struct LocalWaitGuard {
    waits: Arc<LocalWaits>,
    id: WaiterId,
}

impl LocalWaits {
    pub fn register(self: &Arc<Self>, id: WaiterId) -> LocalWaitGuard {
        *self.0.lock().entry(id.clone()).or_default() += 1;
        LocalWaitGuard { waits: self.clone(), id }
    }

    pub fn ids(&self) -> Vec<WaiterId> {
        self.0.lock().keys().cloned().collect()
    }
}

impl Drop for LocalWaitGuard {
    fn drop(&mut self) {
        let mut waits = self.waits.0.lock();
        let Some(count) = waits.get_mut(&self.id) else { return };
        *count -= 1;
        if *count == 0 {
            waits.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::lease::{Acquire, Batch, Command, Outcome, Stamp};
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, Metadata, Ttl};

    /// Number of measured hand-offs.
    const HAND_OFFS: usize = 50;

    fn name() -> LeaseName {
        LeaseName::new("job").expect("valid")
    }

    fn holder(number: u64) -> HolderId {
        HolderId::new(format!("holder-{number}")).expect("valid")
    }

    fn claim(number: u64, wait_ms: Option<u64>) -> Command {
        let (ttl, metadata) = (Ttl::INFINITE, Metadata::default());
        let holder = holder(number);
        Command::Acquire(Acquire { name: name(), holder, ttl, wait_ms, lock_delay_ms: 0, limit: 1, metadata })
    }

    #[test]
    fn local_wait_stays_until_its_last_request_ends() {
        let waits = Arc::new(LocalWaits::default());
        let id = WaiterId { name: name(), holder: holder(1) };
        let (first, second) = (waits.register(id.clone()), waits.register(id.clone()));
        drop(first);
        assert_eq!(waits.ids(), [id], "the other request still waits");
        drop(second);
        assert_eq!(waits.ids(), []);
    }

    struct Leader {
        machine: Machine,
        registry: Arc<WaitRegistry>,
        token: FencingToken,
    }

    impl Leader {
        /// Applies one entry as a replica does, and wakes the waiting requests.
        fn apply(&mut self, command: Command) -> (Outcome, Duration) {
            let index = self.machine.applied().map_or(1, |last| last.index + 1);
            let batch = Batch { stamp: Stamp::default(), commands: vec![command] };
            let begun = Instant::now();
            let (mut outcomes, effects) = self.machine.apply(FencingToken { term: 1, index }, &batch);
            self.registry.wake(&effects, &self.machine);
            let took = begun.elapsed();
            if effects.transitions.iter().any(|transition| matches!(transition.change, Change::Granted(_))) {
                self.token = FencingToken { term: 1, index };
            }
            (outcomes.remove(0), took)
        }

        fn release(&mut self, number: u64) -> Duration {
            let (outcome, took) =
                self.apply(Command::Release { name: name(), holder: holder(number), token: self.token });
            assert_eq!(outcome, Outcome::Released(true));
            took
        }
    }

    /// Returns the median time of a release that grants the lease to a waiter, after `ended` earlier grants.
    fn hand_off(ended: u64) -> Duration {
        let (registry, _left) = WaitRegistry::new();
        let mut leader = Leader { machine: Machine::new(), registry, token: FencingToken { term: 1, index: 1 } };
        for number in 0..ended {
            leader.apply(claim(number, None));
            leader.release(number);
        }
        leader.apply(claim(ended, None));
        let mut times = Vec::new();
        for number in ended..ended + HAND_OFFS as u64 {
            let mut handle = leader.registry.register(WaiterId { name: name(), holder: holder(number + 1) });
            leader.apply(claim(number + 1, Some(60_000)));
            times.push(leader.release(number));
            let Some(Wake::Granted(lease)) = handle.wake.try_recv().ok() else { panic!("the waiter was not woken") };
            assert_eq!((lease.holder, lease.token), (holder(number + 1), leader.token));
        }
        assert!(leader.machine.counts().ended >= ended.min(10_000), "the ended grants are still kept");
        times.sort();
        times[HAND_OFFS / 2]
    }

    #[test]
    fn hand_off_costs_the_same_after_10_000_ended_grants() {
        let (few, many) = (hand_off(10), hand_off(10_000));
        println!("a hand-off takes {few:?} after 10 ended grants and {many:?} after 10,000");
        assert!(many < few * 10, "{few:?} after 10 ended grants, {many:?} after 10,000");
    }
}
