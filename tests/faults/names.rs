//! The names of the leases that clients work on. The search for an order of operations bears only so many of one name, so
//! each episode has names of its own, and a name is given up for the next when it has had enough.

use tenure::types::LeaseName;

/// Leases that are worked on at once.
pub const SLOTS: usize = 24;
/// Operations on one name.
const MAX_OPERATIONS: usize = 150;

pub struct Names {
    episode: u64,
    /// For each slot the generation of its name, and how many operations that has had.
    slots: [(u64, usize); SLOTS],
}

impl Names {
    pub fn new(episode: u64) -> Names {
        Names { episode, slots: [(0, 0); SLOTS] }
    }

    /// The name of a slot's lease, for one operation, and its episode.
    pub fn next(&mut self, slot: usize) -> (LeaseName, u64) {
        let (generation, operations) = &mut self.slots[slot];
        if *operations == MAX_OPERATIONS {
            (*generation, *operations) = (*generation + 1, 0);
        }
        *operations += 1;
        let name = format!("{}{slot}.{generation}", prefix(self.episode));
        (LeaseName::new(name).expect("short, of letters, digits and dots"), self.episode)
    }
}

/// What the names of an episode begin with.
pub fn prefix(episode: u64) -> String {
    format!("e{episode}.")
}

/// The episode that a name is of, if it is of one.
pub fn episode(name: &str) -> Option<u64> {
    name.strip_prefix('e')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_up_when_it_has_had_enough() {
        let mut names = Names::new(7);
        let used: Vec<_> = (0..2 * MAX_OPERATIONS).map(|_| names.next(3).0).collect();
        assert_eq!((used[0].as_str(), used[MAX_OPERATIONS].as_str()), ("e7.3.0", "e7.3.1"));
        assert!(used[..MAX_OPERATIONS].iter().all(|name| *name == used[0]));
        assert_eq!((episode("e7.3.1"), episode("lock.1"), episode("probe")), (Some(7), None, None));
    }
}
