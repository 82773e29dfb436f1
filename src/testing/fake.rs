//! A fake cluster that a test controls, without nodes, network and real time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use super::ManualClock;
use crate::api::{
    self, Code, Event, EventId, Explanation, HandOver, Problem, Release, Released, RenewBatch, Renewed, UpdateMetadata,
};
use crate::client::{CallError, Coordinator, Events, LeaseManager, Loss, ManagerOptions, ResponseFuture, RetryBudget};
use crate::clock::Clock;
use crate::config::TtlPolicy;
use crate::lease::{
    self, Batch, Command, HolderLease, Limits, ListFilter, Machine, Outcome, Stamp, StateFilter, Transition, WaiterId,
};
use crate::node::{self, Request};
use crate::service;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, Ttl};

/// The holder of the leases that a test marks as held elsewhere. It is also the beginning of the other holders of a
/// semaphore.
const ELSEWHERE: &str = "elsewhere";
/// A time that does not end.
const ENDLESS_MS: u64 = u64::MAX / 2;
/// Interval between two checks of a waiter. The test moves the clock of the cluster.
const WAIT_POLL: Duration = Duration::from_millis(10);

/// A fake cluster that a test controls.
///
/// It grants leases by the rules of a real cluster until the test changes the outcome. Its managers use its own
/// [clock](FakeCluster::clock), which advances only when the test moves it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::client::{Loss, Wait};
/// use tenure::testing::FakeCluster;
///
/// let cluster = FakeCluster::new();
/// let manager = cluster.manager();
/// let lease = manager.lease("nightly")?;
/// lease.acquire(Wait::No).await?;
/// cluster.lose("nightly", Loss::Revoked);
/// assert!(!lease.is_held());
///
/// cluster.mark_held_elsewhere("nightly");
/// assert!(lease.acquire(Wait::No).await.is_err());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FakeCluster {
    state: Arc<Mutex<FakeState>>,
    clock: ManualClock,
    /// The last log index. Each change of the state increments it.
    changed: watch::Sender<u64>,
}

struct FakeState {
    machine: Machine,
    index: u64,
    faults: BTreeMap<LeaseName, Fault>,
    transitions: Vec<Transition>,
    /// For each manager, a function that ends a held lease.
    lose: Vec<Arc<LoseHook>>,
}

type LoseHook = dyn Fn(&LeaseName, Loss) + Send + Sync;

/// The outcome that a test sets for requests for a name.
#[derive(Clone, Debug)]
enum Fault {
    Refuse(Code),
    Unknown,
}

impl FakeCluster {
    /// Creates a cluster without leases.
    pub fn new() -> FakeCluster {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1));
        let state = FakeState {
            machine: Machine::new(),
            index: 0,
            faults: BTreeMap::new(),
            transitions: Vec::new(),
            lose: Vec::new(),
        };
        let cluster = FakeCluster { state: Arc::new(Mutex::new(state)), clock, changed: watch::Sender::new(0) };
        // A waiter confirms its place in real time, and a test can advance the clock by any time in between.
        cluster.apply(Command::SetLimits(Limits { waiter_timeout_ms: ENDLESS_MS, ..Limits::INITIAL }));
        cluster
    }

    /// A manager with a new holder.
    pub fn manager(&self) -> LeaseManager {
        self.manager_with(ManagerOptions::new())
    }

    /// A manager with these options. The cluster's clock replaces the clock of the options.
    ///
    /// # Panics
    ///
    /// An option is outside its bounds.
    pub fn manager_with(&self, options: ManagerOptions) -> LeaseManager {
        self.manager_through(self.clone(), options)
    }

    /// A manager that reaches this cluster through another connection, such as a [`Switch`](super::Switch). The
    /// cluster's clock replaces the clock of the options.
    ///
    /// # Panics
    ///
    /// An option is outside its bounds.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::client::{ManagerOptions, Wait};
    /// use tenure::testing::{FakeCluster, Line, Switch};
    ///
    /// let cluster = FakeCluster::new();
    /// let switch = Switch::new(cluster.clone());
    /// let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    /// let lease = manager.lease("nightly")?;
    /// lease.acquire(Wait::No).await?;
    /// switch.set(Line::Cut);
    /// cluster.clock().advance(std::time::Duration::from_secs(30));
    /// assert!(!lease.is_held());
    /// # Ok(()) }
    /// ```
    pub fn manager_through(&self, connection: impl Coordinator, options: ManagerOptions) -> LeaseManager {
        let manager = LeaseManager::with_options(connection, options.clock(Arc::new(self.clock.clone())));
        let manager = manager.expect("the test uses valid options");
        self.state().lose.push(Arc::new(manager.lose_hook()));
        manager
    }

    /// The clock of the cluster and of its managers.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Ends the effect of [`mark_held_elsewhere`](Self::mark_held_elsewhere), [`refuse`](Self::refuse) and
    /// [`unknown`](Self::unknown). If no manager holds the lease or waits for it, and no lock delay runs, the next
    /// acquire is granted.
    pub fn mark_free(&self, name: &str) {
        let name = valid(name);
        self.state().faults.remove(&name);
        let waiters = self.state().machine.queue(&name);
        for waiter in waiters.into_iter().filter(|waiter| is_elsewhere(&waiter.holder)) {
            self.apply(Command::LeaveQueue { waiter: WaiterId { name: name.clone(), holder: waiter.holder } });
        }
        for held in self.holders(&name).into_iter().filter(|held| is_elsewhere(&held.holder)) {
            self.apply(Command::Release { name: name.clone(), holder: held.holder, token: held.token });
        }
    }

    /// Grants the lease to another holder without expiry. The previous holder loses it by expiry. Of a semaphore that is
    /// in use, other holders get all permits. During a lock delay, the other holder waits for the end of the delay, behind
    /// the waiters that came before it.
    ///
    /// # Panics
    ///
    /// The call panics if the lease has waiters with a limit above 1 and no holder.
    pub fn mark_held_elsewhere(&self, name: &str) {
        let name = valid(name);
        self.lose_at_managers(&name, Loss::Expired);
        let limit = self.holders(&name).first().map_or(1, |held| held.limit);
        for slot in 0..limit {
            let holder = elsewhere(slot);
            let claim = lease::Acquire {
                name: name.clone(),
                holder: holder.clone(),
                ttl: Ttl::INFINITE,
                wait_ms: Some(ENDLESS_MS),
                lock_delay_ms: 0,
                limit,
                metadata: Default::default(),
            };
            let (outcome, _) = self.apply(Command::Acquire(claim));
            assert!(!matches!(outcome, Outcome::Refused(_)), "{name} cannot be held elsewhere: {outcome:?}");
            let previous = self.holders(&name).into_iter().find(|held| !is_elsewhere(&held.holder));
            // A hand-over starts no lock delay, and no other waiter gets the lease.
            if let (Outcome::Queued { .. }, Some(previous)) = (outcome, previous) {
                let HolderLease { holder: from, token, .. } = previous;
                self.apply(Command::HandOver { name: name.clone(), holder: from, token, to: Some(holder) });
            }
        }
    }

    /// Takes the lease from its holder for this reason, and frees it.
    pub fn lose(&self, name: &str, why: Loss) {
        let name = valid(name);
        self.lose_at_managers(&name, why);
        self.apply(Command::Revoke { name, reason: why.as_str().to_owned() });
    }

    fn lose_at_managers(&self, name: &LeaseName, why: Loss) {
        let hooks = self.state().lose.clone();
        hooks.iter().for_each(|lose| lose(name, why));
    }

    /// The holders of this lease, in the order of their tokens.
    fn holders(&self, name: &LeaseName) -> Vec<HolderLease> {
        let view = self.state().machine.get(name);
        view.map(|view| view.held).unwrap_or_default()
    }

    /// Refuses later acquires of the lease with this code.
    pub fn refuse(&self, name: &str, code: Code) {
        self.state().faults.insert(valid(name), Fault::Refuse(code));
    }

    /// Leaves later acquires, renewals, releases and metadata updates of the lease unanswered, without executing them.
    /// Their outcome is unknown.
    pub fn unknown(&self, name: &str) {
        self.state().faults.insert(valid(name), Fault::Unknown);
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().expect("no panic while the lock is held")
    }

    /// Applies one command as one log entry. Returns its outcome and the cluster time.
    fn apply(&self, command: Command) -> (Outcome, u64) {
        let now = self.clock.elapsed().as_millis() as u64;
        let mut state = self.state();
        state.index += 1;
        let index = state.index;
        let batch = Batch { stamp: Stamp { now, wall_ms: self.clock.wall_ms() }, commands: vec![command] };
        let (mut outcomes, effects) = state.machine.apply(FencingToken { term: 1, index }, &batch);
        state.transitions.extend(effects.transitions);
        drop(state);
        self.changed.send_replace(index);
        (outcomes.pop().expect("one outcome per command"), now)
    }

    fn check_fault(&self, name: &LeaseName) -> Result<(), CallError> {
        match self.state().faults.get(name) {
            None => Ok(()),
            Some(Fault::Refuse(code)) => Err(CallError::Refused(Box::new(Problem::new(*code, "refused by the test")))),
            Some(Fault::Unknown) => {
                Err(CallError::Unknown { why: "the test dropped the answer".to_owned(), last: None })
            }
        }
    }

    fn change<A>(
        &self,
        request: Request,
        read: impl FnOnce(node::Answer, u64) -> Result<A, Box<Problem>>,
    ) -> Result<A, CallError> {
        let Request::Change(command) = request else {
            unreachable!("renewals, releases, handovers and metadata updates are changes")
        };
        let (outcome, now) = self.apply(command);
        read(node::Answer::Outcome(outcome), now).map_err(CallError::Refused)
    }

    async fn claim(&self, claim: lease::Acquire) -> Result<api::LeaseInfo, CallError> {
        let (outcome, now) = self.apply(Command::Acquire(claim.clone()));
        if !matches!(outcome, Outcome::Queued { .. }) {
            return service::granted(node::Answer::Outcome(outcome), now).map_err(CallError::Refused);
        }
        let waiter = WaiterId { name: claim.name.clone(), holder: claim.holder.clone() };
        let _guard = WaiterGuard { cluster: self, waiter: waiter.clone() };
        loop {
            self.apply(Command::KeepWaiting { waiters: vec![waiter.clone()] });
            let held = self.holders(&claim.name).into_iter().find(|held| held.holder == claim.holder);
            if let Some(lease) = held {
                let answer = node::Answer::Outcome(Outcome::Held { lease, fresh: true });
                return service::granted(answer, now).map_err(CallError::Refused);
            }
            if !self.state().machine.queue(&claim.name).iter().any(|queued| queued.holder == claim.holder) {
                return service::granted(node::Answer::WaitTimeout, now).map_err(CallError::Refused);
            }
            tokio::time::sleep(WAIT_POLL).await;
        }
    }
}

impl Default for FakeCluster {
    fn default() -> FakeCluster {
        FakeCluster::new()
    }
}

/// Removes a waiter from the queue when its request ends.
struct WaiterGuard<'a> {
    cluster: &'a FakeCluster,
    waiter: WaiterId,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.cluster.apply(Command::LeaveQueue { waiter: self.waiter.clone() });
    }
}

impl Coordinator for FakeCluster {
    fn acquire(&self, name: LeaseName, claim: api::Acquire, _: RetryBudget) -> ResponseFuture<'_, api::LeaseInfo> {
        Box::pin(async move {
            self.check_fault(&name)?;
            let claim = service::claim(&TtlPolicy::default(), name, claim).map_err(CallError::Refused)?;
            self.claim(claim).await
        })
    }

    fn renew(&self, batch: RenewBatch, _: RetryBudget) -> ResponseFuture<'_, Renewed> {
        Box::pin(async move {
            let names: Vec<LeaseName> = batch.leases.iter().map(|item| item.name.clone()).collect();
            names.iter().try_for_each(|name| match self.check_fault(name) {
                Err(error @ CallError::Unknown { .. }) => Err(error),
                _ => Ok(()),
            })?;
            let request = service::renew_batch(&TtlPolicy::default(), batch).map_err(CallError::Refused)?;
            self.change(request, |answer, now| service::renewed(names, answer, now))
        })
    }

    fn release(&self, name: LeaseName, release: Release, _: RetryBudget) -> ResponseFuture<'_, Released> {
        Box::pin(async move {
            match self.check_fault(&name) {
                Err(error @ CallError::Unknown { .. }) => Err(error),
                _ => self.change(service::release(name, release), |answer, _| service::released(answer)),
            }
        })
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, _: RetryBudget) -> ResponseFuture<'_, api::LeaseInfo> {
        Box::pin(async move { self.change(service::hand_over(name, hand_over), service::handed_over) })
    }

    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        _: RetryBudget,
    ) -> ResponseFuture<'_, api::LeaseInfo> {
        Box::pin(async move {
            match self.check_fault(&name) {
                Err(error @ CallError::Unknown { .. }) => Err(error),
                _ => {
                    let request = service::update_metadata(name, update).map_err(CallError::Refused)?;
                    self.change(request, service::granted)
                }
            }
        })
    }

    fn explain(&self, name: LeaseName, holder: HolderId, _: RetryBudget) -> ResponseFuture<'_, Explanation> {
        Box::pin(async move {
            let (_, now) = self.apply(Command::Tick);
            let query = node::Query::Explain { name: name.clone(), holder: Some(holder) };
            let answer = node::look_up(&self.state().machine, query);
            service::explained(name, answer, now).map_err(CallError::Refused)
        })
    }

    fn held(&self, prefix: String, _: RetryBudget) -> ResponseFuture<'_, Vec<api::LeaseInfo>> {
        Box::pin(async move {
            let (_, now) = self.apply(Command::Tick);
            let filter = ListFilter { prefix, holder: None, states: vec![StateFilter::Active] };
            let (mut leases, mut cursor) = (Vec::new(), None);
            loop {
                let (page, next) = self.state().machine.list(&filter, cursor.as_ref(), usize::MAX);
                let (page, _) = service::listed(node::Answer::List { leases: page, next: None }, now)
                    .map_err(CallError::Refused)?;
                leases.extend(page);
                if next.is_none() {
                    return Ok(leases);
                }
                cursor = next;
            }
        })
    }

    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events> {
        let next = match after {
            None => self.state().transitions.len(),
            Some(after) => self.state().transitions.partition_point(|seen| is_not_after(seen, after)),
        };
        Box::new(FakeEvents { cluster: self.clone(), prefix, next, last: after })
    }
}

fn is_not_after(transition: &Transition, id: EventId) -> bool {
    (transition.index, transition.part) <= (id.index, id.part.unwrap_or(u32::MAX))
}

struct FakeEvents {
    cluster: FakeCluster,
    prefix: String,
    next: usize,
    /// The last event that was read.
    last: Option<EventId>,
}

impl Events for FakeEvents {
    fn next(&mut self) -> ResponseFuture<'_, Event> {
        Box::pin(async {
            let mut changed = self.cluster.changed.subscribe();
            loop {
                let transition = self.cluster.state().transitions.get(self.next).cloned();
                let Some(transition) = transition else {
                    changed.changed().await.expect("the cluster owns the sender");
                    continue;
                };
                self.next += 1;
                self.last = Some(EventId { index: transition.index, part: Some(transition.part) });
                if transition.name.as_str().starts_with(&self.prefix) {
                    return Ok(service::event(&transition));
                }
            }
        })
    }

    fn position(&self) -> Option<EventId> {
        self.last
    }
}

/// The holder of one slot of a lease that is held elsewhere.
fn elsewhere(slot: u32) -> HolderId {
    let id = if slot == 0 { ELSEWHERE.to_owned() } else { format!("{ELSEWHERE}#{slot}") };
    HolderId::new(id).expect("valid")
}

fn is_elsewhere(holder: &HolderId) -> bool {
    holder.as_str().split('#').next() == Some(ELSEWHERE)
}

fn valid(name: &str) -> LeaseName {
    LeaseName::new(name).expect("the test uses a valid lease name")
}
