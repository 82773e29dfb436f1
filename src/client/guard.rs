//! A lease guard: a lease that one part of a program holds exclusively.

use std::ops::Deref;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use super::grant::GrantSignals;
use super::hold::GrantPhase;
use super::operations;
use super::shared::KeeperCommand;
use super::{CallError, Lease, Loss};
use crate::time;
use crate::token::FencingToken;
use crate::types::HolderId;

/// How long a guard waits for the keeper, which checks the clock every 100 ms. The keeper ends with its runtime.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest sleep of idle work. A clock that a test controls can stand just before the deadline.
const SHORTEST_SLEEP: Duration = Duration::from_millis(100);

/// A lease that one part of a program holds. No other guard of the lease exists in this process at the same time.
///
/// The lease can be lost while the guard exists. Check [`is_held`](LeaseGuard::is_held), or run the work in
/// [`while_held`](LeaseGuard::while_held).
///
/// Call [`release`](LeaseGuard::release) at the end. Dropping the guard only requests a release: the drop does not
/// block and works outside a runtime. If the release fails, the lease expires by its ttl.
#[must_use = "dropping the guard releases the lease"]
#[derive(Debug)]
pub struct LeaseGuard {
    lease: Lease,
    token: FencingToken,
    signals: GrantSignals,
    /// Excludes other guards of this lease. `None` after a release.
    permit: Mutex<Option<OwnedMutexGuard<()>>>,
}

impl LeaseGuard {
    pub(super) fn new(lease: Lease, token: FencingToken, permit: OwnedMutexGuard<()>) -> LeaseGuard {
        let signals = lease.hold.signals_of(token);
        LeaseGuard { lease, token, signals, permit: Mutex::new(Some(permit)) }
    }

    /// The fencing token of this guard's grant, also after the grant has ended.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// A token that is cancelled when this guard's grant ends: lost, released or handed over.
    pub fn ended(&self) -> CancellationToken {
        self.signals.ended.child_token()
    }

    /// A token that is cancelled when the manager stops renewing this guard's grant: like [`Lease::stopping`].
    pub fn stopping(&self) -> CancellationToken {
        self.signals.stopping.child_token()
    }

    /// Runs the [`before_release`](Lease::before_release) listeners and releases the lease. Returns `false` if the
    /// lease was lost or released before.
    ///
    /// # Errors
    ///
    /// The same as [`Lease::release`]. After an error this process no longer holds the lease. The guard still excludes
    /// other guards, and `release` can be called again.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while the lease is held.
    ///
    /// # Cancel safety
    ///
    /// The same as [`Lease::release`]. After dropping the future, the guard still excludes other guards.
    pub async fn release(&self) -> Result<bool, CallError> {
        let released = match self.can_release() {
            true => self.release_grant().await?,
            false => {
                self.release_lost_grant();
                false
            }
        };
        drop(self.take_permit());
        Ok(released)
    }

    /// Whether this guard's grant is held, or ended here without a release at the cluster.
    pub(crate) fn can_release(&self) -> bool {
        let hold = &self.lease.hold;
        let grants = [hold.granted_token(), hold.failed_release(), hold.undrained_token()];
        grants.contains(&Some(self.token))
    }

    /// Releases this guard's grant, and not a later one. The guard still excludes other guards.
    pub(crate) async fn release_grant(&self) -> Result<bool, CallError> {
        operations::release(&self.lease.owner.shared, &self.lease.hold, Some(self.token)).await
    }

    /// Requests a release of this guard's grant in the background: like [`Lease::release_lazily`]. The guard still
    /// excludes other guards.
    pub fn release_lazily(&self) {
        if self.is_current() {
            self.request_release(None);
        }
    }

    /// Hands this guard's grant over: like [`Lease::hand_over`]. Returns `false` if the lease was lost or released
    /// before.
    ///
    /// # Errors
    ///
    /// The same as [`Lease::hand_over`].
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while the lease is held.
    ///
    /// # Cancel safety
    ///
    /// The same as [`Lease::hand_over`].
    pub async fn hand_over(&self, to: Option<HolderId>) -> Result<bool, CallError> {
        operations::hand_over(&self.lease.owner.shared, &self.lease.hold, Some(self.token), to).await
    }

    /// Runs `work` while the lease is held.
    ///
    /// The guard checks its clock before each poll of `work`. When the lease is lost, the guard stops polling `work`
    /// and drops it. During a hand-over, it does not poll `work`.
    ///
    /// # Errors
    ///
    /// The reason of the loss, if the lease is lost before `work` completes.
    ///
    /// # Panics
    ///
    /// The future panics in a Tokio runtime without timers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The guard still holds the lease.
    pub async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        let ended = self.ended();
        let done = self.steps(work, &ended).await;
        if done.is_none() {
            // The deadline has passed on this clock. The keeper records the reason on its next check.
            tokio::select! {
                () = ended.cancelled() => {}
                () = time::sleep(KEEPER_TIMEOUT) => self.lease.hold.lose(self.token, Loss::Unreachable),
            }
        }
        done.ok_or_else(|| self.loss())
    }

    /// Polls the work. Returns `None` when the lease was lost first. During a hand-over, the work does not run: another
    /// holder may have the lease. It goes on if the hand-over is refused.
    async fn steps<T>(&self, work: impl Future<Output = T>, ended: &CancellationToken) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut ended = std::pin::pin!(ended.cancelled());
        loop {
            let mut resumed = std::pin::pin!(self.signals.resumed.notified());
            // From here on, it receives each notification.
            resumed.as_mut().enable();
            // The keeper may have ended with its runtime, and idle work wakes no task.
            let left = self.lease.hold.remaining(self.lease.now());
            let mut deadline = std::pin::pin!(sleep_until_deadline(left));
            let step = std::future::poll_fn(|context| {
                if ended.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Some(None));
                }
                // A process that was paused checks the deadline here, before the work runs again.
                match self.lease.hold.phase(self.token, self.lease.now()) {
                    GrantPhase::Held => match work.as_mut().poll(context) {
                        Poll::Ready(done) => Poll::Ready(Some(Some(done))),
                        Poll::Pending => deadline.as_mut().poll(context).map(|()| None),
                    },
                    GrantPhase::Paused => resumed.as_mut().poll(context).map(|()| None),
                    GrantPhase::Ended => Poll::Ready(Some(None)),
                }
            });
            if let Some(done) = step.await {
                return done;
            }
        }
    }

    /// Whether this guard's grant is held, by local knowledge. Sends no request.
    pub fn is_held(&self) -> bool {
        self.lease.token() == Some(self.token)
    }

    fn is_current(&self) -> bool {
        self.lease.hold.granted_token() == Some(self.token)
    }

    /// Why this guard's grant ended. Valid after its end.
    pub(crate) fn loss(&self) -> Loss {
        self.signals.why().unwrap_or(Loss::Released)
    }

    /// Requests a release if the grant ended by the local clock alone, so that waiters need not wait for the expiry.
    /// The caller must have ended the work.
    fn release_lost_grant(&self) {
        if self.lease.hold.is_unreleased(self.token) {
            let command = KeeperCommand::ReleaseToken { hold: self.lease.hold.clone(), token: self.token };
            self.lease.owner.shared.send_command(command);
        }
    }

    /// Requests a release of this guard's grant. The permit excludes other guards until then.
    fn request_release(&self, permit: Option<OwnedMutexGuard<()>>) {
        let hold = self.lease.hold.clone();
        self.lease.owner.shared.send_command(KeeperCommand::Release { hold, token: Some(self.token), permit });
    }

    fn take_permit(&self) -> Option<OwnedMutexGuard<()>> {
        self.permit.lock().expect("no code panics while it holds this lock").take()
    }
}

/// Waits for the end of the time that is left of a grant. Without a deadline or a Tokio runtime it waits for ever.
async fn sleep_until_deadline(left: Option<Duration>) {
    match left {
        Some(left) if left < Duration::MAX && Handle::try_current().is_ok() => {
            time::sleep(left.max(SHORTEST_SLEEP)).await;
        }
        _ => std::future::pending().await,
    }
}

impl Deref for LeaseGuard {
    type Target = Lease;
    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        // `release` took the permit before.
        let Some(permit) = self.take_permit() else { return };
        if self.is_current() {
            self.request_release(Some(permit));
        } else {
            self.release_lost_grant();
        }
    }
}
