//! What is asked of the cluster for one lease. Each runs to its end alone: the caller has the lease's operation lock,
//! or takes it here.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use super::hold::Hold;
use super::shared::{KeeperCommand, Shared};
use super::{AcquireOptions, CallError, LeaseOptions, Loss, RetryBudget, metrics};
use crate::api::{Acquire, Code, EventKind, HandOver, Lease, Problem, Release, RenewBatch, RenewItem, Standing};
use crate::token::FencingToken;
use crate::types::{HolderId, wait_ms};

/// Between two looks at a claim that was given up and still waits.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);
/// A claim that was given up and still waits after this is withdrawn by another request.
const LEAVE_AFTER: Duration = Duration::from_millis(250);

/// Acquires unless it is held already, and has it kept.
pub(super) async fn acquire(
    shared: &Arc<Shared>,
    hold: &Arc<Hold>,
    options: AcquireOptions,
) -> Result<FencingToken, CallError> {
    let wait = options.wait_for(&hold.options());
    let begun = shared.now();
    let queued = tokio::select! {
        biased;
        () = shared.closing.cancelled() => return Err(CallError::ShutDown),
        queued = tokio::time::timeout(wait + shared.options.operation_timeout, hold.operation.lock()) => queued,
    };
    let Ok(_alone) = queued else { return Err(refused(Code::WaitTimeout, "another acquire of it is under way here")) };
    let mut retries = options.retries;
    loop {
        if shared.closing.is_cancelled() {
            return Err(CallError::ShutDown);
        }
        if let Some(token) = hold.token(shared.now()) {
            return Ok(token);
        }
        let left = wait.saturating_sub(shared.now().saturating_sub(begun));
        let error = match claim(shared, hold, left).await {
            Ok(token) => return Ok(token),
            Err(error) => error,
        };
        metrics::not_acquired(&error);
        if retries == 0 {
            return Err(error);
        }
        retries -= 1;
        tokio::select! {
            () = shared.closing.cancelled() => {}
            () = tokio::time::sleep(options.retry_delay) => {}
        }
    }
}

async fn claim(shared: &Arc<Shared>, hold: &Arc<Hold>, wait: Duration) -> Result<FencingToken, CallError> {
    let options = hold.options();
    if options.should_hold.as_ref().is_some_and(|should_hold| !should_hold()) {
        return Err(refused(Code::ShouldNotHold, "another member should hold the lease"));
    }
    if let Some(token) = hold.unreleased_token() {
        // The work of that time may not have ended: this one must not have its token.
        send_release(shared, hold, token).await?;
    }
    let wait_ms = Some(wait_ms(wait)).filter(|wait| *wait > 0);
    let claim = Acquire { wait_ms, ..claim_of(hold, &options) };
    let sent = shared.now();
    // From here until the answer it may be granted without this side knowing; a shutdown settles that.
    hold.set_ambiguous(true);
    let mut doubt =
        AmbiguousClaim { shared, hold, claim: Some(SentClaim::send(shared, hold, claim)), is_certain: false };
    let granted = match doubt.answer().await {
        Some(Ok(lease)) => confirm(shared, hold, lease, sent).await,
        Some(Err(error)) => Err(error),
        None => return Err(doubt.settled(ended_by_shutdown(shared, hold).await)),
    };
    match granted {
        Ok((lease, sent)) => {
            let grant = || hold.granted(lease.token, time(&lease), sent, shared.now());
            if shared.keep_granted(hold, grant) {
                return Ok(doubt.settled(lease.token));
            }
            Err(doubt.settled(ended_by_shutdown(shared, hold).await))
        }
        Err(error) => {
            hold.set_ambiguous(matches!(error, CallError::Unknown { .. }));
            Err(doubt.settled(error))
        }
    }
}

/// A claim on its way, in a task of the manager: its caller may stop polling or be dropped. Aborted when dropped.
#[derive(Debug)]
pub(super) struct SentClaim {
    task: AbortOnDropHandle<Option<Result<Lease, CallError>>>,
    waits: bool,
}

impl SentClaim {
    fn send(shared: &Shared, hold: &Hold, claim: Acquire) -> SentClaim {
        let (coordinator, closing, name) = (shared.coordinator.clone(), shared.closing.clone(), hold.name.clone());
        let budget = RetryBudget::within(shared.options.operation_timeout);
        let waits = claim.wait_ms.is_some();
        let task = shared.claims.spawn(async move {
            let mut answer = coordinator.acquire(name, claim, budget);
            tokio::select! {
                biased;
                () = closing.cancelled() => {}
                answer = &mut answer => return Some(answer),
            }
            // A claim that does not wait is answered soon, and could still be granted after it was given up.
            if waits { None } else { tokio::time::timeout(LEAVE_AFTER, answer).await.ok() }
        });
        SentClaim { task: AbortOnDropHandle::new(task), waits }
    }

    /// `None`: the manager is shut down, and the claim was given up on its way.
    fn answer(ended: Result<Option<Result<Lease, CallError>>, JoinError>) -> Option<Result<Lease, CallError>> {
        ended.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    /// The answer to a claim that its caller has given up. A claim that waits in a queue is aborted instead, which has the
    /// node withdraw it. Until the cluster knows the claim, an abort proves nothing: it may be applied later.
    async fn last_answer(self, shared: &Shared, hold: &Hold) -> Option<Result<Lease, CallError>> {
        let leave_at = shared.now() + shared.options.operation_timeout;
        while self.waits && !self.task.is_finished() {
            let known = matches!(standing(shared, hold).await, Ok(Standing::Holds { .. } | Standing::Waits { .. }));
            if known || shared.now() >= leave_at {
                return None;
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        SentClaim::answer(self.task.await)
    }
}

/// What an acquire that a shutdown ended came to, once the shutdown has settled it.
async fn ended_by_shutdown(shared: &Shared, hold: &Hold) -> CallError {
    shared.settled.cancelled().await;
    if hold.is_ambiguous() {
        let why = "the manager was shut down, and the claim may not have been withdrawn".to_owned();
        return CallError::Unknown { why, last: None };
    }
    CallError::ShutDown
}

/// What is asked for under these options, without a wait.
fn claim_of(hold: &Hold, options: &LeaseOptions) -> Acquire {
    Acquire {
        holder: hold.holder.clone(),
        ttl_ms: options.ttl_ms(),
        wait_ms: None,
        lock_delay_ms: options.lock_delay_ms(),
        limit: options.limit_wanted(),
        metadata: options.metadata.clone(),
    }
}

/// A grant that was waited for may be old: when it was made is known only within the wait. So its time is taken from a
/// renewal.
async fn confirm(
    shared: &Arc<Shared>,
    hold: &Hold,
    lease: Lease,
    sent: Duration,
) -> Result<(Lease, Duration), CallError> {
    let waited = shared.now().saturating_sub(sent);
    if ttl(&lease).is_none_or(|ttl| waited <= ttl / 3) {
        return Ok((lease, sent));
    }
    let item = RenewItem { name: hold.name.clone(), token: lease.token, ttl_ms: None };
    let batch = RenewBatch { holder: hold.holder.clone(), leases: vec![item] };
    let sent = shared.now();
    let renewed = shared.coordinator.renew(batch, RetryBudget::within(shared.options.operation_timeout)).await;
    // Whatever went wrong here, the claim was granted, and may be in force.
    let doubt = |why: String| CallError::Unknown { why, last: None };
    let result = renewed.map_err(|error| doubt(format!("it was granted, and then: {error}")))?.results.pop();
    match result.map(|result| (result.lease, result.problem)) {
        Some((Some(lease), _)) => Ok((lease, sent)),
        Some((None, Some(problem))) => Err(CallError::Refused(Box::new(problem))),
        _ => Err(doubt("it was granted, and the answer to its renewal cannot be read".to_owned())),
    }
}

/// Drains, and gives the lease back. `false`: it was not held, and nothing changed.
pub(super) async fn release(shared: &Arc<Shared>, hold: &Arc<Hold>) -> Result<bool, CallError> {
    let _alone = hold.operation.lock().await;
    if hold.granted_token().is_none() {
        return match hold.unreleased() {
            Some(token) => send_release(shared, hold, token).await,
            None if hold.is_ambiguous() => release_ambiguous(shared, hold).await,
            None => Ok(false),
        };
    }
    if !drain(hold).await {
        return Err(refused(Code::NotDrained, "the work had not ended in time: the lease is left to expire"));
    }
    // Nobody here may believe in it once the cluster might not.
    match hold.give_up() {
        Some(token) => {
            let released = send_release(shared, hold, token).await;
            if released.is_err() {
                hold.set_unreleased_token(token);
            }
            released
        }
        None => Ok(false),
    }
}

/// Waits for the before-release listeners. If they take too long the lease is let go of here, and not released.
async fn drain(hold: &Hold) -> bool {
    let listeners = hold.listeners().before_release();
    let drained = async {
        for listener in listeners {
            // One that panics has ended, and the others still have their turn.
            if AssertUnwindSafe(listener()).catch_unwind().await.is_err() {
                tracing::error!(lease = %hold.name, "a before-release listener panicked");
            }
        }
    };
    let in_time = tokio::time::timeout(hold.drain(), drained).await.is_ok();
    if !in_time {
        hold.give_up();
    }
    in_time
}

/// Releases a grant. If the answer does not say whether it was released, the cluster's history does.
pub(super) async fn send_release(shared: &Shared, hold: &Hold, token: FencingToken) -> Result<bool, CallError> {
    let release = Release { holder: hold.holder.clone(), token };
    let budget = RetryBudget::within(shared.options.operation_timeout);
    let released = match shared.coordinator.release(hold.name.clone(), release, budget).await {
        Ok(answer) => answer.released,
        Err(unknown @ CallError::Unknown { .. }) => was_released(shared, hold, token).await.ok_or(unknown)?,
        Err(error) => return Err(error),
    };
    hold.forget_unreleased_token(token);
    Ok(released)
}

/// Whether the grant was released, if the cluster says that it is over.
async fn was_released(shared: &Shared, hold: &Hold, token: FencingToken) -> Option<bool> {
    match standing(shared, hold).await.ok()? {
        Standing::Holds { lease, .. } if lease.token == token => None,
        Standing::Ended { event } => Some(event.token == token && event.event == EventKind::Released),
        _ => Some(false),
    }
}

/// Gives the lease to a waiter, or to the first one.
pub(super) async fn hand_over(shared: &Arc<Shared>, hold: &Arc<Hold>, to: Option<HolderId>) -> Result<bool, CallError> {
    let _alone = hold.operation.lock().await;
    if hold.granted_token().is_none() {
        return Ok(false);
    }
    if !drain(hold).await {
        return Err(refused(Code::NotDrained, "the work had not ended in time: the lease is left to expire"));
    }
    let Some(token) = hold.pause(shared.now()) else { return Ok(false) };
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
            Err(error)
        }
        Err(error) => {
            hold.resume();
            shared.look_at([hold.clone()]);
            Err(error)
        }
    }
}

/// Asks the cluster whether the lease is held.
pub(super) async fn check(shared: &Shared, hold: &Hold) -> Result<bool, CallError> {
    let Some(token) = hold.granted_token() else { return Ok(false) };
    match standing(shared, hold).await? {
        Standing::Holds { lease, .. } if lease.token == token => Ok(hold.is_held(shared.now())),
        Standing::Ended { event } if event.token == token => {
            hold.lose(
                token,
                match event.event {
                    EventKind::Revoked => Loss::Revoked,
                    EventKind::HandedOver => Loss::HandedOver,
                    EventKind::Released => Loss::Released,
                    EventKind::Expired | EventKind::Granted => Loss::Expired,
                },
            );
            Ok(false)
        }
        _ => {
            hold.lose(token, Loss::Forgotten);
            Ok(false)
        }
    }
}

/// Releases the grant of a claim whose caller has given up, if there is one.
pub(super) async fn resolve_ambiguous(shared: &Arc<Shared>, hold: &Arc<Hold>, claim: Option<SentClaim>) {
    let _alone = hold.operation.lock().await;
    if hold.granted_token().is_some() || !hold.is_ambiguous() {
        return;
    }
    let answer = match claim {
        Some(claim) => claim.last_answer(shared, hold).await,
        None => None,
    };
    // A release that fails leaves a lease that expires.
    match answer {
        Some(Err(CallError::Refused(_) | CallError::Unavailable(_))) => hold.set_ambiguous(false),
        _ => _ = release_ambiguous(shared, hold).await,
    }
}

/// Releases what a claim got that has no answer, or withdraws it if it still waits.
pub(super) async fn release_ambiguous(shared: &Shared, hold: &Hold) -> Result<bool, CallError> {
    let leave_at = shared.now() + LEAVE_AFTER;
    let released = loop {
        match standing(shared, hold).await? {
            Standing::Holds { lease, .. } => break send_release(shared, hold, lease.token).await?,
            // Its turn could come before the cluster sees that nobody waits any more.
            Standing::Waits { .. } if shared.now() < leave_at => tokio::time::sleep(SETTLE_PAUSE).await,
            Standing::Waits { .. } => break leave_queue(shared, hold).await?,
            _ => break false,
        }
    };
    hold.set_ambiguous(false);
    Ok(released)
}

/// Leaves the queue: claims once more with the shortest wait, whose end is a committed one.
async fn leave_queue(shared: &Shared, hold: &Hold) -> Result<bool, CallError> {
    let claim = Acquire { wait_ms: Some(1), ..claim_of(hold, &hold.options()) };
    let budget = RetryBudget::within(shared.options.operation_timeout);
    match shared.coordinator.acquire(hold.name.clone(), claim, budget).await {
        Ok(lease) => send_release(shared, hold, lease.token).await,
        Err(CallError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) async fn standing(shared: &Shared, hold: &Hold) -> Result<Standing, CallError> {
    let budget = RetryBudget::within(shared.options.operation_timeout);
    let explained = shared.coordinator.explain(hold.name.clone(), hold.holder.clone(), budget).await?;
    Ok(explained.standing.unwrap_or(Standing::Unknown))
}

/// A claim that is on its way. Given up before its end, it may have been granted, and the keeper is told.
struct AmbiguousClaim<'a> {
    shared: &'a Shared,
    hold: &'a Arc<Hold>,
    /// Without an answer so far.
    claim: Option<SentClaim>,
    is_certain: bool,
}

impl AmbiguousClaim<'_> {
    async fn answer(&mut self) -> Option<Result<Lease, CallError>> {
        let ended = (&mut self.claim.as_mut().expect("a claim is answered once").task).await;
        // A claim that panicked has ended, too: it must not be waited for again.
        self.claim = None;
        SentClaim::answer(ended)
    }

    fn settled<T>(mut self, value: T) -> T {
        self.is_certain = true;
        value
    }
}

impl Drop for AmbiguousClaim<'_> {
    fn drop(&mut self) {
        if !self.is_certain {
            self.hold.set_ambiguous(true);
            self.shared.order(KeeperCommand::Settle { hold: self.hold.clone(), claim: self.claim.take() });
        }
    }
}

fn ttl(lease: &Lease) -> Option<Duration> {
    lease.ttl_ms.map(Duration::from_millis)
}

/// How much time a claim that was answered so has for certain, from before it was sent. Less than the ttl if it was held
/// already: a claim with a shorter ttl takes no time away, and then the longer one did not begin anew.
fn time(lease: &Lease) -> Option<Duration> {
    let left = lease.expires_in_ms.map(Duration::from_millis);
    ttl(lease).map(|ttl| left.map_or(ttl, |left| left.min(ttl)))
}

pub(super) fn refused(code: Code, detail: &str) -> CallError {
    CallError::Refused(Box::new(Problem::new(code, detail)))
}
