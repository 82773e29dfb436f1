//! Hooks for the fake cluster of tests.

use std::sync::Weak;

use super::manager::Owner;
use super::{LeaseManager, Loss};
use crate::types::LeaseName;

/// A manager whose leases a test can end.
pub(crate) trait PlayedManager: Send + Sync {
    /// Ends the held lease with this name as lost.
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
    /// The hooks of this manager. They do not keep the manager alive.
    pub(crate) fn played(&self) -> Weak<dyn PlayedManager> {
        let owner: Weak<Owner> = std::sync::Arc::downgrade(&self.owner);
        owner
    }
}
