//! The handle of one lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::refused;
use super::hold::Hold;
use super::listeners::{ListenerCallback, Subscription};
use super::manager::Owner;
use super::operations;
use super::shared::KeeperCommand;
use super::{AcquireOptions, CallError, HoldState, LeaseGuard, Loss};
use crate::api::Code;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName};

/// A handle of one lease. Cheap to clone; all handles with one name and manager share one lease.
///
/// Functions that are not `async` use local knowledge: they send no request and do not block. A lease cannot stop a
/// paused process from writing late. Send the [`token`](Lease::token) with every write, and let the resource check it
/// ([`crate::fence`]).
#[derive(Clone)]
pub struct Lease {
    pub(super) owner: Arc<Owner>,
    pub(super) hold: Arc<Hold>,
}

impl Lease {
    /// The name of the lease.
    pub fn name(&self) -> &LeaseName {
        &self.hold.name
    }

    /// The holder under whose name this handle acquires the lease.
    pub fn holder(&self) -> &HolderId {
        &self.hold.holder
    }

    /// Acquires the lease and returns its fencing token. The manager renews the lease until it is released or lost, or
    /// until the manager ends.
    ///
    /// Acquiring is idempotent: if this manager holds the lease already, the call returns its token at once. All
    /// handles of one lease are one holder. Use [`guard`](Lease::guard) or [`with`](Lease::with) where parts of one
    /// program must exclude each other.
    ///
    /// # Errors
    ///
    /// - [`Refused`](CallError::Refused): another holder has the lease (code `held`), the wait ended (`wait_timeout`),
    ///   or the cluster refused the request with another of the [codes](Code).
    /// - [`Unknown`](CallError::Unknown): the cluster may have granted the lease, but this handle does not hold it.
    ///   Acquire it again, or release it.
    /// - [`Unavailable`](CallError::Unavailable), [`ShutDown`](CallError::ShutDown): the lease was not acquired.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the claim. The manager then withdraws it from the queue, and releases the lease if
    /// the cluster granted it.
    pub async fn acquire(&self, options: impl Into<AcquireOptions>) -> Result<FencingToken, CallError> {
        self.owner.ensure_running();
        operations::acquire(&self.owner.shared, &self.hold, None, options.into()).await
    }

    /// Acquires the lease exclusively for one part of the program. While the guard exists, this manager gives no other
    /// guard of the lease.
    ///
    /// # Errors
    ///
    /// The same as [`acquire`](Lease::acquire). The code is also `held` if another guard of this manager has the lease
    /// during the whole wait and at each retry. A shutdown of the manager ends the wait.
    ///
    /// # Panics
    ///
    /// The same as [`acquire`](Lease::acquire).
    ///
    /// # Cancel safety
    ///
    /// The same as [`acquire`](Lease::acquire).
    pub async fn guard(&self, options: impl Into<AcquireOptions>) -> Result<LeaseGuard, CallError> {
        self.guard_with(None, options.into()).await
    }

    /// Like [`guard`](Lease::guard). The claim has the options `own`, if there are any, although other handles may set
    /// others during the wait.
    pub(crate) async fn guard_with(
        &self,
        own: Option<super::LeaseOptions>,
        mut options: AcquireOptions,
    ) -> Result<LeaseGuard, CallError> {
        // The keeper ends with its runtime. The next one runs the release that returns the permit of an earlier guard.
        self.owner.ensure_running();
        let begun = self.now();
        let wait = options.wait_for(own.as_ref().unwrap_or(&self.hold.options()))?;
        let left = || wait.saturating_sub(self.now().saturating_sub(begun));
        let exclusive = || self.hold.exclusive.clone().lock_owned();
        let locked = operations::lock_with_retries(&self.owner.shared, &mut options, left, exclusive).await?;
        let Some((permit, _)) = locked else {
            return Err(refused(Code::Held, "another guard of this process has the lease"));
        };
        let options = options.wait(super::Wait::UpTo(left()));
        let token = operations::acquire(&self.owner.shared, &self.hold, own, options).await?;
        Ok(LeaseGuard::new(self.clone(), token, permit))
    }

    /// Runs the [`before_release`](Lease::before_release) listeners and releases the lease, so that the next holder can
    /// get it at once. Returns `false` if the lease was not held; nothing changes then.
    ///
    /// While an acquire of this lease is in progress, also between its attempts, the call returns `false` at once. The
    /// acquire goes on and can get the lease after that.
    ///
    /// # Errors
    ///
    /// After any error this handle no longer holds the lease.
    ///
    /// - Refused as `not_drained`: the listeners did not finish in time. The lease expires by its ttl, because the work
    ///   may still run. A new acquire releases it and gets a new token. Until then, each `release` returns this error.
    /// - Unknown or unavailable: the cluster may still count the lease as held. Release it again; otherwise it expires
    ///   by its ttl. A claim whose Tokio runtime was shut down before the answer stays unknown for its wait and its ttl,
    ///   unless a read shows it. A later acquire that succeeds ends that.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while the lease is held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the listeners run, the lease stays held. If it is dropped later, this handle does
    /// not hold the lease, and the lease expires by its ttl unless the release arrives. An infinite lease can then stay
    /// held at the cluster: release it again.
    pub async fn release(&self) -> Result<bool, CallError> {
        operations::release(&self.owner.shared, &self.hold, None).await
    }

    /// Requests a release in the background. The call does not block and needs no runtime. If the release fails, the
    /// lease expires by its ttl.
    pub fn release_lazily(&self) {
        if let Some(token) = self.hold.granted_token() {
            let command = KeeperCommand::Release { hold: self.hold.clone(), token: Some(token), permit: None };
            self.owner.shared.send_command(command);
        }
    }

    /// The error of an acquire that a shutdown of the manager ends.
    pub(crate) async fn ended_by_shutdown(&self) -> CallError {
        operations::ended_by_shutdown(&self.owner.shared, &self.hold).await
    }

    /// Resolves an acquire with an unknown outcome in the background: releases its grant, or withdraws its claim.
    pub(crate) fn resolve_lazily(&self) {
        if self.hold.is_ambiguous() {
            self.owner.shared.send_command(KeeperCommand::ResolveAmbiguous { hold: self.hold.clone(), claim: None });
        }
    }

    /// Runs the [`before_release`](Lease::before_release) listeners and hands the lease over to a waiter in the queue:
    /// to `to`, or to the first waiter whose request has reached the leader. The lease is never free in between.
    ///
    /// Returns `false` if the lease was not held. During an acquire the result is that of [`release`](Lease::release).
    ///
    /// This handle stops holding the lease before it sends the request. The work
    /// of a [`LeaseGuard`](super::LeaseGuard) pauses until the answer. It goes on if the lease stays held.
    ///
    /// # Errors
    ///
    /// - Refused as `not_drained`: the listeners did not finish in time. This handle no longer holds the lease, which
    ///   expires by its ttl.
    /// - Another refusal, such as `no_such_waiter`, or unavailable: this handle holds the lease as before.
    /// - Unknown: another holder may have the lease. This handle no longer holds it.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while the lease is held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the listeners run, the lease stays held. If it is dropped during the request, the
    /// grant ends here, and perhaps not at the cluster. Acquire the lease again or release it to end that state.
    pub async fn hand_over(&self, to: Option<HolderId>) -> Result<bool, CallError> {
        operations::hand_over(&self.owner.shared, &self.hold, None, to).await
    }

    /// Whether this handle holds the lease now. Returns `false` before an acquire and after a loss.
    ///
    /// The check compares the local deadline with a clock that counts suspend. It sends no request and takes a few
    /// dozen nanoseconds.
    pub fn is_held(&self) -> bool {
        self.hold.is_held(self.now())
    }

    /// Whether this process should hold the lease, by [`LeaseOptions::should_hold`]; `true` without that option. Sends
    /// no request.
    ///
    /// [`LeaseOptions::should_hold`]: super::LeaseOptions::should_hold
    pub fn should_hold(&self) -> bool {
        self.hold.options().should_hold.is_none_or(|should_hold| should_hold())
    }

    /// The time until the lease ends without another renewal, less the drift margin. `None` if the lease is not held,
    /// [`Duration::MAX`] for an infinite ttl.
    pub fn remaining(&self) -> Option<Duration> {
        self.hold.remaining(self.now())
    }

    /// The fencing token; `None` if the lease is not held.
    pub fn token(&self) -> Option<FencingToken> {
        self.hold.token(self.now())
    }

    /// Asks the cluster whether this handle's grant is in force. Without a grant the call returns `false` and sends no
    /// request. If the cluster has ended the grant, the handle records the loss.
    ///
    /// # Errors
    ///
    /// No node answered in time. The state of the lease does not change.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn check(&self) -> Result<bool, CallError> {
        operations::check(&self.owner.shared, &self.hold).await
    }

    /// The state of the lease at this holder.
    pub fn state(&self) -> HoldState {
        *self.hold.states().borrow()
    }

    /// Subscribes to the states of the lease. A slow receiver sees only the newest state.
    pub fn states(&self) -> watch::Receiver<HoldState> {
        self.hold.states()
    }

    /// A token that is cancelled when the current grant ends: lost, released or handed over. Without a grant the token
    /// is cancelled already.
    pub fn ended(&self) -> CancellationToken {
        self.hold.signals().ended.child_token()
    }

    /// A token that is cancelled when the manager stops renewing the current grant: [`LeaseOptions::grace`] before its
    /// deadline, or together with [`ended`](Lease::ended). Work that needs time to stop should stop then.
    ///
    /// [`LeaseOptions::grace`]: super::LeaseOptions::grace
    pub fn stopping(&self) -> CancellationToken {
        self.hold.signals().stopping.child_token()
    }

    /// Subscribes `call` to new grants of this lease. It receives the fencing token.
    ///
    /// A task of the manager calls the listeners one after another. A listener that owns a handle of the lease keeps
    /// the manager alive until it is unsubscribed.
    pub fn after_acquire(&self, call: impl Fn(FencingToken) + Send + Sync + 'static) -> Subscription {
        Subscription::new(&self.hold, ListenerCallback::AfterAcquire(Arc::new(call)))
    }

    /// Subscribes `call` to releases and hand-overs of this lease. The release waits for its future, so the work should
    /// end there.
    ///
    /// The manager holds and renews the lease during that time. [`LeaseOptions::drain`](super::LeaseOptions::drain)
    /// limits it. If a Tokio runtime ends during a release in the background, the manager repeats the release in the next
    /// one, and calls the listeners again.
    pub fn before_release<F>(&self, call: impl Fn() -> F + Send + Sync + 'static) -> Subscription
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Subscription::new(&self.hold, ListenerCallback::BeforeRelease(Arc::new(move || Box::pin(call()))))
    }

    /// Subscribes `call` to losses of this lease. A release is no loss.
    ///
    /// After a suspend of the machine or a stop of the process, the call can come up to 100 ms late.
    /// [`is_held`](Lease::is_held) is exact at any time.
    pub fn on_lost(&self, call: impl Fn(Loss) + Send + Sync + 'static) -> Subscription {
        Subscription::new(&self.hold, ListenerCallback::OnLost(Arc::new(call)))
    }

    /// The answer to the last renewal, if the cluster refused the request.
    #[cfg(feature = "cli")]
    pub(crate) fn renewal_refusal(&self) -> Option<crate::api::Problem> {
        self.hold.renewal_refusal().as_deref().cloned()
    }

    /// How long the work may take to end ([`LeaseOptions::drain`](super::LeaseOptions::drain)).
    pub(crate) fn drain(&self) -> Duration {
        self.hold.drain()
    }

    /// A check like [`is_held`](Lease::is_held) that does not keep the manager alive. The manager stores such a check
    /// in its options.
    pub(crate) fn is_held_check(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let (hold, clock) = (self.hold.clone(), self.owner.shared.options.clock.clone());
        move || hold.is_held(clock.elapsed())
    }

    pub(super) fn now(&self) -> Duration {
        self.owner.shared.now()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("name", self.name()).field("state", &self.state()).finish_non_exhaustive()
    }
}
