//! Work that runs only while a lease is held.

use super::{AcquireOptions, CallError, Lease, Loss};

impl Lease {
    /// Acquires the lease, runs `work` while it is held, and releases it at the end.
    ///
    /// The manager renews the lease during the work. The clock is checked before each poll of the work; when the lease
    /// is lost, the work is dropped. If the work panics, the lease is released in the background. If the release at the
    /// end fails, the call still returns the result of the work, and the lease expires by its ttl.
    ///
    /// # Errors
    ///
    /// - [`NotAcquired`](WithError::NotAcquired): the lease was not acquired, and the work did not start.
    /// - [`Lost`](WithError::Lost): the lease was lost, and the work was dropped before its end.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the lease in the background.
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
                    tracing::warn!(
                        lease = %self.name(), %error,
                        "the work is done; the release of its lease failed, and the lease expires by its ttl"
                    );
                }
                Ok(done)
            }
            Err(why) => Err(WithError::Lost(why)),
        }
    }
}

/// Why [`Lease::with`] returned no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WithError {
    /// The work did not start.
    #[error("the lease was not acquired")]
    NotAcquired(#[from] CallError),
    /// The work started and was dropped before its end.
    #[error("the lease was lost while the work ran")]
    Lost(#[source] Loss),
}

impl From<Loss> for WithError {
    fn from(why: Loss) -> WithError {
        WithError::Lost(why)
    }
}
