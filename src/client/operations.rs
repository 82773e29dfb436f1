//! The requests to the cluster for one lease. The operation lock of the lease serializes them: an operation takes the
//! lock itself, or its caller holds it.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio_util::task::AbortOnDropHandle;

use super::claims::{RESOLVE_INTERVAL, SentClaim, shows_claim};
use super::error::{not_withdrawn, refused, runtime_ended, unknown_standing};
use super::hold::{Hold, Unreleased};
use super::shared::{KeeperCommand, ManagerInner, ReleaseInProgress, UnreleasedGrant};
use super::{AcquireOptions, CallError, Coordinator, LeaseOptions, Loss, RetryBudget, metrics};
use crate::api::{Acquire, Code, EventKind, HandOver, LeaseInfo, Release, RenewBatch, RenewItem, Standing};
use crate::token::FencingToken;
use crate::trace;
use crate::types::{HolderId, ceil_ms};

/// After this time, another request withdraws an abandoned claim that still waits.
const WITHDRAW_AFTER: Duration = Duration::from_millis(250);

/// Acquires the lease unless it is held already. The keeper renews it from then on. Each claim has the options `own`, or
/// those that a handle of the lease has set last.
pub(super) async fn acquire(
    shared: &Arc<ManagerInner>,
    hold: &Arc<Hold>,
    own: Option<LeaseOptions>,
    mut options: AcquireOptions,
) -> Result<FencingToken, CallError> {
    let wait = options.wait_for(own.as_ref().unwrap_or(&hold.options()))?;
    let (begun, operation_timeout) = (shared.now(), shared.options.operation_timeout);
    let left = || wait.saturating_sub(shared.now().saturating_sub(begun));
    let limit = || left() + operation_timeout;
    let locked = lock_with_retries(shared, &mut options, limit, || hold.operation.lock()).await?;
    let Some((_operation, rest)) = locked else {
        return Err(refused(Code::WaitTimeout, "another acquire of this lease is in progress in this process"));
    };
    // The wait for that acquire is part of the time of the first attempt.
    let mut limit = Some(rest).filter(|rest| *rest < operation_timeout);
    let (mut retries, mut unknown) = (options.retries, None);
    loop {
        if shared.closing.is_cancelled() {
            return Err(ended_by_shutdown(shared, hold).await);
        }
        if let Some(token) = hold.token(shared.now()) {
            return Ok(token);
        }
        let error = match claim(shared, hold, own.as_ref(), left(), limit).await {
            Ok(token) => return Ok(token),
            Err(error) => error,
        };
        metrics::not_acquired(&error);
        if retries == 0 {
            // That the last attempt is not done proves nothing about an earlier one.
            return Err(match (error, unknown) {
                (CallError::Unavailable(_), Some(unknown)) => unknown,
                // A shutdown of the manager may have resolved the earlier attempt.
                (CallError::ShutDown, Some(unknown)) if hold.is_ambiguous() => unknown,
                (CallError::Refused(problem), Some(CallError::Unknown { why, .. })) => {
                    CallError::Unknown { why, last: Some(problem) }
                }
                (error, _) => error,
            });
        }
        retries -= 1;
        limit = None;
        if let CallError::Unknown { .. } = error {
            unknown = Some(error);
        }
        // The caller may leave during the pause, after an attempt that was granted.
        let unresolved = unknown.is_some().then(|| UnresolvedAttempt { shared, hold });
        let _claiming = hold.begin_claim();
        tokio::select! {
            () = shared.closing.cancelled() => {}
            () = tokio::time::sleep(options.retry_delay) => {}
        }
        std::mem::forget(unresolved);
    }
}

/// Takes a lock that another part of this process can have: within `limit`, and again after each retry of `options`.
/// Returns the lock with the rest of the limit, or `None` after the last retry.
pub(super) async fn lock_with_retries<L, F: Future<Output = L>>(
    shared: &ManagerInner,
    options: &mut AcquireOptions,
    limit: impl Fn() -> Duration,
    lock: impl Fn() -> F,
) -> Result<Option<(L, Duration)>, CallError> {
    loop {
        let (asked, limit) = (tokio::time::Instant::now(), limit());
        if shared.closing.is_cancelled() {
            return Err(CallError::ShutDown);
        }
        let mut lock = pin!(lock());
        if let Some(locked) = lock.as_mut().now_or_never() {
            return Ok(Some((locked, limit)));
        }
        let locked = tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(CallError::ShutDown),
            locked = tokio::time::timeout(limit, lock) => locked,
        };
        match locked {
            Ok(locked) => return Ok(Some((locked, limit.saturating_sub(asked.elapsed())))),
            Err(_) if options.retries == 0 => return Ok(None),
            Err(_) => options.retries -= 1,
        }
        tokio::select! {
            () = shared.closing.cancelled() => {}
            () = tokio::time::sleep(options.retry_delay) => {}
        }
    }
}

/// Resolves a claim with an unknown outcome when it is dropped.
struct UnresolvedAttempt<'a> {
    shared: &'a ManagerInner,
    hold: &'a Arc<Hold>,
}

impl Drop for UnresolvedAttempt<'_> {
    fn drop(&mut self) {
        self.shared.send_command(KeeperCommand::ResolveAmbiguous { hold: self.hold.clone(), claim: None });
    }
}

/// Sends a claim. Returns after `limit`, if there is one. The claim then goes on, and the keeper resolves it.
async fn claim(
    shared: &Arc<ManagerInner>,
    hold: &Arc<Hold>,
    own: Option<&LeaseOptions>,
    wait: Duration,
    limit: Option<Duration>,
) -> Result<FencingToken, CallError> {
    hold.end_unheld_grant(shared.now());
    shared.keep_unreleased(hold);
    if let Some(own) = own {
        hold.set_options(own.clone())?;
    }
    let options = own.cloned().unwrap_or_else(|| hold.options());
    if options.should_hold.as_ref().is_some_and(|should_hold| !should_hold()) {
        return Err(refused(Code::ShouldNotHold, "another member should hold the lease"));
    }
    if let Some(token) = hold.token_before_claim() {
        // The cluster would answer a claim with the token of the old grant. Work under that grant may still run, so the
        // new work must get a new token.
        send_release(shared, hold, token).await?;
    }
    // A shutdown that begins after this check waits for the claim. One that began before it, perhaps during the release
    // above, may have ended: nothing would resolve the claim.
    let in_flight = shared.claims.token();
    if shared.closing.is_cancelled() {
        return Err(CallError::ShutDown);
    }
    let wait_ms = Some(ceil_ms(wait)).filter(|wait| *wait > 0);
    let claim = Acquire { wait_ms, ..claim_request(hold, &options) };
    let sent = shared.now();
    // Until the answer arrives, the cluster may have granted the claim. A shutdown resolves it.
    let time = shared.ambiguous_time(&options, wait);
    let claim = SentClaim::send(shared, hold, claim, time);
    let number = claim.number;
    let mut pending = AmbiguousClaim { shared, hold, time, number, claim: Some(claim), is_resolved: false };
    drop(in_flight);
    let answer = match limit {
        Some(limit) => tokio::time::timeout(limit, pending.answer()).await,
        None => Ok(pending.answer().await),
    };
    let Ok(answer) = answer else {
        return Err(CallError::Unknown { why: "the time ended before the answer to the claim".to_owned(), last: None });
    };
    let granted = match answer {
        Some(Ok(lease)) => match confirm(shared, hold, lease, sent).await {
            // The shutdown releases the grant: it is not held here yet.
            Err(_) if shared.closing.is_cancelled() => {
                return Err(pending.resolved(ended_by_shutdown(shared, hold).await));
            }
            confirmed => confirmed,
        },
        Some(Err(error)) => Err(error),
        None => return Err(pending.resolved(ended_by_shutdown(shared, hold).await)),
    };
    match granted {
        Ok((lease, sent)) => {
            let grant = || hold.granted(options, lease.token, remaining_time(&lease), sent, shared.now());
            if shared.keep_granted(hold, grant) {
                return Ok(pending.resolved(lease.token));
            }
            Err(pending.resolved(ended_by_shutdown(shared, hold).await))
        }
        Err(error) => {
            match &error {
                CallError::Unknown { .. } => {
                    hold.claims(|open| open.leave(number));
                    shared.keep_left_held(hold, Some(time));
                }
                // This claim is not granted. That proves nothing about another one.
                _ => hold.claims(|open| open.close(number)),
            }
            Err(pending.resolved(error))
        }
    }
}

/// The error of an acquire that a shutdown ended, after the shutdown has resolved its claim.
pub(super) async fn ended_by_shutdown(shared: &ManagerInner, hold: &Hold) -> CallError {
    shared.claims_resolved.cancelled().await;
    if hold.is_ambiguous() { not_withdrawn() } else { CallError::ShutDown }
}

/// The claim for these options, without a wait.
fn claim_request(hold: &Hold, options: &LeaseOptions) -> Acquire {
    Acquire {
        holder: hold.holder.clone(),
        ttl_ms: options.ttl_ms(),
        wait_ms: None,
        lock_delay_ms: options.lock_delay_ms(),
        limit: options.requested_limit(),
        metadata: options.metadata.clone(),
    }
}

/// Renews a grant after a long wait. The time of the grant is then known only within the wait, so the deadline is
/// computed from the renewal.
async fn confirm(
    shared: &Arc<ManagerInner>,
    hold: &Hold,
    lease: LeaseInfo,
    sent: Duration,
) -> Result<(LeaseInfo, Duration), CallError> {
    let waited = shared.now().saturating_sub(sent);
    if ttl(&lease).is_none_or(|ttl| waited <= ttl / 3) {
        return Ok((lease, sent));
    }
    let item = RenewItem::new(hold.name.clone(), lease.token);
    let batch = RenewBatch::new(hold.holder.clone(), vec![item]);
    let _claiming = hold.begin_claim();
    let sent = shared.now();
    let renewed = shared.coordinator.renew(batch, RetryBudget::within(shared.options.operation_timeout)).await;
    // After any error here the grant may still be in force.
    let unknown = |why: String| CallError::Unknown { why, last: None };
    let result = renewed
        .map_err(|error| unknown(format!("the lease was granted, and its renewal failed: {error}")))?
        .results
        .pop();
    match result.map(|result| (result.lease, result.problem)) {
        Some((Some(lease), _)) => Ok((lease, sent)),
        Some((None, Some(problem))) => Err(CallError::Refused(Box::new(problem))),
        _ => Err(unknown("the lease was granted, and the answer to its renewal is invalid".to_owned())),
    }
}

/// Drains and releases the lease, or only this grant. Returns `false` if it was not held.
pub(super) async fn release(
    shared: &Arc<ManagerInner>,
    hold: &Arc<Hold>,
    only: Option<FencingToken>,
) -> Result<bool, CallError> {
    let Some(_operation) = hold.lock_grant().await else { return Ok(false) };
    let is_wanted = |token: &FencingToken| only.is_none_or(|only| only == *token);
    let granted = hold.granted_token();
    if granted.is_none() {
        let (failed, undrained) = (hold.failed_release().filter(is_wanted), hold.undrained_token().filter(is_wanted));
        return match (failed, undrained) {
            (Some(token), _) => send_release(shared, hold, token).await,
            (None, Some(token)) => check_undrained(shared, hold, token).await.map(|()| false),
            (None, None) if only.is_none() && hold.is_ambiguous() => release_ambiguous(shared, hold).await,
            (None, None) => Ok(false),
        };
    }
    if !granted.as_ref().is_some_and(is_wanted) {
        return Ok(false);
    }
    let _in_progress = ReleaseInProgress::begin(shared, hold);
    let ttl = hold.granted_ttl();
    if !drain(hold).await {
        shared.keep_left_held(hold, ttl);
        return Err(refused(Code::NotDrained, NOT_DRAINED));
    }
    // The local grant ends first: this process must not count the lease as held after the cluster has released it.
    match hold.give_up() {
        Some(token) => {
            let unreleased = UnreleasedGrant { shared, hold, token, ttl };
            let released = send_release(shared, hold, token).await;
            if released.is_ok() {
                std::mem::forget(unreleased);
            }
            released
        }
        // The deadline passed while the listeners ran.
        None => match hold.unreleased().filter(|unreleased| Some(unreleased.token) == granted) {
            Some(unreleased) => send_release(shared, hold, unreleased.token).await.map(|_| false),
            None => Ok(false),
        },
    }
}

/// Releases a grant that ended here and perhaps not at the cluster, and asks the cluster for a grant that was not released
/// because its work did not end.
pub(super) async fn release_left_held(shared: &ManagerInner, hold: &Hold) -> Result<(), CallError> {
    let _operation = match hold.operation.try_lock() {
        Ok(operation) => operation,
        // An acquire in progress releases such a grant first. It can take longer than a shutdown may.
        Err(_) if hold.failed_release().is_none() && hold.undrained_token().is_none() => {
            let ended = tokio::time::timeout(WITHDRAW_AFTER, hold.operation.lock()).await;
            let why = "an acquire in progress has not released the lease yet".to_owned();
            ended.map_err(|_| CallError::Unknown { why, last: None })?
        }
        Err(_) => hold.operation.lock().await,
    };
    if let Some(unreleased) = hold.unreleased() {
        return send_release(shared, hold, unreleased.token).await.map(drop);
    }
    match hold.undrained_token() {
        Some(token) => check_undrained(shared, hold, token).await,
        None => Ok(()),
    }
}

/// Returns an error if a grant may be in force that was not released because its work did not end.
async fn check_undrained(shared: &ManagerInner, hold: &Hold, token: FencingToken) -> Result<(), CallError> {
    let is_over = match standing(shared, hold).await {
        Ok(Standing::Holds { lease, .. }) => lease.token != token,
        Ok(Standing::Ended { .. } | Standing::Waits { .. } | Standing::Unknown) => true,
        Ok(Standing::Other) | Err(_) => false,
    };
    if is_over {
        hold.forget_unreleased_token(token);
    }
    is_over.then_some(()).ok_or_else(|| refused(Code::NotDrained, NOT_DRAINED))
}

const NOT_DRAINED: &str = "the before-release listeners did not finish in time: the lease expires by its ttl";

/// Waits for the before-release listeners. If they take too long, the local grant ends and the lease is not released.
async fn drain(hold: &Hold) -> bool {
    let listeners = hold.listeners().before_release();
    let drained = async {
        for listener in listeners {
            // A listener that panicked has ended. The others still run.
            if AssertUnwindSafe(async { listener().await }).catch_unwind().await.is_err() {
                tracing::error!(lease = %hold.name, "a before-release listener panicked");
            }
        }
    };
    let in_time = tokio::time::timeout(hold.drain(), drained).await.is_ok();
    if !in_time {
        hold.give_up_undrained();
    }
    in_time
}

/// Releases a grant. If the answer is lost, the history of the lease shows whether the release was applied.
pub(super) async fn send_release(shared: &ManagerInner, hold: &Hold, token: FencingToken) -> Result<bool, CallError> {
    let release = Release::new(hold.holder.clone(), token);
    let budget = RetryBudget::within(shared.options.operation_timeout);
    let released = match shared.coordinator.release(hold.name.clone(), release, budget).await {
        Ok(answer) => answer.released,
        Err(unknown @ CallError::Unknown { .. }) => was_released(shared, hold, token).await.ok_or(unknown)?,
        Err(error) => return Err(error),
    };
    hold.forget_unreleased_token(token);
    Ok(released)
}

/// Whether the grant was released. `None` if the grant is in force, or if the cluster does not answer or has forgotten it.
async fn was_released(shared: &ManagerInner, hold: &Hold, token: FencingToken) -> Option<bool> {
    match standing(shared, hold).await.ok()? {
        Standing::Holds { lease, .. } if lease.token == token => None,
        Standing::Ended { event } => Some(event.token == token && event.event == EventKind::Released),
        Standing::Holds { .. } | Standing::Waits { .. } => Some(false),
        Standing::Unknown | Standing::Other => None,
    }
}

/// Hands the lease over, or only this grant: to this waiter, or to the first one.
pub(super) async fn hand_over(
    shared: &Arc<ManagerInner>,
    hold: &Arc<Hold>,
    only: Option<FencingToken>,
    to: Option<HolderId>,
) -> Result<bool, CallError> {
    let Some(_operation) = hold.lock_grant().await else { return Ok(false) };
    if hold.granted_token().is_none_or(|granted| only.is_some_and(|only| only != granted)) {
        return Ok(false);
    }
    let _in_progress = ReleaseInProgress::begin(shared, hold);
    let ttl = hold.granted_ttl();
    if !drain(hold).await {
        shared.keep_left_held(hold, ttl);
        return Err(refused(Code::NotDrained, NOT_DRAINED));
    }
    let Some(token) = hold.pause(shared.now()) else { return Ok(false) };
    // If the caller leaves now, nothing else would end the pause.
    let unreleased = UnreleasedGrant { shared, hold, token, ttl };
    // A guard does not poll its work during the request, and the work may have called this function. So a task completes
    // the hand-over.
    let sent = send_hand_over(shared.clone(), hold.clone(), Unreleased { token, ttl }, to);
    let task = AbortOnDropHandle::new(tokio::spawn(trace::in_current(sent)));
    let answer = task.await.or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(runtime_ended()),
    })?;
    std::mem::forget(unreleased);
    answer
}

async fn send_hand_over(
    shared: Arc<ManagerInner>,
    hold: Arc<Hold>,
    grant: Unreleased,
    to: Option<HolderId>,
) -> Result<bool, CallError> {
    let token = grant.token;
    let body = HandOver { holder: hold.holder.clone(), token, to };
    let budget = RetryBudget::within(shared.options.operation_timeout);
    let answer = shared.coordinator.hand_over(hold.name.clone(), body, budget).await;
    match answer {
        Ok(_) => {
            hold.give_up();
            Ok(true)
        }
        Err(CallError::Refused(problem)) if problem.code == Code::Lost => {
            hold.lose(token, problem.why.map_or(Loss::Forgotten, Loss::from));
            Ok(false)
        }
        Err(error @ CallError::Unknown { .. }) => {
            hold.give_up();
            // If the cluster did not do it, it would return this token for another acquire.
            hold.set_unreleased(grant);
            shared.keep_left_held(&hold, grant.ttl);
            Err(error)
        }
        Err(error) => {
            hold.resume();
            shared.schedule_check([hold]);
            Err(error)
        }
    }
}

/// Asks the cluster whether the grant is in force. If it is not, records the loss.
pub(super) async fn check(shared: &ManagerInner, hold: &Hold) -> Result<bool, CallError> {
    let Some(token) = hold.granted_token() else { return Ok(false) };
    match standing(shared, hold).await? {
        Standing::Holds { lease, .. } if lease.token == token => Ok(hold.is_held(shared.now())),
        Standing::Other => Err(unknown_standing()),
        // A hand-over has ended the grant, or will learn of its end. Its own answer decides.
        _ if hold.is_being_handed_over(token) => Ok(false),
        Standing::Ended { event } if event.token == token => {
            hold.lose(token, Loss::from(event.event));
            Ok(false)
        }
        Standing::Holds { .. } | Standing::Waits { .. } | Standing::Ended { .. } | Standing::Unknown => {
            hold.lose(token, Loss::Forgotten);
            Ok(false)
        }
    }
}

/// Releases the grant of an abandoned claim, if the cluster granted it. A claim that the cluster does not show stays
/// unresolved. If the future is dropped before the answer, it leaves the claim to the next one.
pub(super) async fn resolve_ambiguous(shared: &Arc<ManagerInner>, hold: &Arc<Hold>, claim: &mut Option<SentClaim>) {
    let _operation = hold.operation.lock().await;
    if hold.granted_token().is_some() || !hold.is_ambiguous() {
        return;
    }
    let answer = match claim {
        Some(claim) => claim.final_answer(shared, hold).await,
        None => None,
    };
    // The node withdraws a claim that still waits.
    if let Some((number, follows_ambiguous)) = claim.take().map(|claim| (claim.number, claim.follows_ambiguous)) {
        if matches!(answer, Some(Err(CallError::Refused(_) | CallError::Unavailable(_)))) {
            hold.claims(|open| open.close(number));
            // A later claim has its own answer, or its caller knows that the outcome is unknown.
            if !follows_ambiguous || !hold.is_ambiguous() {
                return;
            }
        } else {
            hold.claims(|open| open.leave(number));
        }
    }
    // If the release fails, the lease expires by its ttl.
    let _ = release_ambiguous(shared, hold).await;
}

/// Resolves the claims that have ended without an answer: releases their grant, or withdraws them if they still wait.
pub(super) async fn release_ambiguous(shared: &ManagerInner, hold: &Hold) -> Result<bool, CallError> {
    let withdraw_at = shared.now() + WITHDRAW_AFTER;
    let released = loop {
        let standing = standing(shared, hold).await?;
        if shows_claim(&standing) {
            hold.claims(|open| open.trace_shown());
        }
        match standing {
            Standing::Holds { lease, .. } => break send_release(shared, hold, lease.token).await?,
            // The cluster may grant the claim before its node withdraws it.
            Standing::Waits { .. } if shared.now() < withdraw_at => tokio::time::sleep(RESOLVE_INTERVAL).await,
            Standing::Waits { .. } => break leave_queue(shared, hold).await?,
            Standing::Ended { .. } | Standing::Unknown if hold.is_abandoned(shared.now()) => {
                return Err(not_withdrawn());
            }
            Standing::Ended { .. } | Standing::Unknown => break false,
            Standing::Other => return Err(unknown_standing()),
        }
    };
    hold.claims(|open| open.resolve_unknown());
    Ok(released)
}

/// Leaves the queue: sends another claim with the shortest wait. The cluster commits the end of that wait. After another
/// refusal, the holder may still wait.
async fn leave_queue(shared: &ManagerInner, hold: &Hold) -> Result<bool, CallError> {
    let claim = Acquire { wait_ms: Some(1), ..claim_request(hold, &hold.options()) };
    let budget = RetryBudget::within(shared.options.operation_timeout);
    match shared.coordinator.acquire(hold.name.clone(), claim, budget).await {
        Ok(lease) => send_release(shared, hold, lease.token).await,
        Err(CallError::Refused(problem)) if matches!(problem.code, Code::WaitTimeout | Code::WaitAbandoned) => {
            Ok(false)
        }
        Err(CallError::Refused(problem)) => match standing(shared, hold).await? {
            Standing::Ended { .. } | Standing::Unknown => Ok(false),
            _ => Err(CallError::Refused(problem)),
        },
        Err(error) => Err(error),
    }
}

pub(super) async fn standing(shared: &ManagerInner, hold: &Hold) -> Result<Standing, CallError> {
    standing_at(&*shared.coordinator, hold, RetryBudget::within(shared.options.operation_timeout)).await
}

pub(super) async fn standing_at(
    coordinator: &dyn Coordinator,
    hold: &Hold,
    budget: RetryBudget,
) -> Result<Standing, CallError> {
    let explained = coordinator.explain(hold.name.clone(), hold.holder.clone(), budget).await?;
    explained.standing.ok_or_else(unknown_standing)
}

/// Guards a claim in flight. If it is dropped before the claim is resolved, the keeper resolves the claim.
struct AmbiguousClaim<'a> {
    shared: &'a ManagerInner,
    hold: &'a Arc<Hold>,
    /// How long the cluster may count the lease as waiting or held.
    time: Duration,
    number: u64,
    /// `None` after the answer.
    claim: Option<SentClaim>,
    is_resolved: bool,
}

impl AmbiguousClaim<'_> {
    async fn answer(&mut self) -> Option<Result<LeaseInfo, CallError>> {
        let claim = self.claim.as_mut().expect("the answer is taken once");
        let _claiming = self.hold.begin_claim();
        let ended = claim.ended().await;
        // This comes before a panic is resumed: the task has ended and must not be awaited again.
        self.claim = None;
        ended.answer()
    }

    fn resolved<T>(mut self, value: T) -> T {
        self.is_resolved = true;
        value
    }
}

impl Drop for AmbiguousClaim<'_> {
    fn drop(&mut self) {
        if !self.is_resolved {
            let claim = self.claim.take();
            if claim.is_none() {
                self.hold.claims(|open| open.leave(self.number));
            }
            self.shared.keep_left_held(self.hold, Some(self.time));
            self.shared.send_command(KeeperCommand::ResolveAmbiguous { hold: self.hold.clone(), claim });
        }
    }
}

fn ttl(lease: &LeaseInfo) -> Option<Duration> {
    lease.ttl_ms.as_millis().map(Duration::from_millis)
}

/// The time that the grant certainly lasts, counted from the moment when the claim was sent. It is less than the ttl if
/// the holder had the lease already: a claim with a shorter ttl does not restart the longer one.
fn remaining_time(lease: &LeaseInfo) -> Option<Duration> {
    let left = lease.expires_in_ms.map(Duration::from_millis);
    ttl(lease).map(|ttl| left.map_or(ttl, |left| left.min(ttl)))
}
