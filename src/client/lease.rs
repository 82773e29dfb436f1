//! A handle of one lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::hold::Hold;
use super::listeners::{Listener, Subscription};
use super::manager::Owner;
use super::operations::{self, refused};
use super::shared::KeeperCommand;
use super::{AcquireOptions, CallError, HoldState, LeaseGuard, Loss};
use crate::api::Code;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName};

/// A handle of one lease. Cheap to clone; all handles of one name and manager are of the same lease.
///
/// What is asked of a handle without `await` is answered from this side's own knowledge, without a request and without
/// a lock that anybody holds for long. No lease stops a paused process from acting late: send the
/// [`token`](Lease::token) along with every write, and have the resource check it ([`crate::fence`]).
#[derive(Clone)]
pub struct Lease {
    pub(super) owner: Arc<Owner>,
    pub(super) hold: Arc<Hold>,
}

impl Lease {
    pub fn name(&self) -> &LeaseName {
        &self.hold.name
    }

    /// Who holds it when this handle does.
    pub fn holder(&self) -> &HolderId {
        &self.hold.holder
    }

    /// Acquires the lease, and has it renewed until it is released, lost, or the manager ends. If it is held already
    /// the answer is its token at once: acquiring is idempotent for the holder, and handles of one lease are one
    /// holder. Where parts of one program must exclude each other, use [`guard`](Lease::guard) or [`with`](Lease::with).
    ///
    /// # Errors
    ///
    /// [`Refused`](CallError::Refused): somebody else holds it (code `held`), the wait ended (`wait_timeout`), or
    /// another of the [codes](Code). [`Unknown`](CallError::Unknown): it may have been granted, and is not held here;
    /// acquire again, or release. [`Unavailable`](CallError::Unavailable), [`ShutDown`](CallError::ShutDown): certainly
    /// not acquired.
    pub async fn acquire(&self, options: impl Into<AcquireOptions>) -> Result<FencingToken, CallError> {
        self.owner.ensure_running();
        operations::acquire(&self.owner.shared, &self.hold, options.into()).await
    }

    /// Acquires the lease for one part of the program: as long as the guard is there, no other guard of this lease is,
    /// in this process either.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Lease::acquire); code `held` also if another guard of this manager has it for longer than the wait.
    pub async fn guard(&self, options: impl Into<AcquireOptions>) -> Result<LeaseGuard, CallError> {
        let options = options.into();
        let begun = self.now();
        let wait = options.wait_for(&self.hold.options());
        let permit = match self.hold.exclusive.clone().try_lock_owned() {
            Ok(permit) => permit,
            Err(_) => match tokio::time::timeout(wait, self.hold.exclusive.clone().lock_owned()).await {
                Ok(permit) => permit,
                Err(_) => return Err(refused(Code::Held, "another guard of this process has it")),
            },
        };
        let left = wait.saturating_sub(self.now().saturating_sub(begun));
        let token = self.acquire(options.wait(super::Wait::UpTo(left))).await?;
        Ok(LeaseGuard::new(self.clone(), token, permit))
    }

    /// Drains ([`before_release`](Lease::before_release)) and gives the lease back, so that the next may have it at
    /// once. `false`: it was not held, and nothing changed.
    ///
    /// # Errors
    ///
    /// Whatever the error, the lease is not held here any more. Refused as `not_drained`: the work went on, and the
    /// lease expires by its ttl. Unknown, unavailable: it may not have been released. Release it again, or it expires by
    /// its ttl.
    pub async fn release(&self) -> Result<bool, CallError> {
        operations::release(&self.owner.shared, &self.hold).await
    }

    /// Asks for a release, some time soon. Does not wait, needs no runtime, promises nothing: what is not released expires.
    pub fn release_lazily(&self) {
        if self.hold.granted_token().is_some() {
            self.owner.shared.order(KeeperCommand::Release { hold: self.hold.clone(), permit: None });
        }
    }

    /// Drains, and gives the lease to a waiter in the queue (the first if none is named) without a moment in which nobody
    /// has it. `false`: it was not held. From before the request on this handle does not hold it.
    ///
    /// # Errors
    ///
    /// Refused as `no_such_waiter`, or unavailable: it is held on as before. Unknown: it may be somebody else's, and is
    /// not held here any more.
    pub async fn hand_over(&self, to: Option<HolderId>) -> Result<bool, CallError> {
        operations::hand_over(&self.owner.shared, &self.hold, to).await
    }

    /// Whether the lease is held: by this side's knowledge, against a clock that counts suspend. False before it was
    /// acquired and after its loss. Never asks anybody; a few dozen nanoseconds.
    pub fn is_held(&self) -> bool {
        self.hold.is_held(self.now())
    }

    /// Whether this process is the one that should hold the lease ([`LeaseOptions::should_hold`]); true if nothing was
    /// said about it. Never asks anybody.
    ///
    /// [`LeaseOptions::should_hold`]: super::LeaseOptions::should_hold
    pub fn should_hold(&self) -> bool {
        self.hold.options().should_hold.is_none_or(|should_hold| should_hold())
    }

    /// How long the lease is held without another renewal, less the drift margin. `None` if it is not held;
    /// [`Duration::MAX`] for an infinite ttl.
    pub fn remaining(&self) -> Option<Duration> {
        self.hold.remaining(self.now())
    }

    /// The fencing token, while the lease is held.
    pub fn token(&self) -> Option<FencingToken> {
        self.hold.token(self.now())
    }

    /// Asks the cluster whether this handle's grant is in force. Without one the answer is `false`, and nobody is asked.
    ///
    /// # Errors
    ///
    /// Nobody could be asked.
    pub async fn check(&self) -> Result<bool, CallError> {
        operations::check(&self.owner.shared, &self.hold).await
    }

    /// How the holder stands with the lease.
    pub fn state(&self) -> HoldState {
        *self.hold.states().borrow()
    }

    /// The states as they come. A receiver that is slow sees the last one.
    pub fn states(&self) -> watch::Receiver<HoldState> {
        self.hold.states()
    }

    /// Cancelled when the present grant is over: lost, released or handed over. Cancelled already if there is none.
    pub fn gone(&self) -> CancellationToken {
        self.hold.signals().gone.child_token()
    }

    /// Cancelled when the present grant will not be renewed any more: [`LeaseOptions::grace`] before its deadline, or
    /// with [`gone`](Lease::gone). Work that needs time to stop begins then.
    ///
    /// [`LeaseOptions::grace`]: super::LeaseOptions::grace
    pub fn stopping(&self) -> CancellationToken {
        self.hold.signals().stopping.child_token()
    }

    /// Calls after each acquire that got a new hold. Listeners run one after the other on a task of the manager's. One
    /// that has a handle of its own lease keeps the manager alive for as long as it listens.
    pub fn after_acquire(&self, call: impl Fn(FencingToken) + Send + Sync + 'static) -> Subscription {
        Subscription::new(&self.hold, Listener::AfterAcquire(Arc::new(call)))
    }

    /// Calls, and waits for the future, before the lease is released or handed over: the place to end the work. The
    /// lease is held and renewed meanwhile; [`LeaseOptions::drain`](super::LeaseOptions::drain) bounds it.
    pub fn before_release<F>(&self, call: impl Fn() -> F + Send + Sync + 'static) -> Subscription
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Subscription::new(&self.hold, Listener::BeforeRelease(Arc::new(move || Box::pin(call()))))
    }

    /// Calls once for each loss, after the acquire had ended. Not for a release. A machine that was suspended, or a
    /// process that was stopped, is told up to 100 ms after it runs again; [`is_held`](Lease::is_held) knows at once.
    pub fn on_lost(&self, call: impl Fn(Loss) + Send + Sync + 'static) -> Subscription {
        Subscription::new(&self.hold, Listener::OnLost(Arc::new(call)))
    }

    /// How long work may take to end ([`LeaseOptions::drain`](super::LeaseOptions::drain)).
    pub(crate) fn drain(&self) -> Duration {
        self.hold.drain()
    }

    /// Asks [`is_held`](Lease::is_held) for whoever must not keep the manager alive: an option that is asked by the
    /// manager, for instance.
    pub(crate) fn probe(&self) -> impl Fn() -> bool + Send + Sync + use<> {
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
