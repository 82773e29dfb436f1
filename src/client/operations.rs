//! What is asked of the cluster for one lease. Each runs to its end alone: the caller has the lease's operation lock,
//! or takes it here.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::hold::Hold;
use super::shared::{Order, Shared};
use super::{AcquireOptions, CallError, LeaseOptions, Loss, Patience, meters};
use crate::api::{Acquire, Code, EventKind, HandOver, Lease, Problem, Release, RenewBatch, RenewItem, Standing};
use crate::token::FencingToken;
use crate::types::HolderId;

/// Between two looks at a claim that was given up and still waits.
const SETTLE_PAUSE: Duration = Duration::from_millis(25);

/// Acquires unless it is held already, and has it kept.
pub(super) async fn acquire(
    shared: &Arc<Shared>,
    hold: &Arc<Hold>,
    options: AcquireOptions,
) -> Result<FencingToken, CallError> {
    tokio::select! {
        biased;
        () = shared.closing.cancelled() => Err(CallError::Unavailable("the lease manager is shut down".to_owned())),
        acquired = acquire_alone(shared, hold, options) => acquired,
    }
}

async fn acquire_alone(
    shared: &Arc<Shared>,
    hold: &Arc<Hold>,
    options: AcquireOptions,
) -> Result<FencingToken, CallError> {
    let wait = options.wait_for(&hold.options());
    let begun = shared.now();
    let queued = tokio::time::timeout(wait + shared.options.operation_timeout, hold.operation.lock()).await;
    let Ok(_alone) = queued else { return Err(refused(Code::WaitTimeout, "another acquire of it is under way here")) };
    let mut retries = options.retries;
    loop {
        if let Some(token) = hold.token(shared.now()) {
            return Ok(token);
        }
        let left = wait.saturating_sub(shared.now().saturating_sub(begun));
        let error = match claim(shared, hold, left).await {
            Ok(token) => return Ok(token),
            Err(error) => error,
        };
        meters::not_acquired(&error);
        if retries == 0 {
            return Err(error);
        }
        retries -= 1;
        tokio::time::sleep(options.retry_delay).await;
    }
}

async fn claim(shared: &Arc<Shared>, hold: &Arc<Hold>, wait: Duration) -> Result<FencingToken, CallError> {
    let options = hold.options();
    if options.should_hold.as_ref().is_some_and(|should_hold| !should_hold()) {
        return Err(refused(Code::ShouldNotHold, "another member should hold the lease"));
    }
    if let Some(token) = hold.leftover() {
        // The work of that time may not have ended: this one must not have its token.
        send_release(shared, hold, token).await?;
    }
    let wait_ms = Some(wait.as_millis() as u64).filter(|wait| *wait > 0);
    let claim = Acquire { wait_ms, ..claim_of(hold, &options) };
    let doubt = Doubt { shared, hold, is_certain: false };
    let patience = Patience::within(shared.options.operation_timeout);
    let sent = shared.now();
    let granted = match shared.coordinator.acquire(hold.name.clone(), claim, patience).await {
        Ok(lease) => confirm(shared, hold, lease, sent).await,
        Err(error) => Err(error),
    };
    hold.set_doubt(matches!(granted, Err(CallError::Unknown { .. })));
    let (lease, sent) = doubt.settled(granted)?;
    hold.granted(lease.token, time(&lease), sent, shared.now());
    shared.look_at([hold.clone()]);
    Ok(lease.token)
}

/// What is asked for under these options, without a wait.
pub(super) fn claim_of(hold: &Hold, options: &LeaseOptions) -> Acquire {
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
    let renewed = shared.coordinator.renew(batch, Patience::within(shared.options.operation_timeout)).await;
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
        return if hold.is_in_doubt() { release_doubtful(shared, hold).await } else { Ok(false) };
    }
    if !drain(hold).await {
        return Err(refused(Code::NotDrained, "the work had not ended in time: the lease is left to lapse"));
    }
    // Nobody here may believe in it once the cluster might not.
    match hold.give_up() {
        Some(token) => send_release(shared, hold, token).await,
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

pub(super) async fn send_release(shared: &Shared, hold: &Hold, token: FencingToken) -> Result<bool, CallError> {
    let release = Release { holder: hold.holder.clone(), token };
    let patience = Patience::within(shared.options.operation_timeout);
    let released = shared.coordinator.release(hold.name.clone(), release, patience).await?.released;
    hold.forget_leftover(token);
    Ok(released)
}

/// Gives the lease to a waiter, or to the first one.
pub(super) async fn hand_over(shared: &Arc<Shared>, hold: &Arc<Hold>, to: Option<HolderId>) -> Result<bool, CallError> {
    let _alone = hold.operation.lock().await;
    if hold.granted_token().is_none() {
        return Ok(false);
    }
    if !drain(hold).await {
        return Err(refused(Code::NotDrained, "the work had not ended in time: the lease is left to lapse"));
    }
    let Some(token) = hold.pause(shared.now()) else { return Ok(false) };
    let body = HandOver { holder: hold.holder.clone(), token, to };
    let patience = Patience::within(shared.options.operation_timeout);
    let answer = shared.coordinator.hand_over(hold.name.clone(), body, patience).await;
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

/// Releases what a claim may have got that nobody waits for any more.
pub(super) async fn settle_doubt(shared: &Arc<Shared>, hold: &Arc<Hold>) {
    let _alone = hold.operation.lock().await;
    if hold.granted_token().is_none() && hold.is_in_doubt() {
        // What fails lapses.
        let _ = release_doubtful(shared, hold).await;
    }
}

async fn release_doubtful(shared: &Shared, hold: &Hold) -> Result<bool, CallError> {
    let give_up = shared.now() + shared.options.operation_timeout;
    let released = loop {
        match standing(shared, hold).await? {
            Standing::Holds { lease, .. } => break send_release(shared, hold, lease.token).await?,
            // Its turn could come before the cluster sees that nobody waits any more.
            Standing::Waits { .. } if shared.now() < give_up => tokio::time::sleep(SETTLE_PAUSE).await,
            _ => break false,
        }
    };
    hold.set_doubt(false);
    Ok(released)
}

async fn standing(shared: &Shared, hold: &Hold) -> Result<Standing, CallError> {
    let patience = Patience::within(shared.options.operation_timeout);
    let explained = shared.coordinator.explain(hold.name.clone(), hold.holder.clone(), patience).await?;
    Ok(explained.standing.unwrap_or(Standing::Unknown))
}

/// A claim that is on its way. Given up before its end, it may have been granted, and the keeper is told.
struct Doubt<'a> {
    shared: &'a Shared,
    hold: &'a Arc<Hold>,
    is_certain: bool,
}

impl Doubt<'_> {
    fn settled<T>(mut self, value: T) -> T {
        self.is_certain = true;
        value
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.is_certain {
            self.hold.set_doubt(true);
            self.shared.order(Order::Settle { hold: self.hold.clone() });
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
