//! What a manager, its leases and its keeper share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::hold::Hold;
use super::listeners::Notices;
use super::operations::SentClaim;
use super::{Coordinator, ManagerOptions};
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName};

/// Handles that are gone are forgotten when there are twice as many as then were left, and so many at least.
const LEAST_TO_SWEEP: usize = 64;

pub(super) struct Shared {
    pub coordinator: Arc<dyn Coordinator>,
    pub options: ManagerOptions,
    pub notices: Arc<Notices>,
    /// Wakes the keeper.
    pub wake: Notify,
    /// Nothing is acquired any more.
    pub closing: CancellationToken,
    /// After that: every claim that was under way is settled, or given up.
    pub settled: CancellationToken,
    /// Claims under way.
    pub claims: TaskTracker,
    known: Mutex<Known>,
    schedule: Mutex<RenewalSchedule>,
    orders: Mutex<Vec<KeeperCommand>>,
}

/// What the keeper is asked to do when it can.
pub(super) enum KeeperCommand {
    /// Release a lease, and let the next guard of this process have it only then.
    Release { hold: Arc<Hold>, permit: Option<OwnedMutexGuard<()>> },
    /// A claim was given up on its way: release what it may have got.
    Settle { hold: Arc<Hold>, claim: Option<SentClaim> },
    /// The lease is lost here and the work has ended: the cluster need not wait for it to expire.
    GiveBack { hold: Arc<Hold>, token: FencingToken },
}

type Key = (LeaseName, HolderId);

#[derive(Default)]
struct Known {
    holds: HashMap<Key, Weak<Hold>>,
    sweep_at: usize,
}

impl Shared {
    pub fn new(coordinator: Arc<dyn Coordinator>, options: ManagerOptions) -> Shared {
        Shared {
            coordinator,
            options,
            notices: Arc::default(),
            wake: Notify::new(),
            closing: CancellationToken::new(),
            settled: CancellationToken::new(),
            claims: TaskTracker::new(),
            known: Mutex::default(),
            schedule: Mutex::default(),
            orders: Mutex::default(),
        }
    }

    /// The manager's clock.
    pub fn now(&self) -> Duration {
        self.options.clock.elapsed()
    }

    /// The one record of a lease and holder, made by `make` if nobody has a handle of it.
    pub fn hold(&self, name: &LeaseName, holder: &HolderId, make: impl FnOnce() -> Arc<Hold>) -> Arc<Hold> {
        let mut known = self.known.lock().expect(UNPOISONED);
        let key = (name.clone(), holder.clone());
        if let Some(hold) = known.holds.get(&key).and_then(Weak::upgrade) {
            return hold;
        }
        if known.holds.len() >= known.sweep_at.max(LEAST_TO_SWEEP) {
            known.holds.retain(|_, hold| hold.strong_count() > 0);
            known.sweep_at = known.holds.len() * 2;
        }
        let hold = make();
        known.holds.insert(key, Arc::downgrade(&hold));
        hold
    }

    /// Has the keeper look at these.
    pub fn look_at(&self, holds: impl IntoIterator<Item = Arc<Hold>>) {
        let mut schedule = self.schedule();
        holds.into_iter().for_each(|hold| schedule.insert(Duration::ZERO, &hold));
        drop(schedule);
        self.wake.notify_one();
    }

    /// Makes the grant, and has it kept. `false`: the manager is shut down, and nothing was done.
    pub fn keep_granted(&self, hold: &Arc<Hold>, grant: impl FnOnce()) -> bool {
        let mut schedule = self.schedule();
        // Under the lock that a shutdown takes to see what is held: it sees this grant, or this sees the shutdown.
        if self.closing.is_cancelled() {
            return false;
        }
        grant();
        schedule.insert(Duration::ZERO, hold);
        drop(schedule);
        self.wake.notify_one();
        true
    }

    /// Leases of which it is not known whether a claim was granted.
    pub fn all_ambiguous(&self) -> Vec<Arc<Hold>> {
        let known = self.known.lock().expect(UNPOISONED);
        known.holds.values().filter_map(Weak::upgrade).filter(|hold| hold.is_ambiguous()).collect()
    }

    pub fn all_held(&self) -> Vec<Arc<Hold>> {
        self.schedule().held().cloned().collect()
    }

    pub fn order(&self, order: KeeperCommand) {
        self.orders.lock().expect(UNPOISONED).push(order);
        self.wake.notify_one();
    }

    pub fn take_orders(&self) -> Vec<KeeperCommand> {
        std::mem::take(&mut *self.orders.lock().expect(UNPOISONED))
    }

    pub fn schedule(&self) -> MutexGuard<'_, RenewalSchedule> {
        self.schedule.lock().expect(UNPOISONED)
    }
}

const UNPOISONED: &str = "nothing panics while it has the lock";

/// What is held, and when to look at each of it.
#[derive(Default)]
pub(super) struct RenewalSchedule {
    held: BTreeMap<Key, (Duration, Arc<Hold>)>,
    order: BTreeSet<(Duration, Key)>,
}

impl RenewalSchedule {
    /// Looks at the lease at this time, in place of any other.
    pub fn insert(&mut self, at: Duration, hold: &Arc<Hold>) {
        let key = (hold.name.clone(), hold.holder.clone());
        if let Some((before, _)) = self.held.insert(key.clone(), (at, hold.clone())) {
            self.order.remove(&(before, key.clone()));
        }
        self.order.insert((at, key));
    }

    /// Takes the next lease that is to be looked at by `now`.
    pub fn next_due(&mut self, now: Duration) -> Option<Arc<Hold>> {
        if self.order.first()?.0 > now {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        self.held.get(&key).map(|(_, hold)| hold.clone())
    }

    /// Forgets a lease that has ended.
    pub fn forget_if_ended(&mut self, hold: &Arc<Hold>) {
        if hold.granted_token().is_none() {
            let key = (hold.name.clone(), hold.holder.clone());
            if let Some((at, _)) = self.held.remove(&key) {
                self.order.remove(&(at, key));
            }
        }
    }

    pub fn first(&self) -> Option<Duration> {
        // What is being renewed has no time of its own, and is held all the same: its deadline counts.
        let next = self.order.first().map(|(at, _)| *at);
        next.or((!self.held.is_empty()).then_some(Duration::MAX))
    }

    pub fn held(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.held.values().map(|(_, hold)| hold)
    }
}
