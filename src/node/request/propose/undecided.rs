//! The names whose claims wait for the outcome of an entry in flight.

use std::collections::BTreeSet;

use crate::lease::{Acquire, Command, HolderCommand};
use crate::types::LeaseName;

/// The names of which an entry in flight may postpone a claim. A later claim of such a name must not overtake it.
#[derive(Default)]
pub(super) struct Undecided(BTreeSet<LeaseName>);

impl Undecided {
    pub fn holds_back(&self, command: &Command) -> bool {
        claim(command).is_some_and(|claim| self.0.contains(&claim.name))
    }

    /// Adds the names of an entry, and returns them.
    pub fn add<'c>(&mut self, entry: impl Iterator<Item = &'c Command>) -> BTreeSet<LeaseName> {
        let names: BTreeSet<LeaseName> = entry.filter_map(may_postpone).cloned().collect();
        self.0.extend(names.iter().cloned());
        names
    }

    pub fn remove(&mut self, names: BTreeSet<LeaseName>) {
        for name in names {
            self.0.remove(&name);
        }
    }
}

fn claim(command: &Command) -> Option<&Acquire> {
    match command {
        Command::Acquire(claim) | Command::As { command: HolderCommand::Acquire(claim), .. } => Some(claim),
        _ => None,
    }
}

/// The name of which an entry with this command may postpone a claim. The entry grants the name at most once, and a
/// further slot can be free: of a counted lease, or after a revoke.
fn may_postpone(command: &Command) -> Option<&LeaseName> {
    match command {
        Command::Revoke { name, .. } => Some(name),
        command => claim(command).filter(|claim| claim.limit > 1).map(|claim| &claim.name),
    }
}
