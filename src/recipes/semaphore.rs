//! Semaphores: at most so many at once, each with a fencing token of its own.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::{Code, Explanation, Lease, LeaseState, Timestamp};
use crate::client::{AcquireOptions, CallError, LeaseGuard, LeaseManager, LeaseOptions};
use crate::token::FencingToken;
use crate::types::{HolderId, InvalidValue, LeaseName};

/// Numbers the permits of this process, so that two of one manager are two holders.
static NEXT_PERMIT: AtomicU64 = AtomicU64::new(1);

/// A counted lease: at most `permits` processes, or parts of one, are in it at once.
///
/// Each permit is a holder of its own, named after the manager's with `#` and a number, has its own token and is renewed
/// on its own. All who use the name must say the same number of permits as long as anybody is in it.
///
/// ```no_run
/// use tenure::client::{LeaseManager, LeaseOptions, Wait, WithError};
/// use tenure::semaphore::Semaphore;
///
/// # async fn upload(_: tenure::token::FencingToken) {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let manager = LeaseManager::connect("http://10.0.0.1:7101")?;
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

/// One's place in a semaphore: a [`LeaseGuard`] with everything that one has. It can be lost like any lease.
#[must_use = "dropping it gives the permit back"]
#[derive(Debug)]
pub struct Permit {
    guard: LeaseGuard,
}

/// Who has a permit.
#[derive(Clone, Debug, PartialEq)]
pub struct PermitHolder {
    pub holder: String,
    pub token: FencingToken,
    /// When it was granted, by a wall clock: for people.
    pub since: Timestamp,
}

impl Semaphore {
    /// A semaphore. Asks nobody. The limit in `options` is `permits`, whatever was said there.
    ///
    /// # Errors
    ///
    /// The name is not a lease's name, or an option is outside the bounds of every cluster; there are 1 to
    /// [`MAX_LIMIT`](crate::types::MAX_LIMIT) permits.
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
        // Has the options checked.
        manager.handle(name.as_ref(), &next_holder(manager)?, Some(semaphore.options.clone()))?;
        Ok(semaphore)
    }

    pub fn name(&self) -> &LeaseName {
        &self.name
    }

    /// Gets a permit, waiting in the queue as long as asked. Dropping the future gives up the place, and releases what
    /// may have been granted.
    ///
    /// # Errors
    ///
    /// [`PermitsDiffer`](SemaphoreError::PermitsDiffer); or as [`Lease::acquire`](crate::client::Lease::acquire), with
    /// the code `held` or `wait_timeout` if there was no permit in time.
    pub async fn acquire(&self, options: impl Into<AcquireOptions>) -> Result<Permit, SemaphoreError> {
        let holder = next_holder(&self.manager)?;
        let lease = self.manager.handle(self.name.as_str(), &holder, Some(self.options.clone()))?;
        match lease.guard(options).await {
            Ok(guard) => Ok(Permit { guard }),
            Err(CallError::Refused(problem)) if problem.code == Code::LimitDiffers => {
                Err(SemaphoreError::PermitsDiffer { asked: self.permits, present: problem.limit })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Who has a permit, in the order of their tokens, by the committed state at some moment during the call. Above 1,000
    /// holders, or about 1 MiB, they are read in pages, each by the state at a moment of its own.
    ///
    /// # Errors
    ///
    /// Nobody could be asked.
    pub async fn holders(&self) -> Result<Vec<PermitHolder>, CallError> {
        let explained = self.explain().await?;
        let is_cut = explained.held.len() < explained.holders as usize;
        let held = match is_cut {
            false => explained.held,
            true => self.manager.coordinator().held(self.name.to_string(), self.manager.budget()).await?,
        };
        // A list has also the names that begin with this one.
        let held =
            held.into_iter().filter(|lease| lease.state == LeaseState::Active && lease.name == self.name.as_str());
        let holder = |lease: Lease| PermitHolder { holder: lease.holder, token: lease.token, since: lease.granted_at };
        Ok(held.map(holder).collect())
    }

    /// How many permits nobody has, by the committed state. Somebody else may have them before the answer is used.
    ///
    /// # Errors
    ///
    /// Nobody could be asked.
    pub async fn available(&self) -> Result<u32, CallError> {
        Ok(self.permits.saturating_sub(self.explain().await?.holders))
    }

    async fn explain(&self) -> Result<Explanation, CallError> {
        let asking = self.manager.holder().clone();
        self.manager.coordinator().explain(self.name.clone(), asking, self.manager.budget()).await
    }
}

impl Permit {
    /// Gives the permit back. `false`: it was lost, or given back, before.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`](crate::client::Lease::release): the permit is not held here any more, and may be released
    /// again.
    pub async fn release(&self) -> Result<bool, CallError> {
        self.guard.release().await
    }
}

impl Deref for Permit {
    type Target = LeaseGuard;
    fn deref(&self) -> &LeaseGuard {
        &self.guard
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

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SemaphoreError {
    /// Others are in it with another number of permits.
    #[error("{asked} permits were asked for, and {} are in force", present.map_or("others".to_owned(), |limit| limit.to_string()))]
    PermitsDiffer { asked: u32, present: Option<u64> },
    /// The holder's name has no room for the number of a permit.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// What became of the request.
    #[error(transparent)]
    Call(#[from] CallError),
}
