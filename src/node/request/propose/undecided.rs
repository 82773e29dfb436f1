//! The names whose claims wait for the outcome of an entry in flight.

use std::collections::BTreeSet;

use crate::lease::{Acquire, Command, HolderCommand};
use crate::types::LeaseName;

/// The names of which an entry in flight may postpone a claim, for each entry. A later claim of such a name must not
/// overtake it.
#[derive(Default)]
pub(super) struct Undecided(Vec<BTreeSet<LeaseName>>);

impl Undecided {
    pub fn holds_back(&self, command: &Command) -> bool {
        claim(command).is_some_and(|claim| self.0.iter().any(|names| names.contains(&claim.name)))
    }

    /// Adds the names of an entry, and returns them.
    pub fn add<'c>(&mut self, entry: impl Iterator<Item = &'c Command>) -> BTreeSet<LeaseName> {
        let names: BTreeSet<LeaseName> = entry.filter_map(may_postpone).cloned().collect();
        self.0.push(names.clone());
        names
    }

    /// Removes the names of an entry. The other entry in flight can have the same names.
    pub fn remove(&mut self, names: &BTreeSet<LeaseName>) {
        if let Some(at) = self.0.iter().position(|of_entry| of_entry == names) {
            self.0.swap_remove(at);
        }
    }
}

/// The claims of one entry that would overtake an earlier claim of the entry.
///
/// The entry queues a claim with a wait that it cannot grant. If it postpones an earlier claim without a wait, the queue
/// gets the free slot before that claim comes again. So the claim with a wait goes into a later entry, and so do the
/// claims of its name behind it.
#[derive(Default)]
pub(super) struct EntryOrder {
    revoked: BTreeSet<LeaseName>,
    /// The names with a claim that the entry may postpone.
    postponed: BTreeSet<LeaseName>,
    held_back: BTreeSet<LeaseName>,
}

impl EntryOrder {
    /// Whether the next command of the entry must wait for the outcome of the entry.
    pub fn holds_back(&mut self, command: &Command) -> bool {
        if let Command::Revoke { name, .. } = command {
            self.revoked.insert(name.clone());
        }
        let Some(Acquire { name, limit, wait_ms, .. }) = claim(command) else { return false };
        if wait_ms.is_some() && self.postponed.contains(name) {
            self.held_back.insert(name.clone());
        }
        if wait_ms.is_none() && (*limit > 1 || self.revoked.contains(name)) {
            self.postponed.insert(name.clone());
        }
        self.held_back.contains(name)
    }
}

fn claim(command: &Command) -> Option<&Acquire> {
    match command {
        Command::Acquire(claim) | Command::As { command: HolderCommand::Acquire(claim), .. } => Some(claim),
        _ => None,
    }
}

/// The name of which an entry with this command may postpone a claim. The entry grants the name at most once, and a
/// further slot can be free: of a counted lease, or after a revoke. A claim with a wait is queued instead.
fn may_postpone(command: &Command) -> Option<&LeaseName> {
    match command {
        Command::Revoke { name, .. } => Some(name),
        command => {
            let claim = claim(command)?;
            (claim.limit > 1 && claim.wait_ms.is_none()).then_some(&claim.name)
        }
    }
}
