//! Being the leader.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::campaign::Candidate;
use super::view;
use crate::client::{CallError, Lease, LeaseGuard, Loss, Subscription};
use crate::token::FencingToken;
use crate::types::HolderId;

/// The time of one leader. It can be lost: ask [`is_leader`](Leadership::is_leader), or lead in
/// [`while_leading`](Leadership::while_leading). Send the [`token`](Leadership::token) with every write.
///
/// [`resign`](Leadership::resign) at the end. Dropping it only asks for a release, and waits for nothing. As long as it
/// is there, another campaign of the same manager waits.
#[must_use = "dropping it resigns"]
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

    /// The fencing token of this leadership, whether or not it is still in force.
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Whether this is still the leader, by this side's own knowledge. Never asks anybody.
    pub fn is_leader(&self) -> bool {
        self.guard.is_held()
    }

    /// Whether this is the leader, and observers are told that it is established.
    pub fn is_established(&self) -> bool {
        self.is_leader() && self.is_established.load(Ordering::Relaxed)
    }

    /// Cancelled when the leadership is over, for whatever reason.
    pub fn lost(&self) -> CancellationToken {
        self.guard.gone()
    }

    /// Cancelled when the lease will not be renewed any more:
    /// [`grace`](super::ElectionOptions::grace) before the deadline, or with [`lost`](Leadership::lost).
    pub fn stopping(&self) -> CancellationToken {
        self.guard.stopping()
    }

    /// Works while this is the leader: `Err` with the reason if that ends first. The work is then dropped, and has not
    /// run since.
    pub async fn while_leading<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        self.guard.while_held(work).await
    }

    /// Calls, and waits for the future, before the lease is given back by [`resign`](Leadership::resign) or
    /// [`hand_over`](Leadership::hand_over): the place to end the work.
    /// [`drain`](super::ElectionOptions::drain) bounds it.
    pub fn before_resign<F>(&self, call: impl Fn() -> F + Send + Sync + 'static) -> Subscription
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.guard.before_release(call)
    }

    /// Takes the power from every earlier leader, and then tells the observers that this one is established.
    ///
    /// `fence` gets the token and must have written it to **every** resource that a leader changes when it returns
    /// `Ok`: only then is it certain that no write of an earlier leader is accepted any more. It is dropped at the loss
    /// of the leadership. Calling again is harmless, whatever became of it before. Observers see it when they look next:
    /// within their [`refresh`](super::ElectionOptions::refresh).
    ///
    /// # Errors
    ///
    /// Not established. Unless it is [`Lost`](EstablishError::Lost) this is still the leader, and may try again or
    /// resign.
    pub async fn establish<T, E, W>(&self, fence: impl FnOnce(FencingToken) -> W) -> Result<T, EstablishError<E>>
    where
        W: Future<Output = Result<T, E>>,
    {
        let fenced = self.while_leading(fence(self.token())).await.map_err(EstablishError::Lost)?;
        let fenced = fenced.map_err(EstablishError::Fencing)?;
        let metadata = view::established(&self.candidate.options.metadata, self.token());
        let metadata = metadata.expect("checked with the longest token when the election was made");
        match self.guard.update_metadata(metadata).await {
            Ok(true) if self.is_leader() => {
                self.is_established.store(true, Ordering::Relaxed);
                Ok(fenced)
            }
            Ok(_) => Err(EstablishError::Lost(self.guard.loss())),
            Err(error) => Err(EstablishError::NotPublished(error)),
        }
    }

    /// Drains and gives the lease back, so that the next candidate has it at once. `false`: it was lost before.
    ///
    /// # Errors
    ///
    /// [`TooEarly`](ResignError::TooEarly): still the leader. Otherwise as [`Lease::release`]: not the leader any more,
    /// and the successor may have to wait for the ttl. Resigning again tries once more.
    ///
    /// [`Lease::release`]: crate::client::Lease::release
    pub async fn resign(&self) -> Result<bool, ResignError> {
        self.may_resign()?;
        Ok(self.resign_now().await?)
    }

    /// Resigns although the [`minimum_hold`](super::ElectionOptions::minimum_hold) may not be over: for a process that
    /// ends.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`](crate::client::Lease::release).
    pub async fn resign_now(&self) -> Result<bool, CallError> {
        match self.is_leader() || self.guard.is_unreleased() {
            true => Lease::release(&self.guard).await,
            false => Ok(false),
        }
    }

    /// Drains and gives the lease to a candidate that waits (the first if none is named), without a moment in which
    /// nobody leads. `false`: it was lost before.
    ///
    /// # Errors
    ///
    /// [`TooEarly`](ResignError::TooEarly), or refused as `no_such_waiter`, or unavailable: still the leader. Unknown:
    /// not the leader any more, and it may be somebody else.
    pub async fn hand_over(&self, to: Option<HolderId>) -> Result<bool, ResignError> {
        self.may_resign()?;
        match self.is_leader() {
            true => Ok(self.guard.hand_over(to).await?),
            false => Ok(false),
        }
    }

    fn may_resign(&self) -> Result<(), ResignError> {
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
pub enum EstablishError<E> {
    /// The resources were not fenced: what the caller's own function said.
    #[error("the resources were not fenced: {0}")]
    Fencing(E),
    /// It is not the leader any more.
    #[error("the leadership was lost before it was established: {0}")]
    Lost(Loss),
    /// The resources are fenced, and observers may not know it.
    #[error("the resources are fenced, and that could not be published: {0}")]
    NotPublished(CallError),
}

/// Why a leader did not resign as it should.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ResignError {
    /// The [`minimum_hold`](super::ElectionOptions::minimum_hold) is not over. Still the leader.
    #[error("it has not led for its minimum time: {left:?} are left")]
    TooEarly { left: Duration },
    /// What became of the request.
    #[error(transparent)]
    Call(#[from] CallError),
}
