//! What a test's fake does to a manager.

use std::sync::Weak;

use super::manager::Owner;
use super::{LeaseManager, Loss};
use crate::types::LeaseName;

/// A manager whose leases a test can take.
pub(crate) trait PlayedManager: Send + Sync {
    /// The lease with this name, if it is held, is lost for this reason.
    fn lose(&self, name: &LeaseName, why: Loss);
}

impl PlayedManager for Owner {
    fn lose(&self, name: &LeaseName, why: Loss) {
        for hold in self.shared.all_held().iter().filter(|hold| hold.name == *name) {
            if let Some(token) = hold.granted_token() {
                hold.lose(token, why);
            }
        }
    }
}

impl LeaseManager {
    /// Does not keep the manager alive.
    pub(crate) fn played(&self) -> Weak<dyn PlayedManager> {
        let owner: Weak<Owner> = std::sync::Arc::downgrade(&self.owner);
        owner
    }
}
