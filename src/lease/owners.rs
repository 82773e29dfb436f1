//! The principals that the holders and waiters of one name belong to, under access control.

use imbl::OrdMap;

use crate::types::{AccessName, HolderId};

/// The owner of each holder and waiter of a name that has one. A holder is never a holder and a waiter at the same time.
///
/// Most names have none, so this takes one word of the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owners(Option<Box<OrdMap<HolderId, AccessName>>>);

impl Owners {
    pub fn of(&self, holder: &HolderId) -> Option<&AccessName> {
        self.0.as_ref()?.get(holder)
    }

    /// In the order of the holders.
    pub fn iter(&self) -> impl Iterator<Item = (&HolderId, &AccessName)> {
        self.0.iter().flat_map(|owners| owners.iter())
    }

    pub fn insert(&mut self, holder: HolderId, owner: AccessName) {
        self.0.get_or_insert_default().insert(holder, owner);
    }

    pub fn remove(&mut self, holder: &HolderId) {
        let Some(owners) = &mut self.0 else { return };
        owners.remove(holder);
        if owners.is_empty() {
            self.0 = None;
        }
    }
}
