//! A lease that is held for one part of a program.

use std::ops::Deref;
use std::sync::Mutex;
use std::task::Poll;

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use super::shared::KeeperCommand;
use super::{CallError, HoldState, Lease, Loss};
use crate::token::FencingToken;

/// A lease that was acquired for one part of a program. It can be lost all the same: ask
/// [`is_held`](Lease::is_held), or do the work in [`while_held`](LeaseGuard::while_held).
///
/// [`release`](LeaseGuard::release) it. Dropping it only asks for a release: it waits for nothing, works outside a
/// runtime, and what is not released expires.
#[must_use = "dropping it gives the lease back"]
#[derive(Debug)]
pub struct LeaseGuard {
    lease: Lease,
    token: FencingToken,
    /// Keeps other guards of this lease out. None once it was released.
    permit: Mutex<Option<OwnedMutexGuard<()>>>,
}

impl LeaseGuard {
    pub(super) fn new(lease: Lease, token: FencingToken, permit: OwnedMutexGuard<()>) -> LeaseGuard {
        LeaseGuard { lease, token, permit: Mutex::new(Some(permit)) }
    }

    /// The fencing token of this guard's grant, whether or not it is still in force.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Drains and gives the lease back. `false`: it was lost, or released, before.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`]: the lease is not held here any more. The guard goes on keeping other guards out, and may
    /// be released again.
    pub async fn release(&self) -> Result<bool, CallError> {
        let released = match self.is_current() || self.is_unreleased() {
            true => self.lease.release().await?,
            false => {
                self.give_back();
                false
            }
        };
        drop(self.take_permit());
        Ok(released)
    }

    /// Whether this guard's grant was given up here, and its release failed.
    pub(crate) fn is_unreleased(&self) -> bool {
        self.lease.hold.unreleased() == Some(self.token)
    }

    /// Does the work while the lease is held: `Err` with the reason if it is lost first. The work is then dropped, and
    /// has not run since: before each of its steps the clock is looked at.
    pub async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        let gone = self.lease.gone();
        let done = self.steps(work, &gone).await;
        if done.is_none() {
            // By this clock it is over; the keeper, who knows why, has at most not looked yet.
            gone.cancelled().await;
        }
        done.ok_or_else(|| self.loss())
    }

    /// `None` when the work was stopped.
    async fn steps<T>(&self, work: impl Future<Output = T>, gone: &CancellationToken) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut gone = std::pin::pin!(gone.cancelled());
        std::future::poll_fn(|context| {
            // A paused process wakes up here, before the work does.
            if !self.is_held() || gone.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await
    }

    /// Whether this guard's own grant is held.
    pub fn is_held(&self) -> bool {
        self.lease.token() == Some(self.token)
    }

    fn is_current(&self) -> bool {
        self.lease.hold.granted_token() == Some(self.token)
    }

    /// Why this guard's grant ended, once it has.
    pub(crate) fn loss(&self) -> Loss {
        match self.lease.state() {
            HoldState::Lost { why, .. } => why,
            // By another handle, which is the only other way for a grant to end.
            _ => Loss::Released,
        }
    }

    /// The work has ended: if only this side says that the lease is over, others need not wait for its end.
    fn give_back(&self) {
        if self.lease.hold.unreleased_token() == Some(self.token) {
            let order = KeeperCommand::GiveBack { hold: self.lease.hold.clone(), token: self.token };
            self.lease.owner.shared.order(order);
        }
    }

    fn take_permit(&self) -> Option<OwnedMutexGuard<()>> {
        self.permit.lock().expect("nothing panics while it has the lock").take()
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
        // Taken when it was released.
        let Some(permit) = self.take_permit() else { return };
        if self.is_current() {
            let order = KeeperCommand::Release { hold: self.lease.hold.clone(), permit: Some(permit) };
            self.lease.owner.shared.order(order);
        } else {
            self.give_back();
        }
    }
}
