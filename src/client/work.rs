//! Work that is done only while a lease is held.

use super::{AcquireOptions, CallError, Lease, Loss};

impl Lease {
    /// Acquires the lease, does the work while it is held, and releases it at the end. The lease is renewed meanwhile;
    /// at its loss the work is dropped before it runs any further.
    ///
    /// Work that panics, or is dropped, leaves a lease that is asked to be released. If the release at the end fails
    /// the lease expires, and the work's result is returned all the same.
    ///
    /// # Errors
    ///
    /// The lease was not acquired, and the work not begun; or it was lost, and the work stopped on its way.
    pub async fn with<T, W>(
        &self,
        options: impl Into<AcquireOptions>,
        work: impl FnOnce(Lease) -> W,
    ) -> Result<T, WithError>
    where
        W: Future<Output = T>,
    {
        let guard = self.guard(options).await?;
        match guard.while_held(work(self.clone())).await {
            Ok(done) => {
                if let Err(error) = guard.release().await {
                    tracing::warn!(lease = %self.name(), %error, "the work is done; its lease was not released, and expires");
                }
                Ok(done)
            }
            Err(why) => Err(WithError::Lost(why)),
        }
    }
}

/// Why work under a lease has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WithError {
    /// Not begun.
    #[error("the lease was not acquired: {0}")]
    NotAcquired(#[from] CallError),
    /// Begun, and stopped on its way.
    #[error("the lease was lost while the work was done: {0}")]
    Lost(Loss),
}

impl From<Loss> for WithError {
    fn from(why: Loss) -> WithError {
        WithError::Lost(why)
    }
}
