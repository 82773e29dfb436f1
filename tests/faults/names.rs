//! The names of the leases that the clients use. The linearizability search handles a limited number of operations per
//! name. So each episode has separate names, and each name is replaced after a number of operations.

use tenure::types::LeaseName;

/// The lease of the writes that show the log index of a moment.
pub const MARKER: &str = "marker";
/// The number of leases in use at once.
pub const SLOTS: usize = 24;
/// The number of operations on one name.
const MAX_OPERATIONS: usize = 150;

pub struct Names {
    episode: u64,
    /// For each slot: the generation of its name, and the operations on that name.
    slots: [(u64, usize); SLOTS],
}

impl Names {
    pub fn new(episode: u64) -> Names {
        Names { episode, slots: [(0, 0); SLOTS] }
    }

    /// Returns the name of a slot for one operation, and its episode.
    pub fn next(&mut self, slot: usize) -> (LeaseName, u64) {
        let (generation, operations) = &mut self.slots[slot];
        if *operations == MAX_OPERATIONS {
            (*generation, *operations) = (*generation + 1, 0);
        }
        *operations += 1;
        let name = format!("{}{slot}.{generation}", prefix(self.episode));
        (LeaseName::new(name).expect("the name is short and has letters, digits and dots only"), self.episode)
    }
}

/// The prefix of the names of an episode.
pub fn prefix(episode: u64) -> String {
    format!("e{episode}.")
}

/// The episode of a name, or `None` for other names.
pub fn episode(name: &str) -> Option<u64> {
    name.strip_prefix('e')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_replaced_after_its_last_operation() {
        let mut names = Names::new(7);
        let used: Vec<_> = (0..2 * MAX_OPERATIONS).map(|_| names.next(3).0).collect();
        assert_eq!((used[0].as_str(), used[MAX_OPERATIONS].as_str()), ("e7.3.0", "e7.3.1"));
        assert!(used[..MAX_OPERATIONS].iter().all(|name| *name == used[0]));
        assert_eq!((episode("e7.3.1"), episode("lock.1"), episode("probe")), (Some(7), None, None));
    }
}
