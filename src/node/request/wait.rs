//! Requests at this leader that wait in a queue of the replicated state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::lease::{Change, DropCause, Effects, GrantCause, HolderLease, Lost, Machine, WaiterId};
use crate::raft::{AppliedEntry, ApplyObserver};
use crate::types::NodeId;

/// The end of a wait.
#[derive(Clone, Debug)]
pub(in crate::node) enum Wake {
    Granted(Box<HolderLease>),
    /// Granted, and ended again by the same log entry.
    Ended(Lost),
    Dropped(DropCause),
}

/// What a request does when its own wait is over.
pub(in crate::node) enum WaitOver<L> {
    /// The machine ends the wait now.
    Ends,
    /// Another request of the waiter keeps the position.
    OtherWaits,
    /// The claim of another request is not applied. It may take over the position, or be refused.
    OtherMayWait,
    /// The machine would end the wait later, so the waiter leaves the queue.
    Leaves(L),
}

/// The waiting requests at this node. Only the leader has some for long.
pub(in crate::node) struct WaitRegistry {
    waiters: Mutex<Waiters>,
    /// Receives each waiter whose last request was dropped before an answer.
    abandoned: mpsc::UnboundedSender<WaiterId>,
    /// Notified when a request learns that it is queued, and when a request ends.
    pub changed: Notify,
}

#[derive(Default)]
struct Waiters {
    by_id: BTreeMap<WaiterId, Requests>,
    next_handle: u64,
}

/// The requests of one waiter.
#[derive(Default)]
struct Requests {
    waiting: Vec<Waiting>,
    /// The latest end of a wait of these requests and of earlier ones. The machine ends the wait then.
    until: Option<Instant>,
    /// A request has left that may have queued the waiter. So the last one must remove it, whatever its own answer is.
    has_left: bool,
}

/// One waiting request.
struct Waiting {
    handle: u64,
    /// The node of its client.
    node: NodeId,
    sender: oneshot::Sender<Wake>,
    /// The index of the entry that queued its claim. `None`: the claim is not applied yet, as far as the request knows.
    queued_at: Option<u64>,
    /// The ends of waits of its waiter before it knew that index.
    early: Vec<WaitEnd>,
}

/// The end of a wait, by one entry. An end before the claim of a request is that of an earlier request of its holder.
#[derive(Clone)]
struct WaitEnd {
    index: u64,
    /// The waiter is in the queue after the entry: the entry first ended one wait, and then queued another claim.
    is_queued_again: bool,
    wake: Wake,
}

impl WaitEnd {
    fn ends(&self, queued_at: u64) -> bool {
        queued_at < self.index || (queued_at == self.index && !self.is_queued_again)
    }
}

impl Waiting {
    fn ends_with(&mut self, end: &WaitEnd) -> bool {
        let Some(queued_at) = self.queued_at else {
            self.early.push(end.clone());
            return false;
        };
        end.ends(queued_at)
    }

    fn wake(self, wake: Wake) {
        // The request may have been dropped just now.
        let _ = self.sender.send(wake);
    }
}

impl Waiters {
    fn end(&mut self, id: &WaiterId, end: &WaitEnd) {
        let Some(Requests { waiting, .. }) = self.by_id.get_mut(id) else { return };
        waiting.extract_if(.., |one| one.ends_with(end)).for_each(|one| one.wake(end.wake.clone()));
        if waiting.is_empty() {
            self.by_id.remove(id);
        }
    }
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
        (Arc::new(WaitRegistry { waiters: Mutex::default(), abandoned, changed: Notify::new() }), left)
    }

    /// Registers a wait of a client of `node` that ends at `until`, and then calls `propose`: its claim may be granted at
    /// once. `propose` gets the time by which the claim must wait longer than its request: until the last request of the
    /// waiter ends. Claims of a waiter are queued in the order of their registration.
    pub fn register<P>(
        self: &Arc<Self>,
        id: WaiterId,
        node: NodeId,
        until: Instant,
        propose: impl FnOnce(Duration) -> P,
    ) -> (WaitHandle, P) {
        let (sender, wake) = oneshot::channel();
        let mut waiters = self.waiters.lock();
        let handle = waiters.next_handle;
        waiters.next_handle += 1;
        let requests = waiters.by_id.entry(id.clone()).or_default();
        requests.waiting.push(Waiting { handle, node, sender, queued_at: None, early: Vec::new() });
        let latest = requests.until.map_or(until, |latest| latest.max(until));
        requests.until = Some(latest);
        let proposed = propose(latest - until);
        (WaitHandle { registry: self.clone(), id, handle, wake, may_be_in_queue: true }, proposed)
    }

    /// Decides what a request does whose own wait was over at `until`. See [`leave`](Self::leave) for the order.
    pub fn over<L>(
        &self,
        (id, handle): (WaiterId, u64),
        until: Instant,
        leave: impl FnOnce(WaiterId) -> L,
    ) -> WaitOver<L> {
        let waiters = self.waiters.lock();
        let waits = |requests: &&Requests| requests.waiting.iter().any(|one| one.handle == handle);
        let is_queued = |other: &Waiting| other.handle != handle && other.queued_at.is_some();
        match waiters.by_id.get(&id).filter(waits) {
            Some(requests) if requests.waiting.iter().any(is_queued) => WaitOver::OtherWaits,
            Some(requests) if requests.waiting.len() > 1 => WaitOver::OtherMayWait,
            Some(requests) if requests.until > Some(until) => WaitOver::Leaves(leave(id)),
            _ => WaitOver::Ends,
        }
    }

    /// Like [`leave`](Self::leave), for the requests of one node: calls `leave` unless a request of another node waits.
    /// Then only the requests of this node end.
    pub fn leave_from<R>(&self, node: NodeId, id: WaiterId, leave: impl FnOnce(WaiterId) -> R) -> Option<R> {
        let mut waiters = self.waiters.lock();
        let Some(requests) = waiters.by_id.get_mut(&id) else { return Some(leave(id)) };
        if requests.waiting.iter().all(|one| one.node == node) {
            return Some(leave(id));
        }
        // A claim that is not applied yet can still be refused.
        let ended = requests.waiting.extract_if(.., |one| one.node == node && one.queued_at.is_some());
        ended.for_each(|one| one.wake(Wake::Dropped(DropCause::Left)));
        requests.has_left = true;
        None
    }

    /// Calls `leave` if no request of this node waits for this waiter. Otherwise the last of its requests must remove it.
    /// A later request registers only after the call, so a command that `leave` queues goes before its claim.
    pub fn leave<R>(&self, id: WaiterId, leave: impl FnOnce(WaiterId) -> R) -> Option<R> {
        let mut waiters = self.waiters.lock();
        let Some(requests) = waiters.by_id.get_mut(&id) else { return Some(leave(id)) };
        requests.has_left = true;
        None
    }

    /// Returns all waiters of the requests of this node.
    pub fn ids(&self) -> Vec<WaiterId> {
        self.waiters.lock().by_id.keys().cloned().collect()
    }

    /// Wakes the requests whose waiters were granted or dropped by an entry.
    fn wake(&self, index: u64, effects: &Effects, machine: &Machine) {
        let mut waiters = self.waiters.lock();
        if waiters.by_id.is_empty() {
            return;
        }
        for transition in &effects.transitions {
            if !matches!(transition.change, Change::Granted(GrantCause::Queue | GrantCause::HandOver)) {
                continue;
            }
            let id = WaiterId { name: transition.name.clone(), holder: transition.holder.clone() };
            if !waiters.by_id.contains_key(&id) {
                continue;
            }
            let wake = match machine.held_with(&id.name, transition.token) {
                Some(lease) => Wake::Granted(Box::new(lease)),
                None => Wake::Ended(machine.lost(&id.name, &id.holder, transition.token)),
            };
            waiters.end(&id, &WaitEnd { index, is_queued_again: machine.is_waiting(&id), wake });
        }
        for dropped in &effects.dropped {
            let (id, wake) = (&dropped.waiter, Wake::Dropped(dropped.cause));
            if waiters.by_id.contains_key(id) {
                waiters.end(id, &WaitEnd { index, is_queued_again: machine.is_waiting(id), wake });
            }
        }
    }
}

impl ApplyObserver for WaitRegistry {
    fn applied(&self, entry: &AppliedEntry<'_>) {
        self.wake(entry.position.index, entry.effects, entry.machine);
    }
}

impl WaitHandle {
    /// Records that the entry with this index queued the claim. Only later ends wake the request.
    pub fn queued_at(&mut self, index: u64) {
        let mut waiters = self.registry.waiters.lock();
        let Requests { waiting, .. } = waiters.by_id.get_mut(&self.id).expect("its handle is registered");
        let at = waiting.iter().position(|one| one.handle == self.handle).expect("its handle is registered");
        waiting[at].queued_at = Some(index);
        self.registry.changed.notify_waiters();
        let early = std::mem::take(&mut waiting[at].early);
        if let Some(end) = early.into_iter().find(|end| end.ends(index)) {
            waiting.remove(at).wake(end.wake);
            if waiting.is_empty() {
                waiters.by_id.remove(&self.id);
            }
        }
    }

    /// The request, for [`WaitRegistry::over`].
    pub fn request(&self) -> (WaiterId, u64) {
        (self.id.clone(), self.handle)
    }

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
        let Some(requests) = waiters.by_id.get_mut(&self.id) else { return };
        let Some(at) = requests.waiting.iter().position(|one| one.handle == self.handle) else { return };
        requests.waiting.remove(at);
        self.registry.changed.notify_waiters();
        requests.has_left |= self.may_be_in_queue;
        if !requests.waiting.is_empty() {
            return;
        }
        let must_leave = requests.has_left;
        waiters.by_id.remove(&self.id);
        if must_leave {
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
    mod overlaps;

    use std::time::Instant;

    use super::*;
    use crate::lease::{Acquire, Batch, Command, LostReason, Outcome, Stamp};
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

    impl WaitRegistry {
        /// Registers a wait of a client of node 1, without its claim.
        pub(in crate::node) fn register_alone(self: &Arc<Self>, id: WaiterId) -> WaitHandle {
            self.register(id, 1, tokio::time::Instant::now(), |_| ()).0
        }
    }

    fn claim(number: u64, wait_ms: Option<u64>) -> Command {
        let (ttl, metadata) = (Ttl::INFINITE, Metadata::default());
        let holder = holder(number);
        Command::Acquire(Acquire { name: name(), holder, ttl, wait_ms, lock_delay_ms: 0, limit: 1, metadata })
    }

    /// The client of the first request has left, and the second one is refused.
    #[test]
    fn waiter_leaves_with_its_last_request_although_that_one_is_refused() {
        let (registry, mut left) = WaitRegistry::new();
        let id = WaiterId { name: name(), holder: holder(1) };
        let (first, mut second) = (registry.register_alone(id.clone()), registry.register_alone(id.clone()));
        drop(first);
        assert!(left.try_recv().is_err(), "the second request may queue the waiter");
        second.keep_position();
        drop(second);
        assert_eq!(left.try_recv().ok(), Some(id.clone()));

        let mut alone = registry.register_alone(id);
        alone.keep_position();
        drop(alone);
        assert!(left.try_recv().is_err(), "no request has queued the waiter");
    }

    #[test]
    fn leave_is_queued_before_a_later_request_registers() {
        let (registry, _left) = WaitRegistry::new();
        let id = WaiterId { name: name(), holder: holder(1) };
        let is_locked = registry.leave(id.clone(), |_| registry.waiters.is_locked());
        assert_eq!(is_locked, Some(true), "a request that registers now would queue its claim first");
        let _request = registry.register_alone(id.clone());
        assert_eq!(registry.leave(id, drop), None, "the request still waits");
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

    fn woken(handle: &mut WaitHandle) -> Option<Wake> {
        handle.wake.try_recv().ok()
    }

    /// The client of an earlier request has left. Its holder asks again before the leave is applied.
    #[test]
    fn end_of_an_earlier_wait_wakes_no_later_request() {
        let (registry, _left) = WaitRegistry::new();
        let mut leader = Leader { machine: Machine::new(), registry, token: FencingToken { term: 1, index: 1 } };
        let id = WaiterId { name: name(), holder: holder(2) };
        let leave = || Command::LeaveQueue { waiter: id.clone() };
        leader.apply(claim(1, None));
        let mut first = leader.registry.register_alone(id.clone());
        leader.apply(claim(2, Some(60_000)));
        first.queued_at(leader.index());
        let mut again = leader.registry.register_alone(id.clone());
        leader.apply(leave());
        assert!(matches!(woken(&mut first), Some(Wake::Dropped(DropCause::Left))));
        leader.apply(claim(2, Some(60_000)));
        again.queued_at(leader.index());
        assert!(woken(&mut again).is_none(), "its claim is queued after the leave");

        let mut third = leader.registry.register_alone(id.clone());
        leader.apply_all(vec![leave(), claim(2, Some(60_000))]);
        assert!(matches!(woken(&mut again), Some(Wake::Dropped(DropCause::Left))));
        third.queued_at(leader.index());
        assert!(woken(&mut third).is_none(), "its claim is queued after the leave in the same entry");
        assert_eq!(leader.registry.ids(), [id]);
        leader.release(1);
        assert!(matches!(woken(&mut third), Some(Wake::Granted(_))));
        assert_eq!(leader.registry.ids(), []);
    }

    #[test]
    fn end_of_a_wait_before_its_request_knows_that_it_is_queued_wakes_it() {
        let (registry, _left) = WaitRegistry::new();
        let mut leader = Leader { machine: Machine::new(), registry, token: FencingToken { term: 1, index: 1 } };
        let id = WaiterId { name: name(), holder: holder(2) };
        leader.apply(claim(1, None));
        let mut handle = leader.registry.register_alone(id.clone());
        leader.apply(claim(2, Some(60_000)));
        let queued_at = leader.index();
        leader.release(1);
        handle.queued_at(queued_at);
        let Some(Wake::Granted(lease)) = woken(&mut handle) else { panic!("the waiter was not woken") };
        assert_eq!(lease.token, leader.token);
        assert_eq!(leader.registry.ids(), []);

        let mut handle = leader.registry.register_alone(WaiterId { name: name(), holder: holder(3) });
        leader.apply_all(vec![claim(3, Some(60_000)), Command::LeaveQueue { waiter: handle.id.clone() }]);
        handle.queued_at(leader.index());
        assert!(matches!(woken(&mut handle), Some(Wake::Dropped(DropCause::Left))), "ended by its own entry");
    }

    /// A holder waits through two nodes.
    #[test]
    fn end_of_a_wait_wakes_each_request_of_its_waiter() {
        let (registry, _left) = WaitRegistry::new();
        let mut leader = Leader { machine: Machine::new(), registry, token: FencingToken { term: 1, index: 1 } };
        let id = WaiterId { name: name(), holder: holder(2) };
        let wait_twice = |leader: &mut Leader| {
            [(), ()].map(|()| {
                let mut handle = leader.registry.register_alone(id.clone());
                leader.apply(claim(2, Some(60_000)));
                handle.queued_at(leader.index());
                handle
            })
        };
        leader.apply(claim(1, None));
        let mut requests = wait_twice(&mut leader);
        leader.apply(Command::LeaveQueue { waiter: id.clone() });
        assert!(requests.iter_mut().all(|one| matches!(woken(one), Some(Wake::Dropped(DropCause::Left)))));
        assert_eq!(leader.registry.ids(), []);
        let mut requests = wait_twice(&mut leader);
        leader.release(1);
        assert!(requests.iter_mut().all(|one| matches!(woken(one), Some(Wake::Granted(_)))));
        assert_eq!(leader.registry.ids(), []);
    }

    #[test]
    fn grant_that_its_entry_ends_is_told_as_lost() {
        let (registry, _left) = WaitRegistry::new();
        let mut leader = Leader { machine: Machine::new(), registry, token: FencingToken { term: 1, index: 1 } };
        leader.apply(claim(1, None));
        let mut handle = leader.registry.register_alone(WaiterId { name: name(), holder: holder(2) });
        leader.apply(claim(2, Some(60_000)));
        handle.queued_at(leader.index());
        let release = Command::Release { name: name(), holder: holder(1), token: leader.token };
        leader.apply_all(vec![release, Command::Revoke { name: name(), reason: String::new() }]);
        let Some(Wake::Ended(lost)) = woken(&mut handle) else { panic!("the end is not told") };
        assert_eq!(lost, Lost { cause: LostReason::Revoked, holder: None });
        assert_eq!(leader.registry.ids(), []);
    }

    #[test]
    fn claim_waits_until_the_last_request_of_its_waiter_ends() {
        let (registry, _left) = WaitRegistry::new();
        let (id, now) = (WaiterId { name: name(), holder: holder(1) }, tokio::time::Instant::now());
        let until = |seconds| now + Duration::from_secs(seconds);
        let register = |seconds| registry.register(id.clone(), 1, until(seconds), |longer| longer.as_secs());
        let over = |request: &WaitHandle, seconds| registry.over(request.request(), until(seconds), drop);
        let ((mut long, none), (short, longer)) = (register(60), register(10));
        assert_eq!((none, longer), (0, 50));
        long.queued_at(1);
        assert!(matches!(over(&short, 10), WaitOver::OtherWaits));
        drop(long);
        assert!(matches!(over(&short, 10), WaitOver::Leaves(())));
        drop(short);
        let (alone, longer) = register(10);
        assert_eq!(longer, 0);
        assert!(matches!(over(&alone, 10), WaitOver::Ends), "the machine ends it");
    }

    /// The node of the first request shuts down. A third request is not queued yet.
    #[test]
    fn node_that_leaves_ends_only_its_own_requests() {
        let (registry, _left) = WaitRegistry::new();
        let mut leader = Leader { machine: Machine::new(), registry, token: FencingToken { term: 1, index: 1 } };
        let id = WaiterId { name: name(), holder: holder(2) };
        leader.apply(claim(1, None));
        let (registry, now) = (leader.registry.clone(), tokio::time::Instant::now());
        let [mut own, mut other, mut third] = [1, 2, 1].map(|node| registry.register(id.clone(), node, now, |_| ()).0);
        leader.apply(claim(2, Some(60_000)));
        own.queued_at(leader.index());
        other.queued_at(leader.index());
        assert_eq!(leader.registry.leave_from(1, id.clone(), drop), None, "node 2 has a request");
        assert!(matches!(woken(&mut own), Some(Wake::Dropped(DropCause::Left))));
        assert!(woken(&mut other).is_none());
        third.queued_at(leader.index());
        assert!(woken(&mut third).is_none());
        drop(other);
        assert_eq!(leader.registry.leave_from(1, id.clone(), drop), Some(()), "only this node has requests");
    }

    struct Leader {
        machine: Machine,
        registry: Arc<WaitRegistry>,
        token: FencingToken,
    }

    impl Leader {
        /// The index of the last entry.
        fn index(&self) -> u64 {
            self.machine.applied().map_or(0, |last| last.index)
        }

        fn apply(&mut self, command: Command) -> (Outcome, Duration) {
            self.apply_all(vec![command])
        }

        /// Applies one entry as a replica does, and wakes the waiting requests. Returns the first outcome.
        fn apply_all(&mut self, commands: Vec<Command>) -> (Outcome, Duration) {
            let index = self.index() + 1;
            let batch = Batch { stamp: Stamp::default(), commands };
            let begun = Instant::now();
            let (mut outcomes, effects) = self.machine.apply(FencingToken { term: 1, index }, &batch);
            self.registry.wake(index, &effects, &self.machine);
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
            let mut handle = leader.registry.register_alone(WaiterId { name: name(), holder: holder(number + 1) });
            leader.apply(claim(number + 1, Some(60_000)));
            handle.queued_at(leader.index());
            times.push(leader.release(number));
            let Some(Wake::Granted(lease)) = woken(&mut handle) else { panic!("the waiter was not woken") };
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
