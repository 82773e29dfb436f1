//! New metadata for a lease that is held.

use super::operations::{check, standing};
use super::{CallError, Lease, Patience};
use crate::api::{Code, Standing, UpdateMetadata};
use crate::types::Metadata;

/// Attempts to replace the metadata. Another one is needed only when an earlier change of this holder, whose answer was
/// lost, arrives in between.
const ATTEMPTS: u32 = 5;

impl Lease {
    /// Replaces the metadata of the present grant. `false`: it is not held.
    ///
    /// The change names the version that it replaces, so an earlier change that arrives late does not undo it. A change
    /// of metadata is no transition: a watch does not report it.
    ///
    /// # Errors
    ///
    /// Unknown: the metadata may have been replaced. The lease stays held, and the change can be sent again.
    pub(crate) async fn update_metadata(&self, metadata: Metadata) -> Result<bool, CallError> {
        let (shared, hold) = (&self.owner.shared, &self.hold);
        let _alone = hold.operation.lock().await;
        let mut attempt = 1;
        loop {
            let Some(token) = hold.token(self.now()) else { return Ok(false) };
            let version = match standing(shared, hold).await? {
                Standing::Holds { lease, .. } if lease.token == token => lease.metadata_version,
                _ => return check(shared, hold).await.map(|_| false),
            };
            let update = UpdateMetadata { holder: hold.holder.clone(), token, version, metadata: metadata.clone() };
            let patience = Patience::within(shared.options.operation_timeout);
            match shared.coordinator.update_metadata(hold.name.clone(), update, patience).await {
                Ok(_) => return Ok(hold.token(self.now()) == Some(token)),
                Err(CallError::Refused(problem)) if problem.code == Code::Lost => {
                    return check(shared, hold).await.map(|_| false);
                }
                Err(CallError::Refused(problem)) if problem.code == Code::MetadataChanged && attempt < ATTEMPTS => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
