//! Who is inside a gate: one room for each resource, and in a room only one token at a time.
//!
//! Pure: no lock, no clock, no disk. Invariants: a mark never falls; whoever is in a room has the same token; nobody
//! enters with a token below the mark.

use std::collections::HashMap;
use std::sync::Arc;

use super::{HighWater, Refused};
use crate::token::FencingToken;

/// Most resources that one gate knows. Marks are never forgotten to make place, because that would let old holders in.
pub const MAX_RESOURCES: usize = 65_536;
/// Longest name of a resource, in bytes.
pub const MAX_RESOURCE_BYTES: usize = 512;
/// Most callers that wait at one gate for older ones to leave.
pub const MAX_WAITING: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct ResourceTable {
    resources: HashMap<Arc<str>, Room>,
    waiting: usize,
    /// Why the marks cannot be kept any more.
    failure: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct Room {
    mark: HighWater,
    /// How many are inside, all with the token below.
    inside: usize,
    token: HighWater,
}

/// What whoever stands before the gate has to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing: it is inside.
    Inside(Arc<str>),
    /// Raise the mark first.
    Raise,
    /// Wait until the older ones have left.
    Wait { older: FencingToken },
}

impl ResourceTable {
    pub fn new(store: impl IntoIterator<Item = (String, HighWater)>) -> ResourceTable {
        let mut resources = ResourceTable::default();
        for (resource, mark) in store {
            let room = resources.resources.entry(resource.into()).or_default();
            room.mark = room.mark.max(mark);
        }
        resources
    }

    /// Lets the token in, if that is possible now.
    pub fn step(&mut self, resource: &str, token: FencingToken) -> Result<Step, Refused> {
        self.check(resource)?;
        let Some((name, _)) = self.resources.get_key_value(resource) else { return Ok(Step::Raise) };
        let name = Arc::clone(name);
        let room = self.resources.get_mut(resource).expect("found a moment ago");
        let offered = room.mark.offer(token)?;
        if offered > room.mark {
            return Ok(Step::Raise);
        }
        if room.inside > 0 && room.token != offered {
            return Ok(Step::Wait { older: room.token.token() });
        }
        room.inside += 1;
        room.token = offered;
        Ok(Step::Inside(name))
    }

    /// The mark that has to be kept before the token can enter; `None` if it is kept already.
    pub fn mark_to_keep(&self, resource: &str, token: FencingToken) -> Result<Option<HighWater>, Refused> {
        self.check(resource)?;
        let Some(room) = self.resources.get(resource) else {
            if self.resources.len() >= MAX_RESOURCES {
                return Err(Refused::TooManyResources);
            }
            return Ok(Some(HighWater::NONE.offer(token)?));
        };
        let offered = room.mark.offer(token)?;
        Ok((offered > room.mark).then_some(offered))
    }

    /// The mark is kept. From here on older tokens are refused, though some may still be inside.
    pub fn raise(&mut self, resource: &str, mark: HighWater) {
        match self.resources.get_mut(resource) {
            Some(room) => {
                assert!(mark >= room.mark, "the mark of {resource:?} fell from {:?} to {mark:?}", room.mark);
                room.mark = mark;
            }
            None => drop(self.resources.insert(resource.into(), Room { mark, ..Room::default() })),
        }
    }

    /// One of those inside leaves. True: the room is empty.
    pub fn leave(&mut self, resource: &str) -> bool {
        let room = self.resources.get_mut(resource).expect("rooms are never removed");
        room.inside = room.inside.checked_sub(1).expect("whoever leaves was inside");
        room.inside == 0
    }

    pub fn begin_waiting(&mut self) -> Result<(), Refused> {
        if self.waiting >= MAX_WAITING {
            return Err(Refused::Crowded);
        }
        self.waiting += 1;
        Ok(())
    }

    pub fn end_waiting(&mut self) {
        self.waiting -= 1;
    }

    pub fn fail(&mut self, why: Arc<str>) {
        self.failure.get_or_insert(why);
    }

    pub fn mark(&self, resource: &str) -> HighWater {
        self.resources.get(resource).map_or(HighWater::NONE, |room| room.mark)
    }

    fn check(&self, resource: &str) -> Result<(), Refused> {
        if let Some(why) = &self.failure {
            return Err(Refused::Failed(Arc::clone(why)));
        }
        if resource.is_empty() || resource.len() > MAX_RESOURCE_BYTES {
            return Err(Refused::ResourceName { bytes: resource.len() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn token(index: u64) -> FencingToken {
        FencingToken { term: 1, index }
    }

    fn raised(resources: &mut ResourceTable, resource: &str, index: u64) -> Result<Step, Refused> {
        if let Some(mark) = resources.mark_to_keep(resource, token(index))? {
            resources.raise(resource, mark);
        }
        resources.step(resource, token(index))
    }

    #[test]
    fn one_holders_requests_are_inside_together_and_a_newer_one_waits_for_them() {
        let mut resources = ResourceTable::default();
        assert_eq!(resources.step("a", token(1)).unwrap(), Step::Raise);
        assert_eq!(raised(&mut resources, "a", 1).unwrap(), Step::Inside("a".into()));
        assert_eq!(resources.step("a", token(1)).unwrap(), Step::Inside("a".into()));
        assert_eq!(raised(&mut resources, "a", 2).unwrap(), Step::Wait { older: token(1) });
        // The newer one is not inside yet, and the older ones get nobody in any more.
        assert!(matches!(resources.step("a", token(1)), Err(Refused::Stale(stale)) if stale.highest == token(2)));
        assert!(!resources.leave("a"));
        assert!(resources.leave("a"));
        assert_eq!(resources.step("a", token(2)).unwrap(), Step::Inside("a".into()));
    }

    #[test]
    fn resources_are_apart_and_bounded() {
        let store = (0..MAX_RESOURCES as u64 - 1).map(|n| (n.to_string(), HighWater::NONE));
        let mut resources = ResourceTable::new(store);
        assert_eq!(raised(&mut resources, "a", 5).unwrap(), Step::Inside("a".into()));
        assert_eq!(raised(&mut resources, "0", 1).unwrap(), Step::Inside("0".into()));
        assert!(matches!(raised(&mut resources, "one more", 9), Err(Refused::TooManyResources)));
        let longest = "x".repeat(MAX_RESOURCE_BYTES);
        assert_eq!(raised(&mut ResourceTable::default(), &longest, 9).unwrap(), Step::Inside(longest.as_str().into()));
        for name in ["", &"x".repeat(MAX_RESOURCE_BYTES + 1)] {
            assert!(matches!(resources.step(name, token(9)), Err(Refused::ResourceName { .. })));
        }
    }

    #[test]
    fn waiting_is_bounded() {
        let mut resources = ResourceTable::default();
        (0..MAX_WAITING).for_each(|_| resources.begin_waiting().unwrap());
        assert!(matches!(resources.begin_waiting(), Err(Refused::Crowded)));
        resources.end_waiting();
        resources.begin_waiting().unwrap();
    }
}
