//! Semaphores: leases with several concurrent holders. Each permit has its own fencing token.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::api::{Code, Explanation, LeaseInfo, LeaseState, Timestamp};
use crate::client::{AcquireOptions, CallError, LeaseGuard, LeaseManager, LeaseOptions, Loss, Subscription};
use crate::token::FencingToken;
use crate::types::{HolderId, InvalidValue, LeaseName};

/// Numbers the permits of this process, so that two permits of one manager have two holders.
static NEXT_PERMIT: AtomicU64 = AtomicU64::new(1);

/// A distributed semaphore: at most `permits` permits exist at the same time, in all processes together.
///
/// Each permit has its own holder (the manager's holder, `#` and a number), its own token and its own renewals. All
/// users of a semaphore must specify the same number of permits while a permit exists.
///
/// # Examples
///
/// ```no_run
/// use tenure::client::{LeaseManager, LeaseOptions, Wait, WithError};
/// use tenure::semaphore::Semaphore;
///
/// # async fn upload(_: tenure::token::FencingToken) {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let manager = LeaseManager::connect_lazy("http://10.0.0.1:7101")?;
/// let uploads = Semaphore::new(&manager, "uploads", 3, LeaseOptions::new())?;
/// let permit = uploads.acquire(Wait::ForTtl).await?;
/// permit.while_held(upload(permit.token())).await.map_err(WithError::from)?;
/// permit.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    manager: LeaseManager,
    name: LeaseName,
    permits: u32,
    options: LeaseOptions,
}

/// A permit of a semaphore. It can be lost like any lease: check [`is_held`](Permit::is_held), or run the work in
/// [`while_held`](Permit::while_held). Send the [`token`](Permit::token) with every write.
///
/// Call [`release`](Permit::release) at the end. Dropping the permit only requests a release and does not block.
#[must_use = "dropping the permit releases it"]
#[derive(Debug)]
pub struct Permit {
    guard: LeaseGuard,
}

/// The holder of a permit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PermitHolder {
    /// The holder: the manager's holder, `#` and a number.
    pub holder: String,
    /// The fencing token of the permit.
    pub token: FencingToken,
    /// The wall-clock time of the grant. Use it for display only.
    pub since: Timestamp,
}

impl Semaphore {
    /// Creates a semaphore. The call sends no request. `permits` replaces the limit in `options`.
    ///
    /// # Errors
    ///
    /// The name is not a valid lease name, an option is outside the bounds of every cluster, or `permits` is not within
    /// 1 to [`MAX_LIMIT`](crate::types::MAX_LIMIT).
    pub fn new(
        manager: &LeaseManager,
        name: impl AsRef<str>,
        permits: u32,
        options: LeaseOptions,
    ) -> Result<Semaphore, InvalidValue> {
        let semaphore = Semaphore {
            manager: manager.clone(),
            name: LeaseName::new(name.as_ref())?,
            permits,
            options: options.limit(permits),
        };
        // This only checks the options.
        manager.handle(name.as_ref(), &next_holder(manager)?, Some(semaphore.options.clone()))?;
        Ok(semaphore)
    }

    /// The name of the semaphore's lease.
    pub fn name(&self) -> &LeaseName {
        &self.name
    }

    /// Acquires a permit. It waits in the queue for the time in `options`.
    ///
    /// # Errors
    ///
    /// - [`PermitsDiffer`](SemaphoreError::PermitsDiffer): existing permits were acquired with another number of
    ///   permits.
    /// - [`Invalid`](SemaphoreError::Invalid): the manager's holder is too long for the number of a permit.
    /// - [`Call`](SemaphoreError::Call): the same as [`Lease::acquire`](crate::client::Lease::acquire). The code is
    ///   `held` or `wait_timeout` if no permit was free in time. After [`Unknown`](CallError::Unknown), the manager
    ///   tries to release a granted permit in the background. Without an answer, the permit expires by its ttl.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the claim. The manager then withdraws it from the queue, and releases the permit if
    /// the cluster granted it.
    pub async fn acquire(&self, options: impl Into<AcquireOptions>) -> Result<Permit, SemaphoreError> {
        let holder = next_holder(&self.manager)?;
        let lease = self.manager.handle(self.name.as_str(), &holder, Some(self.options.clone()))?;
        let error = match lease.guard(options).await {
            Ok(guard) => return Ok(Permit { guard }),
            Err(error) => error,
        };
        // Each acquire has another holder, so no later call could release the permit of an attempt without an answer.
        lease.resolve_lazily();
        Err(match error {
            CallError::Refused(problem) if problem.code == Code::LimitDiffers => {
                SemaphoreError::PermitsDiffer { asked: self.permits, present: problem.limit }
            }
            error => error.into(),
        })
    }

    /// Reads the holders of permits, ordered by token, from the committed state at some moment during the call.
    ///
    /// Above 1,000 holders, or about 1 MiB, the call reads several pages. Each page shows the state of another moment.
    ///
    /// # Errors
    ///
    /// No node answered in time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn holders(&self) -> Result<Vec<PermitHolder>, CallError> {
        let explained = self.explain().await?;
        let is_cut = explained.held.len() < explained.holders as usize;
        let held = match is_cut {
            false => explained.held,
            true => self.manager.coordinator().held(self.name.to_string(), self.manager.budget()).await?,
        };
        // The list also contains the leases whose names start with this name.
        let held =
            held.into_iter().filter(|lease| lease.state == LeaseState::Active && lease.name == self.name.as_str());
        let holder =
            |lease: LeaseInfo| PermitHolder { holder: lease.holder, token: lease.token, since: lease.granted_at };
        Ok(held.map(holder).collect())
    }

    /// Reads the number of free permits from the committed state. Other holders can acquire them before the caller uses
    /// the result.
    ///
    /// # Errors
    ///
    /// No node answered in time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn available(&self) -> Result<u32, CallError> {
        Ok(self.permits.saturating_sub(self.explain().await?.holders))
    }

    async fn explain(&self) -> Result<Explanation, CallError> {
        let asking = self.manager.holder().clone();
        self.manager.coordinator().explain(self.name.clone(), asking, self.manager.budget()).await
    }
}

impl Permit {
    /// The fencing token of this permit, also after its end.
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// The holder of this permit: the manager's holder, `#` and a number.
    pub fn holder(&self) -> &HolderId {
        self.guard.holder()
    }

    /// Whether the permit is held, by local knowledge. Sends no request.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// The time until the permit ends without another renewal. `None` if it is not held, [`Duration::MAX`] for an
    /// infinite ttl.
    pub fn remaining(&self) -> Option<Duration> {
        self.guard.remaining()
    }

    /// A token that is cancelled when the permit ends: lost or released.
    pub fn ended(&self) -> CancellationToken {
        self.guard.ended()
    }

    /// A token that is cancelled when the manager stops renewing the permit: [`LeaseOptions::grace`] before its deadline,
    /// or together with [`ended`](Permit::ended).
    pub fn stopping(&self) -> CancellationToken {
        self.guard.stopping()
    }

    /// Subscribes `call` to the loss of the permit. A release is no loss.
    pub fn on_lost(&self, call: impl Fn(Loss) + Send + Sync + 'static) -> Subscription {
        self.guard.on_lost(call)
    }

    /// Runs `work` while the permit is held. When the permit is lost, `work` is dropped.
    ///
    /// # Errors
    ///
    /// The reason of the loss, if the permit is lost before `work` completes.
    ///
    /// # Panics
    ///
    /// The future panics in a Tokio runtime without timers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The permit stays held.
    pub async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        self.guard.while_held(work).await
    }

    /// Releases the permit. Returns `false` if it was lost or released before.
    ///
    /// # Errors
    ///
    /// The same as [`Lease::release`](crate::client::Lease::release). After an error this process no longer holds the
    /// permit. Call `release` again to retry.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while the permit is held.
    ///
    /// # Cancel safety
    ///
    /// The same as [`LeaseGuard::release`].
    pub async fn release(&self) -> Result<bool, CallError> {
        self.guard.release().await
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.name).field("permits", &self.permits).finish_non_exhaustive()
    }
}

fn next_holder(manager: &LeaseManager) -> Result<HolderId, InvalidValue> {
    HolderId::new(format!("{}#{}", manager.holder(), NEXT_PERMIT.fetch_add(1, Ordering::Relaxed)))
}

/// Why no permit was acquired.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SemaphoreError {
    /// Existing permits were acquired with another number of permits.
    #[error(
        "{asked} permits were requested: expected the number in force{}",
        present.map(|limit| format!(", {limit}")).unwrap_or_default()
    )]
    PermitsDiffer {
        /// The number of permits of this semaphore.
        asked: u32,
        /// The number in force, if the cluster named it.
        present: Option<u64>,
    },
    /// The manager's holder is too long for the number of a permit.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// The error of the request.
    #[error(transparent)]
    Call(#[from] CallError),
}
