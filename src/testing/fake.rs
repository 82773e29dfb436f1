//! A cluster that a test plays: no nodes, no network, no time but the test's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::ManualClock;
use crate::api::{
    self, Code, Event, EventId, Explanation, HandOver, Problem, Release, Released, RenewBatch, Renewed, UpdateMetadata,
};
use crate::client::{
    Answer, CallError, Coordinator, Events, LeaseManager, Loss, ManagerOptions, PlayedManager, RetryBudget,
};
use crate::clock::Clock;
use crate::config::TtlPolicy;
use crate::lease::{self, Batch, Command, ListFilter, ListState, Machine, Outcome, Stamp, Transition, WaiterId};
use crate::node::{self, Request};
use crate::service;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, Ttl};

/// Who has what a test marks as held elsewhere.
const ELSEWHERE: &str = "elsewhere";
/// Between two looks of a waiter at a clock that the test moves.
const LOOK: Duration = Duration::from_millis(10);

/// A cluster that a test plays. Every lease is granted to whoever asks, by the same rules as in a real cluster, until the
/// test says otherwise. Its managers run on its own [clock](FakeCluster::clock), which stands still until it is moved.
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
    played: Arc<Mutex<Played>>,
    clock: ManualClock,
    /// The last log index: changes whenever anything does.
    changed: watch::Sender<u64>,
}

struct Played {
    machine: Machine,
    index: u64,
    orders: BTreeMap<LeaseName, Order>,
    transitions: Vec<Transition>,
    managers: Vec<Weak<dyn PlayedManager>>,
}

/// What a test wants requests for a name to come to.
#[derive(Clone, Debug)]
enum Order {
    Refuse(Code),
    Unknown,
}

impl FakeCluster {
    pub fn new() -> FakeCluster {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1));
        let played = Played {
            machine: Machine::new(),
            index: 0,
            orders: BTreeMap::new(),
            transitions: Vec::new(),
            managers: Vec::new(),
        };
        FakeCluster { played: Arc::new(Mutex::new(played)), clock, changed: watch::Sender::new(0) }
    }

    /// A new holder.
    pub fn manager(&self) -> LeaseManager {
        self.manager_with(ManagerOptions::new())
    }

    /// A new holder with these options, but for the clock, which is the cluster's.
    pub fn manager_with(&self, options: ManagerOptions) -> LeaseManager {
        self.manager_through(self.clone(), options)
    }

    /// A new holder that reaches this cluster another way: through a [`Switch`](super::Switch), for instance. Its clock is
    /// the cluster's.
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
    pub fn manager_through(&self, way: impl Coordinator, options: ManagerOptions) -> LeaseManager {
        let manager = LeaseManager::with_options(way, options.clock(Arc::new(self.clock.clone())));
        self.played().managers.push(manager.played());
        manager
    }

    /// The time of the cluster and of its managers.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// The lease is free: from now on it is granted to the first one that asks, as every lease is at first. Takes back
    /// what the other methods said of it.
    pub fn mark_free(&self, name: &str) {
        let name = valid(name);
        self.played().orders.remove(&name);
        let view = self.played().machine.get(&name);
        let elsewhere = view.and_then(|view| view.held.into_iter().find(|held| held.holder.as_str() == ELSEWHERE));
        if let Some(held) = elsewhere {
            self.apply(Command::Release { name, holder: held.holder, token: held.token });
        }
    }

    /// Somebody else has the lease, without end. Whoever had it lost it by an expiry.
    pub fn mark_held_elsewhere(&self, name: &str) {
        self.lose(name, Loss::Expired);
        let name = valid(name);
        let claim = lease::Acquire {
            name,
            holder: HolderId::new(ELSEWHERE).expect("valid"),
            ttl: Ttl::Infinite,
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: Default::default(),
        };
        self.apply(Command::Acquire(claim));
    }

    /// Whoever holds the lease loses it now, for this reason, and it is free.
    pub fn lose(&self, name: &str, why: Loss) {
        let name = valid(name);
        let managers: Vec<_> = self.played().managers.iter().filter_map(Weak::upgrade).collect();
        for manager in managers {
            manager.lose(&name, why);
        }
        self.apply(Command::Revoke { name, reason: why.as_str().to_owned() });
    }

    /// From now on every acquire of the lease is refused with this code.
    pub fn refuse(&self, name: &str, code: Code) {
        self.played().orders.insert(valid(name), Order::Refuse(code));
    }

    /// From now on no acquire, renewal or release of the lease has an answer, and none is carried out.
    pub fn unknown(&self, name: &str) {
        self.played().orders.insert(valid(name), Order::Unknown);
    }

    fn played(&self) -> MutexGuard<'_, Played> {
        self.played.lock().expect("nothing panics while it has the lock")
    }

    /// One log entry.
    fn apply(&self, command: Command) -> (Outcome, u64) {
        let now = self.clock.elapsed().as_millis() as u64;
        let mut played = self.played();
        played.index += 1;
        let index = played.index;
        let batch = Batch { stamp: Stamp { now, wall_ms: self.clock.wall_ms() }, commands: vec![command] };
        let (mut outcomes, effects) = played.machine.apply(FencingToken { term: 1, index }, &batch);
        played.transitions.extend(effects.transitions);
        drop(played);
        self.changed.send_replace(index);
        (outcomes.pop().expect("one outcome a command"), now)
    }

    fn order_for(&self, name: &LeaseName) -> Result<(), CallError> {
        match self.played().orders.get(name) {
            None => Ok(()),
            Some(Order::Refuse(code)) => Err(CallError::Refused(Box::new(Problem::new(*code, "refused by the test")))),
            Some(Order::Unknown) => Err(CallError::Unknown { why: "the test lost the answer".to_owned(), last: None }),
        }
    }

    fn change<A>(
        &self,
        request: Request,
        read: impl FnOnce(node::Answer, u64) -> Result<A, Box<Problem>>,
    ) -> Result<A, CallError> {
        let Request::Change(command) = request else { unreachable!("renewals, releases and hand-overs are changes") };
        let (outcome, now) = self.apply(command);
        read(node::Answer::Outcome(outcome), now).map_err(CallError::Refused)
    }

    async fn claim(&self, claim: lease::Acquire) -> Result<api::Lease, CallError> {
        let (outcome, now) = self.apply(Command::Acquire(claim.clone()));
        if !matches!(outcome, Outcome::Queued { .. }) {
            return service::granted(node::Answer::Outcome(outcome), now).map_err(CallError::Refused);
        }
        let waiter = WaiterId { name: claim.name.clone(), holder: claim.holder.clone() };
        let _place = Place { cluster: self, waiter: waiter.clone() };
        loop {
            self.apply(Command::KeepWaiting { waiters: vec![waiter.clone()] });
            let view = self.played().machine.get(&claim.name);
            let held = view.and_then(|view| view.held.into_iter().find(|held| held.holder == claim.holder));
            if let Some(lease) = held {
                let answer = node::Answer::Outcome(Outcome::Held { lease, fresh: true });
                return service::granted(answer, now).map_err(CallError::Refused);
            }
            if !self.played().machine.queue(&claim.name).iter().any(|place| place.holder == claim.holder) {
                return service::granted(node::Answer::WaitTimeout, now).map_err(CallError::Refused);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Default for FakeCluster {
    fn default() -> FakeCluster {
        FakeCluster::new()
    }
}

/// A waiter, for as long as somebody waits with it.
struct Place<'a> {
    cluster: &'a FakeCluster,
    waiter: WaiterId,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.cluster.apply(Command::LeaveQueue { waiter: self.waiter.clone() });
    }
}

impl Coordinator for FakeCluster {
    fn acquire(&self, name: LeaseName, claim: api::Acquire, _: RetryBudget) -> Answer<'_, api::Lease> {
        Box::pin(async move {
            self.order_for(&name)?;
            let claim = service::claim(&TtlPolicy::default(), name, claim).map_err(CallError::Refused)?;
            self.claim(claim).await
        })
    }

    fn renew(&self, batch: RenewBatch, _: RetryBudget) -> Answer<'_, Renewed> {
        Box::pin(async move {
            let names: Vec<LeaseName> = batch.leases.iter().map(|item| item.name.clone()).collect();
            names.iter().try_for_each(|name| match self.order_for(name) {
                Err(error @ CallError::Unknown { .. }) => Err(error),
                _ => Ok(()),
            })?;
            let request = service::renew_batch(&TtlPolicy::default(), batch).map_err(CallError::Refused)?;
            self.change(request, |answer, now| service::renewed(names, answer, now))
        })
    }

    fn release(&self, name: LeaseName, release: Release, _: RetryBudget) -> Answer<'_, Released> {
        Box::pin(async move {
            match self.order_for(&name) {
                Err(error @ CallError::Unknown { .. }) => Err(error),
                _ => self.change(service::release(name, release), |answer, _| service::released(answer)),
            }
        })
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, _: RetryBudget) -> Answer<'_, api::Lease> {
        Box::pin(async move { self.change(service::hand_over(name, hand_over), service::handed_over) })
    }

    fn update_metadata(&self, name: LeaseName, update: UpdateMetadata, _: RetryBudget) -> Answer<'_, api::Lease> {
        Box::pin(async move {
            match self.order_for(&name) {
                Err(error @ CallError::Unknown { .. }) => Err(error),
                _ => {
                    let request = service::update_metadata(name, update).map_err(CallError::Refused)?;
                    self.change(request, service::granted)
                }
            }
        })
    }

    fn explain(&self, name: LeaseName, holder: HolderId, _: RetryBudget) -> Answer<'_, Explanation> {
        Box::pin(async move {
            let (_, now) = self.apply(Command::Tick);
            let query = node::Query::Explain { name: name.clone(), holder: Some(holder) };
            let answer = node::look_up(&self.played().machine, query);
            service::explained(name, answer, now).map_err(CallError::Refused)
        })
    }

    fn held(&self, prefix: String, _: RetryBudget) -> Answer<'_, Vec<api::Lease>> {
        Box::pin(async move {
            let (_, now) = self.apply(Command::Tick);
            let filter = ListFilter { prefix, holder: None, states: vec![ListState::Active] };
            let (mut leases, mut cursor) = (Vec::new(), None);
            loop {
                let (page, next) = self.played().machine.list(&filter, cursor.as_ref(), usize::MAX);
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
            None => self.played().transitions.len(),
            Some(after) => self.played().transitions.partition_point(|seen| is_up_to(seen, after)),
        };
        Box::new(FakeEvents { cluster: self.clone(), prefix, next, place: after })
    }
}

fn is_up_to(transition: &Transition, place: EventId) -> bool {
    (transition.index, transition.part) <= (place.index, place.part.unwrap_or(u32::MAX))
}

struct FakeEvents {
    cluster: FakeCluster,
    prefix: String,
    next: usize,
    place: Option<EventId>,
}

impl Events for FakeEvents {
    fn next(&mut self) -> Answer<'_, Event> {
        Box::pin(async {
            let mut changed = self.cluster.changed.subscribe();
            loop {
                let transition = self.cluster.played().transitions.get(self.next).cloned();
                let Some(transition) = transition else {
                    changed.changed().await.expect("the cluster is here");
                    continue;
                };
                self.next += 1;
                self.place = Some(EventId { index: transition.index, part: Some(transition.part) });
                if transition.name.as_str().starts_with(&self.prefix) {
                    return Ok(service::event(&transition));
                }
            }
        })
    }

    fn place(&self) -> Option<EventId> {
        self.place
    }
}

fn valid(name: &str) -> LeaseName {
    LeaseName::new(name).expect("a test uses names that are leases' names")
}
