//! The state that a manager, its leases and its keeper share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::claims::SentClaim;
use super::hold::{Hold, Unreleased};
use super::listeners::ListenerQueue;
use super::{Coordinator, LeaseOptions, ManagerOptions};
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, MAX_TTL_MS};

/// Smallest number of entries at which dropped handles are removed. After a sweep, the next one follows at twice the
/// number of remaining entries.
const MIN_SWEEP_SIZE: usize = 64;
/// With this number of leases left held, a new one replaces the oldest one whose time is over and that has no handle.
const MAX_LEFT_HELD: usize = 1000;

pub(super) struct ManagerInner {
    pub coordinator: Arc<dyn Coordinator>,
    pub options: ManagerOptions,
    pub listener_queue: Arc<ListenerQueue>,
    /// Wakes the keeper.
    pub wake: Notify,
    /// Cancelled by a shutdown: no acquire succeeds from then on.
    pub closing: CancellationToken,
    /// Cancelled after `closing`, when every claim in flight is resolved or abandoned.
    pub claims_resolved: CancellationToken,
    /// Claims in flight.
    pub claims: TaskTracker,
    table: Mutex<HoldTable>,
    schedule: Mutex<RenewalSchedule>,
    commands: Mutex<Vec<KeeperCommand>>,
    /// Leases that the cluster may count as held although this manager does not, and when their time is over by the local
    /// clock. The grant ended by that clock, the release failed, the work did not end in time, or a claim has no answer.
    /// They stay here without a handle, so that a shutdown knows them.
    left_held: Mutex<BTreeMap<HoldKey, (Duration, Arc<Hold>)>>,
}

/// A background command for the keeper.
pub(super) enum KeeperCommand {
    /// Releases a lease, or only the grant with this token. The permit excludes the next guard of this process until
    /// then.
    Release { hold: Arc<Hold>, token: Option<FencingToken>, permit: Option<OwnedMutexGuard<()>> },
    /// Resolves an abandoned claim: releases its grant, or withdraws it.
    ResolveAmbiguous { hold: Arc<Hold>, claim: Option<SentClaim> },
    /// Releases a grant that ended by the local clock. The work has ended, so the cluster need not wait for the expiry.
    ReleaseToken { hold: Arc<Hold>, token: FencingToken },
}

impl KeeperCommand {
    pub fn hold(&self) -> &Arc<Hold> {
        match self {
            KeeperCommand::Release { hold, .. }
            | KeeperCommand::ResolveAmbiguous { hold, .. }
            | KeeperCommand::ReleaseToken { hold, .. } => hold,
        }
    }
}

type HoldKey = (LeaseName, HolderId);

#[derive(Default)]
struct HoldTable {
    holds: HashMap<HoldKey, Weak<Hold>>,
    sweep_at: usize,
}

impl ManagerInner {
    pub fn new(coordinator: Arc<dyn Coordinator>, options: ManagerOptions) -> ManagerInner {
        ManagerInner {
            coordinator,
            options,
            listener_queue: Arc::default(),
            wake: Notify::new(),
            closing: CancellationToken::new(),
            claims_resolved: CancellationToken::new(),
            claims: TaskTracker::new(),
            table: Mutex::default(),
            schedule: Mutex::default(),
            commands: Mutex::default(),
            left_held: Mutex::default(),
        }
    }

    /// The manager's clock.
    pub fn now(&self) -> Duration {
        self.options.clock.elapsed()
    }

    /// Returns the record of this lease and holder. Creates it with `make` if no handle has it.
    pub fn hold(&self, name: &LeaseName, holder: &HolderId, make: impl FnOnce() -> Arc<Hold>) -> Arc<Hold> {
        let mut table = self.table.lock().expect(UNPOISONED);
        let key = (name.clone(), holder.clone());
        if let Some(hold) = table.holds.get(&key).and_then(Weak::upgrade) {
            return hold;
        }
        if table.holds.len() >= table.sweep_at.max(MIN_SWEEP_SIZE) {
            table.holds.retain(|_, hold| hold.strong_count() > 0);
            table.sweep_at = table.holds.len() * 2;
        }
        let hold = make();
        table.holds.insert(key, Arc::downgrade(&hold));
        hold
    }

    /// Schedules an immediate check of these leases.
    pub fn schedule_check(&self, holds: impl IntoIterator<Item = Arc<Hold>>) {
        let mut schedule = self.schedule();
        holds.into_iter().for_each(|hold| schedule.insert(Duration::ZERO, &hold));
        drop(schedule);
        self.wake.notify_one();
    }

    /// Records a grant and schedules its renewals. Returns `false`, without an effect, if the manager is shut down.
    pub fn keep_granted(&self, hold: &Arc<Hold>, grant: impl FnOnce()) -> bool {
        let mut schedule = self.schedule();
        // A shutdown cancels `closing` before it takes this lock to list the held leases. So either the shutdown lists
        // this grant, or this check sees the shutdown.
        if self.closing.is_cancelled() {
            return false;
        }
        grant();
        schedule.insert(Duration::ZERO, hold);
        drop(schedule);
        self.wake.notify_one();
        true
    }

    /// The leases that have a claim with an unknown outcome.
    pub fn all_ambiguous(&self) -> Vec<Arc<Hold>> {
        let table = self.table.lock().expect(UNPOISONED);
        table.holds.values().filter_map(Weak::upgrade).filter(|hold| hold.is_ambiguous()).collect()
    }

    /// Keeps a lease whose grant ended here, while the cluster may still count it as held. `ttl` is that of the grant.
    pub fn keep_left_held(&self, hold: &Arc<Hold>, ttl: Option<Duration>) {
        let now = self.now();
        let until = ttl.map_or(Duration::MAX, |ttl| now.saturating_add(ttl));
        let mut left_held = self.left_held();
        if left_held.len() >= MAX_LEFT_HELD {
            let over = left_held.iter().filter(|(_, (until, hold))| *until <= now && Arc::strong_count(hold) == 1);
            let oldest = over.min_by_key(|(_, (until, _))| *until).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                left_held.remove(&oldest);
                tracing::warn!(lease = %oldest.0, "too many leases are left held; a shutdown will not name this one");
            }
        }
        left_held.insert((hold.name.clone(), hold.holder.clone()), (until, hold.clone()));
    }

    /// Keeps a lease whose grant ended by the local clock alone.
    pub fn keep_unreleased(&self, hold: &Arc<Hold>) {
        if let Some(unreleased) = hold.unreleased() {
            self.keep_left_held(hold, unreleased.ttl);
        }
    }

    /// How long the cluster may count a lease as waiting or held, if the outcome of a claim with these options is unknown.
    /// The cluster grants the claim before the end of `wait`, if it does.
    pub fn ambiguous_time(&self, options: &LeaseOptions, wait: Duration) -> Duration {
        let ttl = match options.ttl_ms() {
            Some(ttl) => ttl.as_millis(),
            None => Some(MAX_TTL_MS),
        };
        ttl.map_or(Duration::MAX, |ttl| Duration::from_millis(ttl) + wait + self.options.operation_timeout)
    }

    /// The leases of [`keep_left_held`](Self::keep_left_held) that were not released since. Some may have expired. Only the
    /// cluster knows that: without a majority, cluster time stands still.
    pub fn all_left_held(&self) -> Vec<Arc<Hold>> {
        self.left_held().values().map(|(_, hold)| hold.clone()).collect()
    }

    fn left_held(&self) -> MutexGuard<'_, BTreeMap<HoldKey, (Duration, Arc<Hold>)>> {
        let mut left_held = self.left_held.lock().expect(UNPOISONED);
        let is_left =
            |hold: &Hold| hold.unreleased().is_some() || hold.undrained_token().is_some() || hold.is_ambiguous();
        left_held.retain(|_, (_, hold)| is_left(hold));
        left_held
    }

    pub fn all_held(&self) -> Vec<Arc<Hold>> {
        self.schedule().held().cloned().collect()
    }

    pub fn send_command(&self, command: KeeperCommand) {
        self.commands.lock().expect(UNPOISONED).push(command);
        self.wake.notify_one();
    }

    pub fn take_commands(&self) -> Vec<KeeperCommand> {
        std::mem::take(&mut *self.commands.lock().expect(UNPOISONED))
    }

    pub fn schedule(&self) -> MutexGuard<'_, RenewalSchedule> {
        self.schedule.lock().expect(UNPOISONED)
    }
}

const UNPOISONED: &str = "no code panics while it holds this lock";

/// The held leases and the times of their next checks.
#[derive(Default)]
pub(super) struct RenewalSchedule {
    held: BTreeMap<HoldKey, (Duration, Arc<Hold>)>,
    by_time: BTreeSet<(Duration, HoldKey)>,
}

impl RenewalSchedule {
    /// Schedules the next check of a lease. It replaces an earlier schedule.
    pub fn insert(&mut self, at: Duration, hold: &Arc<Hold>) {
        let key = (hold.name.clone(), hold.holder.clone());
        if let Some((before, _)) = self.held.insert(key.clone(), (at, hold.clone())) {
            self.by_time.remove(&(before, key.clone()));
        }
        self.by_time.insert((at, key));
    }

    /// Schedules the next check of a lease that [`next_due`](Self::next_due) returned. A check that was scheduled since
    /// then stays.
    pub fn insert_unless_scheduled(&mut self, at: Duration, hold: &Arc<Hold>) {
        let key = (hold.name.clone(), hold.holder.clone());
        let before = self.held.get(&key).map(|(at, _)| *at);
        if before.is_none_or(|before| !self.by_time.contains(&(before, key))) {
            self.insert(at, hold);
        }
    }

    /// Takes the next lease whose check is due by `now`.
    pub fn next_due(&mut self, now: Duration) -> Option<Arc<Hold>> {
        if self.by_time.first()?.0 > now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.held.get(&key).map(|(_, hold)| hold.clone())
    }

    /// Removes the lease if its grant has ended. During a release it stays, so that a shutdown waits for the outcome.
    pub fn forget_if_ended(&mut self, hold: &Arc<Hold>) {
        if hold.is_over() {
            let key = (hold.name.clone(), hold.holder.clone());
            if let Some((at, _)) = self.held.remove(&key) {
                self.by_time.remove(&(at, key));
            }
        }
    }

    /// The time of the next check. `None` if no lease is held.
    pub fn first(&self) -> Option<Duration> {
        // An infinite lease has no check during its renewal, but it is held.
        let next = self.by_time.first().map(|(at, _)| *at);
        next.or((!self.held.is_empty()).then_some(Duration::MAX))
    }

    pub fn held(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.held.values().map(|(_, hold)| hold)
    }
}

/// A release or hand-over in progress. Until it is dropped, the manager counts the lease among those of a shutdown.
pub(super) struct ReleaseInProgress<'a> {
    shared: &'a ManagerInner,
    hold: &'a Arc<Hold>,
}

impl ReleaseInProgress<'_> {
    pub fn begin<'a>(shared: &'a ManagerInner, hold: &'a Arc<Hold>) -> ReleaseInProgress<'a> {
        hold.set_releasing(true);
        ReleaseInProgress { shared, hold }
    }
}

impl Drop for ReleaseInProgress<'_> {
    fn drop(&mut self) {
        self.hold.set_releasing(false);
        // The keeper forgets the lease if its grant has ended.
        self.shared.schedule_check([self.hold.clone()]);
    }
}

/// Ends the grant and records its token when it is dropped: the release failed, or the future of a release or hand-over was
/// dropped before the answer.
pub(super) struct UnreleasedGrant<'a> {
    pub shared: &'a ManagerInner,
    pub hold: &'a Arc<Hold>,
    pub token: FencingToken,
    pub ttl: Option<Duration>,
}

impl Drop for UnreleasedGrant<'_> {
    fn drop(&mut self) {
        self.hold.give_up();
        self.hold.set_unreleased(Unreleased { token: self.token, ttl: self.ttl });
        self.shared.keep_left_held(self.hold, self.ttl);
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::client::{Lease, LeaseManager};
    use crate::testing::FakeCluster;

    const TTL: Duration = Duration::from_secs(1);

    fn lease(manager: &LeaseManager, name: &str) -> Lease {
        manager.lease_with(name, LeaseOptions::new().ttl(TTL)).expect("a name")
    }

    /// Keeps a lease whose claim has an unknown outcome.
    fn keep_unknown(shared: &ManagerInner, hold: &Arc<Hold>) {
        let time = shared.ambiguous_time(&hold.options(), Duration::ZERO);
        hold.claims(|open| open.send(shared.now() + time));
        shared.keep_left_held(hold, Some(time));
    }

    /// A program that takes a permit for each job has another holder for each.
    #[test]
    fn table_forgets_leases_without_a_handle() {
        let manager = FakeCluster::new().manager();
        let kept = manager.lease("kept").expect("a name");
        for number in 0..1_000 {
            manager.lease(format!("job-{number}")).expect("a name");
        }
        let entries = manager.owner.shared.table.lock().expect(UNPOISONED).holds.len();
        assert!(entries <= 2 * MIN_SWEEP_SIZE, "{entries} entries");
        drop(kept);
    }

    /// A program that takes a lease for each job can leave all of them held in a long outage.
    #[test]
    fn leases_left_held_without_a_handle_are_bounded() {
        let cluster = FakeCluster::new();
        let manager = cluster.manager();
        let shared = &manager.owner.shared;
        let kept = lease(&manager, "kept");
        keep_unknown(shared, &kept.hold);
        for number in 0..2 * MAX_LEFT_HELD {
            keep_unknown(shared, &lease(&manager, &format!("job-{number}")).hold);
            cluster.clock().advance(TTL * 10);
        }
        let left: Vec<String> = shared.all_left_held().iter().map(|hold| hold.name.to_string()).collect();
        assert_eq!(left.len(), MAX_LEFT_HELD);
        for name in ["kept".to_owned(), format!("job-{}", 2 * MAX_LEFT_HELD - 1)] {
            assert!(left.contains(&name), "{name} is forgotten");
        }
    }

    /// All of them may be held at the same time.
    #[test]
    fn leases_left_held_are_kept_until_their_time_is_over() {
        let manager = FakeCluster::new().manager();
        let shared = &manager.owner.shared;
        for number in 0..=MAX_LEFT_HELD {
            keep_unknown(shared, &lease(&manager, &format!("job-{number}")).hold);
        }
        assert_eq!(shared.all_left_held().len(), MAX_LEFT_HELD + 1);
    }
}
