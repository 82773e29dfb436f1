//! The leadership of an elected candidate.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::campaign::Candidate;
use super::view;
use crate::client::{CallError, LeaseGuard, Loss, Subscription};
use crate::token::FencingToken;
use crate::types::HolderId;

/// One term of a leader. It can be lost: check [`is_leader`](Leadership::is_leader), or run the work in
/// [`while_leading`](Leadership::while_leading). Send the [`token`](Leadership::token) with every write.
///
/// Call [`resign`](Leadership::resign) at the end. Dropping the leadership only requests a release and does not block.
/// While it exists, another campaign of the same manager waits.
#[must_use = "dropping the leadership resigns"]
pub struct Leadership {
    candidate: Arc<Candidate>,
    guard: LeaseGuard,
    elected: Duration,
    is_established: AtomicBool,
}

impl Leadership {
    pub(super) fn new(candidate: Arc<Candidate>, guard: LeaseGuard, elected: Duration) -> Leadership {
        Leadership { candidate, guard, elected, is_established: AtomicBool::new(false) }
    }

    /// The fencing token of this leadership, also after its end.
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Whether this process is still the leader, by local knowledge. Sends no request.
    pub fn is_leader(&self) -> bool {
        self.guard.is_held()
    }

    /// Whether this process is the leader and its leadership is published as established.
    pub fn is_established(&self) -> bool {
        self.is_leader() && self.is_established.load(Ordering::Relaxed)
    }

    /// A token that is cancelled when the leadership ends, for any reason.
    pub fn lost(&self) -> CancellationToken {
        self.guard.ended()
    }

    /// A token that is cancelled when the manager stops renewing the lease:
    /// [`grace`](super::ElectionOptions::grace) before the deadline, or together with [`lost`](Leadership::lost).
    pub fn stopping(&self) -> CancellationToken {
        self.guard.stopping()
    }

    /// Runs `work` while this process is the leader. The clock is checked before each poll of `work`; when the
    /// leadership ends, `work` is dropped.
    ///
    /// # Errors
    ///
    /// The reason of the loss, if the leadership ends before `work` completes.
    ///
    /// # Panics
    ///
    /// The future panics in a Tokio runtime without timers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The leadership stays in force.
    pub async fn while_leading<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        self.guard.while_held(work).await
    }

    /// Subscribes `call` to the end of the leadership by [`resign`](Leadership::resign) or
    /// [`hand_over`](Leadership::hand_over). They wait for its future, so the work should end there.
    /// [`drain`](super::ElectionOptions::drain) limits the time.
    pub fn before_resign<F>(&self, call: impl Fn() -> F + Send + Sync + 'static) -> Subscription
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.guard.before_release(call)
    }

    /// Fences all earlier leaders, and then publishes this leader as established.
    ///
    /// `fence` receives the token. Before it returns `Ok`, it must write the token to **every** resource that a leader
    /// changes. Only then does every resource reject the writes of earlier leaders. `fence` is dropped when the
    /// leadership is lost.
    ///
    /// Observers see the change within their [`refresh`](super::ElectionOptions::refresh). Calling `establish` again is
    /// harmless.
    ///
    /// # Errors
    ///
    /// The leader is not published as established. After [`Lost`](EstablishError::Lost) this process is not the leader
    /// any more. After another error it is still the leader, and can try again or resign.
    ///
    /// # Panics
    ///
    /// The future panics in a Tokio runtime without timers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `fence`. The leader may be published or not; call `establish` again.
    pub async fn establish<T, E, W>(&self, fence: impl FnOnce(FencingToken) -> W) -> Result<T, EstablishError<E>>
    where
        W: Future<Output = Result<T, E>>,
    {
        let fenced = self.while_leading(fence(self.token())).await.map_err(EstablishError::Lost)?;
        let fenced = fenced.map_err(EstablishError::Fencing)?;
        let metadata = view::established(&self.candidate.options.metadata, self.token());
        let metadata = metadata.expect("`Election::new` checked the metadata with the longest token");
        for _ in 0..LeaseGuard::MAX_UPDATES {
            let published = self.guard.update_metadata(metadata.clone()).await;
            let is_published = published.map_err(EstablishError::NotPublished)?;
            // This waits for the reason of a loss, and for the end of a hand-over.
            self.while_leading(async {}).await.map_err(EstablishError::Lost)?;
            if is_published {
                self.is_established.store(true, Ordering::Relaxed);
                return Ok(fenced);
            }
        }
        Err(EstablishError::NotPublished(LeaseGuard::not_updated()))
    }

    /// Runs the [`before_resign`](Leadership::before_resign) listeners and releases the lease, so that the next
    /// candidate gets it at once. Returns `false` if the leadership was lost before.
    ///
    /// # Errors
    ///
    /// - [`TooEarly`](ResignError::TooEarly): the minimum time is not over. This process is still the leader.
    /// - [`Call`](ResignError::Call): an error of [`Lease::release`]. This process is not the leader any more, and the
    ///   next leader may have to wait for the ttl. Call `resign` again to retry the release.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while this process is the leader.
    ///
    /// # Cancel safety
    ///
    /// The same as [`Lease::release`].
    ///
    /// [`Lease::release`]: crate::client::Lease::release
    pub async fn resign(&self) -> Result<bool, ResignError> {
        self.check_minimum_hold()?;
        Ok(self.resign_now().await?)
    }

    /// Resigns before the [`minimum_hold`](super::ElectionOptions::minimum_hold) is over. It is meant for a process
    /// that ends.
    ///
    /// # Errors
    ///
    /// The same as [`Lease::release`](crate::client::Lease::release).
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while this process is the leader.
    ///
    /// # Cancel safety
    ///
    /// The same as [`Lease::release`](crate::client::Lease::release).
    pub async fn resign_now(&self) -> Result<bool, CallError> {
        match self.guard.can_release() {
            true => self.guard.release_grant().await,
            false => Ok(false),
        }
    }

    /// Runs the [`before_resign`](Leadership::before_resign) listeners and hands the leadership over to a waiting
    /// candidate: to `to`, or to the first one. The lease is never free in between. Returns `false` if the leadership
    /// was lost before.
    ///
    /// # Errors
    ///
    /// - [`TooEarly`](ResignError::TooEarly): the minimum time is not over. This process is still the leader.
    /// - [`Call`](ResignError::Call): an error of [`Lease::hand_over`], which says whether this process is still the
    ///   leader.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while this process is the leader.
    ///
    /// # Cancel safety
    ///
    /// The same as [`Lease::hand_over`].
    ///
    /// [`Lease::hand_over`]: crate::client::Lease::hand_over
    pub async fn hand_over(&self, to: Option<HolderId>) -> Result<bool, ResignError> {
        self.check_minimum_hold()?;
        Ok(self.guard.hand_over(to).await?)
    }

    fn check_minimum_hold(&self) -> Result<(), ResignError> {
        let led = self.candidate.manager.clock().elapsed().saturating_sub(self.elected);
        match self.candidate.options.minimum_hold.checked_sub(led) {
            Some(left) if !left.is_zero() && self.is_leader() => Err(ResignError::TooEarly { left }),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("lease", &self.guard).finish_non_exhaustive()
    }
}

/// Why a leader is not established.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EstablishError<E> {
    /// The resources were not fenced: the error of the caller's function. It is part of the message and not the source,
    /// because it need not be a [`std::error::Error`].
    #[error("the resources were not fenced: {0}")]
    Fencing(E),
    /// The leadership was lost.
    #[error("the leadership was lost before it was established")]
    Lost(#[source] Loss),
    /// The resources are fenced, but observers may not see it.
    #[error("the resources are fenced, but the request that publishes it failed")]
    NotPublished(#[source] CallError),
}

/// Why a leader did not resign.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ResignError {
    /// The [`minimum_hold`](super::ElectionOptions::minimum_hold) is not over. The process is still the leader.
    #[error("the minimum time of the leader is not over: {left:?} left")]
    TooEarly {
        /// The rest of the minimum time.
        left: Duration,
    },
    /// The error of the request.
    #[error(transparent)]
    Call(#[from] CallError),
}
