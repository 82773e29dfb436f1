//! The local state of one lease: its grant, deadline, options and listeners.
//!
//! No function here sends a request or blocks. The deadline is an atomic beside the record, so that `is_held` takes no
//! lock.

#[cfg(all(test, feature = "testing"))]
mod transcripts;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::claims::OpenClaims;
use super::grant::{Grant, GrantAction, GrantSignals};
use super::listeners::{ListenerEvent, ListenerQueue, Listeners};
use super::metrics;
use super::{HoldState, LeaseOptions, Loss};
use crate::api::Problem;
use crate::token::FencingToken;
use crate::types::{HolderId, InvalidValue, LeaseName};

/// A keeper whose check is this late was suspended or starved.
const SUSPEND_THRESHOLD: Duration = Duration::from_millis(250);
/// How long a release waits for its listeners by default.
const DEFAULT_DRAIN: Duration = Duration::from_secs(30);
/// Values of the deadline: "not held", and "held without a deadline".
const NOT_HELD: u64 = 0;
const INFINITE: u64 = u64::MAX;

pub(super) struct Hold {
    weak_self: Weak<Hold>,
    pub name: LeaseName,
    pub holder: HolderId,
    /// Nanoseconds of the manager's clock.
    deadline: AtomicU64,
    /// Serializes acquires, releases and hand-overs.
    pub operation: tokio::sync::Mutex<()>,
    /// A claim is in flight, perhaps for its whole wait in the queue, or its acquire pauses before the next attempt or
    /// waits for the first renewal.
    claiming: watch::Sender<bool>,
    /// Guards of one process exclude each other here: to the cluster they are one holder.
    pub exclusive: Arc<tokio::sync::Mutex<()>>,
    state: watch::Sender<HoldState>,
    record: Mutex<HoldRecord>,
    /// The answer to the last renewal, if the cluster refused the request.
    renewal_refusal: Mutex<Option<Box<Problem>>>,
    listener_queue: Arc<ListenerQueue>,
    drift_permille: u32,
}

struct HoldRecord {
    options: LeaseOptions,
    grant: Option<Grant>,
    /// The claims whose outcome is unknown.
    claims: OpenClaims,
    /// A grant that ended by the local clock alone, or whose release failed. The cluster may still count it as held.
    unreleased: Option<Unreleased>,
    /// A grant that was not released, because its work did not end in time. Only a new acquire releases it.
    undrained_token: Option<FencingToken>,
    /// A release or a hand-over is in progress: it drains, or waits for its answer.
    is_releasing: bool,
    listeners: Listeners,
}

/// A grant that has ended here, and perhaps not at the cluster.
#[derive(Clone, Copy)]
pub(super) struct Unreleased {
    pub token: FencingToken,
    /// `None`: infinite.
    pub ttl: Option<Duration>,
}

/// Whether the work under a grant may run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GrantPhase {
    Held,
    /// A hand-over is in progress. The grant ends, or is held again.
    Paused,
    Ended,
}

/// The next action of the keeper for one lease.
pub(super) enum KeeperAction {
    Nothing,
    /// Check again at this time.
    CheckAt(Duration),
    Renew {
        token: FencingToken,
        ttl: Option<Duration>,
    },
}

impl Hold {
    pub fn new(
        name: LeaseName,
        holder: HolderId,
        options: LeaseOptions,
        drift_permille: u32,
        listener_queue: Arc<ListenerQueue>,
    ) -> Arc<Hold> {
        Arc::new_cyclic(|me| Hold {
            weak_self: me.clone(),
            name,
            holder,
            deadline: AtomicU64::new(NOT_HELD),
            operation: tokio::sync::Mutex::default(),
            claiming: watch::Sender::new(false),
            exclusive: Arc::default(),
            state: watch::Sender::new(HoldState::Idle),
            record: Mutex::new(HoldRecord {
                options,
                grant: None,
                claims: OpenClaims::default(),
                unreleased: None,
                undrained_token: None,
                is_releasing: false,
                listeners: Listeners::default(),
            }),
            renewal_refusal: Mutex::default(),
            listener_queue,
            drift_permille,
        })
    }

    /// Takes the operation lock to end the grant. Returns `None` if a claim is in flight or will be repeated: there is no
    /// grant then, and the acquire can keep the lock for a long time.
    pub async fn lock_grant(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let mut claiming = self.claiming.subscribe();
        tokio::select! {
            biased;
            operation = self.operation.lock() => Some(operation),
            _ = claiming.wait_for(|is_claiming| *is_claiming) => None,
        }
    }

    /// Marks a claim as in flight, or as to be repeated, until the returned value is dropped. The caller has the operation
    /// lock.
    pub fn begin_claim(&self) -> ClaimInFlight<'_> {
        self.claiming.send_replace(true);
        ClaimInFlight(self)
    }

    /// Sets the options of the next acquire.
    pub fn set_options(&self, options: LeaseOptions) -> Result<(), InvalidValue> {
        options.check()?;
        let before = std::mem::replace(&mut self.record().options, options);
        // The record is unlocked again: a value that these closures own may use the lease when it is dropped.
        drop(before);
        Ok(())
    }

    pub fn options(&self) -> LeaseOptions {
        self.record().options.clone()
    }

    /// How long the work of the current grant, or of the next one, may take to end.
    pub fn drain(&self) -> Duration {
        let record = self.record();
        let options = record.grant.as_ref().map_or(&record.options, |grant| &grant.options);
        options.drain.unwrap_or(DEFAULT_DRAIN)
    }

    pub fn listeners(&self) -> ListenersGuard<'_> {
        ListenersGuard(self.record())
    }

    pub fn states(&self) -> watch::Receiver<HoldState> {
        self.state.subscribe()
    }

    /// Whether the lease is held at `now`, by local knowledge.
    pub fn is_held(&self, now: Duration) -> bool {
        nanos(now) < self.deadline.load(Ordering::Acquire)
    }

    /// Time left at `now`: `None` if the lease is not held, [`Duration::MAX`] for an infinite ttl.
    pub fn remaining(&self, now: Duration) -> Option<Duration> {
        match self.deadline.load(Ordering::Acquire) {
            INFINITE => Some(Duration::MAX),
            deadline => Duration::from_nanos(deadline).checked_sub(now).filter(|left| !left.is_zero()),
        }
    }

    /// The token, if the lease is held at `now`.
    pub fn token(&self, now: Duration) -> Option<FencingToken> {
        let record = self.record();
        record.grant.as_ref().filter(|_| self.is_held(now)).map(|grant| grant.token)
    }

    /// Whether the work under the grant with this token may run at `now`.
    pub fn phase(&self, token: FencingToken, now: Duration) -> GrantPhase {
        let record = self.record();
        match record.grant.as_ref().filter(|grant| grant.token == token) {
            Some(grant) if grant.is_paused => GrantPhase::Paused,
            Some(_) if self.is_held(now) => GrantPhase::Held,
            _ => GrantPhase::Ended,
        }
    }

    /// The token of the current grant, also if its deadline has passed and the keeper has not ended it yet.
    pub fn granted_token(&self) -> Option<FencingToken> {
        self.record().grant.as_ref().map(|grant| grant.token)
    }

    /// The signals of the current grant; cancelled signals if there is none.
    pub fn signals(&self) -> GrantSignals {
        match &self.record().grant {
            Some(grant) => grant.signals.clone(),
            None => GrantSignals::cancelled(Loss::Released),
        }
    }

    /// The signals of the grant with this token; cancelled signals if it has ended.
    pub fn signals_of(&self, token: FencingToken) -> GrantSignals {
        let record = self.record();
        match (&record.grant, *self.state.borrow()) {
            (Some(grant), _) if grant.token == token => grant.signals.clone(),
            (_, HoldState::Lost { token: lost, why }) if lost == token => GrantSignals::cancelled(why),
            _ => GrantSignals::cancelled(Loss::Released),
        }
    }

    /// Changes the claims whose outcome is unknown.
    pub fn claims<T>(&self, change: impl FnOnce(&mut OpenClaims) -> T) -> T {
        change(&mut self.record().claims)
    }

    /// Whether the cluster may apply a claim after a read at `now` that does not show it.
    pub fn is_abandoned(&self, now: Duration) -> bool {
        self.record().claims.is_untraced(now)
    }

    /// Whether the outcome of a claim is unknown.
    pub fn is_ambiguous(&self) -> bool {
        self.record().claims.is_open()
    }

    /// The grant that ended here and that the cluster may still count as held.
    pub fn unreleased(&self) -> Option<Unreleased> {
        self.record().unreleased
    }

    /// Whether the grant with this token ended here, and perhaps not at the cluster.
    pub fn is_unreleased(&self, token: FencingToken) -> bool {
        self.unreleased().is_some_and(|unreleased| unreleased.token == token)
    }

    /// Records that the release of a grant has no conclusive answer.
    pub fn set_unreleased(&self, unreleased: Unreleased) {
        self.record().unreleased = Some(unreleased);
    }

    pub fn set_releasing(&self, is_releasing: bool) {
        self.record().is_releasing = is_releasing;
    }

    /// Whether the lease has neither a grant nor a release in progress.
    pub fn is_over(&self) -> bool {
        let record = self.record();
        record.grant.is_none() && !record.is_releasing
    }

    /// Ends the grant locally, although its work did not end in time. The cluster still counts it as held.
    pub fn give_up_undrained(&self) {
        if let Some(token) = self.give_up() {
            self.record().undrained_token = Some(token);
        }
    }

    /// The ttl of the grant. `None`: it is infinite, or there is no grant.
    pub fn granted_ttl(&self) -> Option<Duration> {
        self.record().grant.as_ref().and_then(|grant| grant.ttl)
    }

    /// The token of a grant that ended here although its work did not end in time.
    pub fn undrained_token(&self) -> Option<FencingToken> {
        self.record().undrained_token
    }

    /// The token that the cluster would return for another claim, although the work under it may still run.
    pub fn token_before_claim(&self) -> Option<FencingToken> {
        let record = self.record();
        record.unreleased.map(|unreleased| unreleased.token).or(record.undrained_token)
    }

    /// The token of a grant that this process gave up and whose release failed.
    pub fn failed_release(&self) -> Option<FencingToken> {
        let released = match *self.state.borrow() {
            HoldState::Released { token } => Some(token),
            _ => None,
        };
        self.unreleased().map(|unreleased| unreleased.token).filter(|token| Some(*token) == released)
    }

    pub fn forget_unreleased_token(&self, token: FencingToken) {
        let mut record = self.record();
        record.unreleased.take_if(|unreleased| unreleased.token == token);
        record.undrained_token.take_if(|undrained_token| *undrained_token == token);
    }

    /// Starts the grant of a claim with these options that was sent at `sent`.
    pub fn granted(
        &self,
        options: LeaseOptions,
        token: FencingToken,
        ttl: Option<Duration>,
        sent: Duration,
        now: Duration,
    ) {
        *self.renewal_refusal() = None;
        let mut record = self.record();
        record.claims.clear();
        // A ttl of the options is compared when the options are set.
        if options.ttl.is_none()
            && let Some(half) = ttl.map(|ttl| ttl / 2).filter(|half| options.grace > *half)
        {
            tracing::warn!(lease = %self.name, grace = ?options.grace, used = ?half, "the grace is above half the ttl");
        }
        let grant = Grant { options, ..Grant::new(token, ttl, sent, self.drift_permille) };
        let grant = record.grant.insert(grant);
        grant.end_at_longest_hold(now);
        self.set_deadline(grant.deadline);
        self.state.send_replace(HoldState::Held { token, left: grant.left(now) });
        self.notify_listeners(ListenerEvent::Acquired(token), &record.listeners);
        metrics::acquired();
    }

    /// Applies a successful renewal that was sent at `sent`.
    pub fn renewed(&self, token: FencingToken, ttl: Option<Duration>, sent: Duration, now: Duration) {
        let mut record = self.record();
        let Some(grant) = record.grant.as_mut().filter(|grant| grant.token == token) else { return };
        grant.is_renewing = false;
        if grant.is_expired(now) || grant.ending.is_some() || grant.is_paused {
            // Too late: a caller of `is_held` or a listener may have seen the end of the grant already.
            return;
        }
        metrics::renewed(grant.left(now));
        grant.renew(ttl, sent, self.drift_permille);
        self.set_deadline(grant.deadline);
        self.state.send_replace(HoldState::Held { token, left: grant.left(now) });
    }

    /// Records a renewal that had no conclusive answer.
    pub fn renewal_failed(&self, token: FencingToken, now: Duration) {
        let mut record = self.record();
        let Some(grant) = record.grant.as_mut().filter(|grant| grant.token == token) else { return };
        grant.is_renewing = false;
        grant.retry(now);
        metrics::renewal_failed();
        if grant.ending.is_none() && !grant.is_expired(now) {
            self.state.send_replace(HoldState::AtRisk { token, left: grant.left(now), failures: grant.failures });
        }
    }

    /// The answer to the last renewal, if the cluster refused the request.
    pub fn renewal_refusal(&self) -> MutexGuard<'_, Option<Box<Problem>>> {
        self.renewal_refusal.lock().expect("no code panics while it holds this lock")
    }

    /// Forgets a renewal in flight. Its answer will not arrive.
    pub fn forget_renewal(&self) {
        if let Some(grant) = &mut self.record().grant {
            grant.is_renewing = false;
        }
    }

    /// Whether a hand-over of this grant is in progress.
    pub fn is_being_handed_over(&self, token: FencingToken) -> bool {
        self.record().grant.as_ref().is_some_and(|grant| grant.token == token && grant.is_paused)
    }

    /// Applies the refusal of a renewal at `now`.
    pub fn renewal_refused(&self, token: FencingToken, why: Loss, now: Duration) {
        if why == Loss::HandedOver && self.is_being_handed_over(token) {
            // The hand-over in progress has succeeded, if it is that one. Its own answer decides.
            self.update_grant(token, |grant| {
                grant.is_renewing = false;
                grant.retry(now);
            });
        } else {
            self.lose(token, why);
        }
    }

    /// Ends the grant with this token as lost.
    pub fn lose(&self, token: FencingToken, why: Loss) {
        let mut record = self.record();
        let Some(grant) = record.grant.take_if(|grant| grant.token == token) else { return };
        self.deadline.store(NOT_HELD, Ordering::Release);
        record.unreleased = why.is_by_own_clock().then_some(Unreleased { token, ttl: grant.ttl });
        self.state.send_replace(HoldState::Lost { token, why });
        grant.signals.cancel(why);
        self.notify_listeners(ListenerEvent::Lost(why), &record.listeners);
        // The grant is dropped after that, with the closures of its options.
        drop(record);
        metrics::lost(why);
        tracing::warn!(lease = %self.name, %token, %why, "lease lost");
    }

    /// Ends a grant that is not held at `now`: the keeper has not seen its deadline yet. The caller has the operation lock.
    /// Otherwise, a claim could replace the grant without a signal to its work, and with its token.
    pub fn end_unheld_grant(&self, now: Duration) {
        if self.is_held(now) {
            return;
        }
        let ended = self.record().grant.as_ref().map(|grant| (grant.token, grant.ending.unwrap_or(Loss::Unreachable)));
        if let Some((token, why)) = ended {
            self.lose(token, why);
        }
    }

    /// Ends the grant locally. The caller sends the release to the cluster after that.
    pub fn give_up(&self) -> Option<FencingToken> {
        let grant = self.record().grant.take()?;
        self.deadline.store(NOT_HELD, Ordering::Release);
        self.state.send_replace(HoldState::Released { token: grant.token });
        grant.signals.cancel(Loss::Released);
        metrics::released();
        Some(grant.token)
    }

    /// Marks the lease as not held during a hand-over. Returns `None` if the lease is not held.
    pub fn pause(&self, now: Duration) -> Option<FencingToken> {
        let mut record = self.record();
        let grant = record.grant.as_mut().filter(|_| self.is_held(now))?;
        grant.is_paused = true;
        self.deadline.store(NOT_HELD, Ordering::Release);
        Some(grant.token)
    }

    /// Restores the grant after a refused hand-over.
    pub fn resume(&self) {
        let mut record = self.record();
        if let Some(grant) = &mut record.grant {
            grant.is_paused = false;
            let deadline = grant.deadline;
            self.set_deadline(deadline);
            grant.signals.resumed.notify_waiters();
        }
    }

    /// The next action at `now`. `late` is the delay of this check behind its planned time.
    pub fn next_action(&self, now: Duration, late: Duration) -> KeeperAction {
        let mut record = self.record();
        let Some(grant) = &mut record.grant else { return KeeperAction::Nothing };
        let grace = grant.options.grace;
        let (token, ttl, since) = (grant.token, grant.ttl, grant.since);
        let action = grant.next_action(now, late >= SUSPEND_THRESHOLD, grace);
        if let GrantAction::Ending { left, why, is_stopping, .. } = action {
            // The state changes before the signal: a task that the signal wakes reads `Ending`.
            self.set_ending(token, left, why);
            if is_stopping {
                grant.signals.stopping.cancel();
            }
        }
        drop(record);
        match action {
            GrantAction::Idle => KeeperAction::Nothing,
            GrantAction::Wait(at) | GrantAction::Ending { at, .. } => KeeperAction::CheckAt(at),
            GrantAction::Expired(why) => {
                self.lose(token, why);
                KeeperAction::Nothing
            }
            GrantAction::Renew => match self.renewal_stop_reason(token, ttl, since, now) {
                None => {
                    self.update_grant(token, |grant| grant.is_renewing = true);
                    KeeperAction::Renew { token, ttl }
                }
                Some(why) => {
                    self.update_grant(token, |grant| grant.ending = Some(why));
                    KeeperAction::CheckAt(now)
                }
            },
        }
    }

    /// When the keeper checks the grant with this token during its renewal. `None`: the grant has ended, or it is infinite.
    pub fn check_during_renewal(&self, token: FencingToken, now: Duration) -> Option<Duration> {
        let mut record = self.record();
        let grant = record.grant.as_mut().filter(|grant| grant.token == token && grant.is_busy())?;
        let grace = grant.options.grace;
        match grant.next_action(now, false, grace) {
            GrantAction::Wait(at) | GrantAction::Ending { at, .. } => Some(at),
            GrantAction::Idle | GrantAction::Renew | GrantAction::Expired(_) => None,
        }
    }

    /// Whether a batch that is sent at `now` can include this lease, although its renewal is not due yet.
    pub fn can_renew_early(&self, now: Duration) -> bool {
        self.record().grant.as_ref().is_some_and(|grant| grant.can_renew_early(now))
    }

    /// Makes the renewal due at `now`.
    pub fn renew_now(&self, now: Duration) {
        if let Some(grant) = &mut self.record().grant {
            grant.next_renewal = grant.next_renewal.min(now);
        }
    }

    /// Why the options of the grant forbid a renewal, if they do. The progress check is user code, so it runs outside the
    /// lock.
    fn renewal_stop_reason(
        &self,
        token: FencingToken,
        ttl: Option<Duration>,
        since: Duration,
        now: Duration,
    ) -> Option<Loss> {
        let (longest, progress) = {
            let record = self.record();
            let options = &record.grant.as_ref().filter(|grant| grant.token == token)?.options;
            (options.longest_hold, options.renew_while.clone())
        };
        let ttl = ttl?;
        if longest.is_some_and(|longest| now + ttl > since.saturating_add(longest)) {
            return Some(Loss::HeldLongest);
        }
        let progress = progress?;
        let goes_on = catch_unwind(AssertUnwindSafe(|| progress())).unwrap_or(false);
        (!goes_on).then_some(Loss::Stalled)
    }

    fn update_grant(&self, token: FencingToken, change: impl FnOnce(&mut Grant)) {
        if let Some(grant) = self.record().grant.as_mut().filter(|grant| grant.token == token) {
            change(grant);
        }
    }

    fn set_ending(&self, token: FencingToken, left: Duration, why: Loss) {
        self.state.send_if_modified(|state| {
            let is_new = !matches!(state, HoldState::Ending { .. });
            if is_new {
                *state = HoldState::Ending { token, left, why };
            }
            is_new
        });
    }

    fn notify_listeners(&self, event: ListenerEvent, listeners: &Listeners) {
        let hold = self.weak_self.upgrade().expect("a method of the hold is running, so its Arc exists");
        self.listener_queue.push(hold, event, listeners);
    }

    fn set_deadline(&self, deadline: Option<Duration>) {
        self.deadline.store(deadline.map_or(INFINITE, nanos), Ordering::Release);
    }

    fn record(&self) -> MutexGuard<'_, HoldRecord> {
        self.record.lock().expect("no code panics while it holds this lock")
    }
}

/// A claim in flight.
pub(super) struct ClaimInFlight<'a>(&'a Hold);

impl Drop for ClaimInFlight<'_> {
    fn drop(&mut self) {
        self.0.claiming.send_replace(false);
    }
}

/// Access to the listeners. It holds the lock of the record.
pub(super) struct ListenersGuard<'a>(MutexGuard<'a, HoldRecord>);

impl std::ops::Deref for ListenersGuard<'_> {
    type Target = Listeners;
    fn deref(&self) -> &Listeners {
        &self.0.listeners
    }
}

impl std::ops::DerefMut for ListenersGuard<'_> {
    fn deref_mut(&mut self) -> &mut Listeners {
        &mut self.0.listeners
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(INFINITE - 1)
}
