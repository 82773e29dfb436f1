//! New notes beside a lease that is held.

use super::operations::{check, claim_of, send_release};
use super::{CallError, Lease, Loss, Patience};
use crate::api::{Acquire, Code};
use crate::types::Metadata;

impl Lease {
    /// Replaces the metadata beside the present grant: the same holder claims again, which keeps the token. `false`: it
    /// is not held.
    ///
    /// A change of metadata is no transition, so that no watch tells of it: whoever must know looks now and then.
    ///
    /// # Errors
    ///
    /// Unknown: the notes may have been replaced. The lease is held on as before, and the same may be asked again.
    pub(crate) async fn annotate(&self, metadata: Metadata) -> Result<bool, CallError> {
        let (shared, hold) = (&self.owner.shared, &self.hold);
        let _alone = hold.operation.lock().await;
        let Some(token) = hold.token(self.now()) else { return Ok(false) };
        let claim = Acquire { metadata, ..claim_of(hold, &hold.options()) };
        let patience = Patience::within(shared.options.operation_timeout);
        match shared.coordinator.acquire(hold.name.clone(), claim, patience).await {
            Ok(lease) if lease.token == token => Ok(hold.token(self.now()) == Some(token)),
            Ok(lease) => {
                // The grant had ended, unheard of, and the claim got another one that nobody asked for.
                hold.lose(token, Loss::Expired);
                send_release(shared, hold, lease.token).await?;
                Ok(false)
            }
            // Somebody else holds it: the cluster knows how that came about.
            Err(CallError::Refused(problem)) if matches!(problem.code, Code::Held | Code::LockDelay) => {
                check(shared, hold).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
