//! The state of a gate: the mark and the admitted callers of each resource.
//!
//! This module has no lock, no clock and no I/O. Invariants:
//!
//! - A mark never falls.
//! - All callers inside at one resource have the same token.
//! - No caller enters with a token below the mark.

use std::collections::HashMap;
use std::sync::Arc;

use super::{HighWater, Refused};
use crate::token::FencingToken;

/// Maximum number of resources of one gate. A gate never evicts a mark, because it would then admit old holders.
pub const MAX_RESOURCES: usize = 65_536;
/// Maximum length of a resource name, in bytes.
pub const MAX_RESOURCE_BYTES: usize = 512;
/// Maximum number of callers that wait at one gate for older ones to leave.
pub const MAX_WAITING: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct ResourceTable {
    resources: HashMap<Arc<str>, ResourceState>,
    waiting: usize,
    /// The error of the store, after which the gate admits no token.
    failure: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct ResourceState {
    mark: HighWater,
    /// Number of callers inside, all with `token`.
    inside: usize,
    token: HighWater,
}

/// The result of an attempt to enter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TryEnter {
    /// The caller is inside.
    Entered(Arc<str>),
    /// The caller must raise the mark first.
    RaiseMark,
    /// The caller must wait until callers with an older token have left.
    Wait { older: FencingToken },
}

impl ResourceTable {
    pub fn new(store: impl IntoIterator<Item = (String, HighWater)>) -> ResourceTable {
        let mut resources = ResourceTable::default();
        for (resource, mark) in store {
            let state = resources.resources.entry(resource.into()).or_default();
            state.mark = state.mark.max(mark);
        }
        resources
    }

    /// Enters with the token, if that is possible now.
    pub fn try_enter(&mut self, resource: &str, token: FencingToken) -> Result<TryEnter, Refused> {
        self.check(resource)?;
        let Some((name, _)) = self.resources.get_key_value(resource) else { return Ok(TryEnter::RaiseMark) };
        let name = Arc::clone(name);
        let state = self.resources.get_mut(resource).expect("`get_key_value` has found the resource");
        let offered = state.mark.offer(token)?;
        if offered > state.mark {
            return Ok(TryEnter::RaiseMark);
        }
        if state.inside > 0 && state.token != offered {
            return Ok(TryEnter::Wait { older: state.token.token() });
        }
        state.inside += 1;
        state.token = offered;
        Ok(TryEnter::Entered(name))
    }

    /// The mark to store before the token can enter, or `None` if the store has it already.
    pub fn mark_to_store(&self, resource: &str, token: FencingToken) -> Result<Option<HighWater>, Refused> {
        self.check(resource)?;
        let Some(state) = self.resources.get(resource) else {
            if self.resources.len() >= MAX_RESOURCES {
                return Err(Refused::TooManyResources);
            }
            return Ok(Some(HighWater::NONE.offer(token)?));
        };
        let offered = state.mark.offer(token)?;
        Ok((offered > state.mark).then_some(offered))
    }

    /// Applies a stored mark. Older tokens are refused from now on, but some may still be inside.
    pub fn raise(&mut self, resource: &str, mark: HighWater) {
        match self.resources.get_mut(resource) {
            Some(state) => {
                assert!(mark >= state.mark, "the mark of {resource:?} fell from {:?} to {mark:?}", state.mark);
                state.mark = mark;
            }
            None => drop(self.resources.insert(resource.into(), ResourceState { mark, ..ResourceState::default() })),
        }
    }

    /// One caller leaves. Returns true if no caller is inside any more.
    pub fn leave(&mut self, resource: &str) -> bool {
        let state = self.resources.get_mut(resource).expect("resources are never removed");
        state.inside = state.inside.checked_sub(1).expect("a caller that leaves was inside");
        state.inside == 0
    }

    pub fn begin_waiting(&mut self) -> Result<(), Refused> {
        if self.waiting >= MAX_WAITING {
            return Err(Refused::TooManyWaiting);
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
        self.resources.get(resource).map_or(HighWater::NONE, |state| state.mark)
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

    fn raised(resources: &mut ResourceTable, resource: &str, index: u64) -> Result<TryEnter, Refused> {
        if let Some(mark) = resources.mark_to_store(resource, token(index))? {
            resources.raise(resource, mark);
        }
        resources.try_enter(resource, token(index))
    }

    #[test]
    fn newer_token_waits_for_all_callers_with_the_older_one() {
        let mut resources = ResourceTable::default();
        assert_eq!(resources.try_enter("a", token(1)).unwrap(), TryEnter::RaiseMark);
        assert_eq!(raised(&mut resources, "a", 1).unwrap(), TryEnter::Entered("a".into()));
        assert_eq!(resources.try_enter("a", token(1)).unwrap(), TryEnter::Entered("a".into()));
        assert_eq!(raised(&mut resources, "a", 2).unwrap(), TryEnter::Wait { older: token(1) });
        // The newer token is not inside yet, but the older token is stale already.
        assert!(matches!(resources.try_enter("a", token(1)), Err(Refused::Stale(stale)) if stale.highest == token(2)));
        assert!(!resources.leave("a"));
        assert!(resources.leave("a"));
        assert_eq!(resources.try_enter("a", token(2)).unwrap(), TryEnter::Entered("a".into()));
    }

    #[test]
    fn gate_has_the_documented_places() {
        assert_eq!((MAX_RESOURCES, MAX_RESOURCE_BYTES, MAX_WAITING), (65_536, 512, 1_024));
    }

    #[test]
    fn resources_are_independent_and_bounded() {
        let store = (0..MAX_RESOURCES as u64 - 1).map(|n| (n.to_string(), HighWater::NONE));
        let mut resources = ResourceTable::new(store);
        assert_eq!(raised(&mut resources, "a", 5).unwrap(), TryEnter::Entered("a".into()));
        assert_eq!(raised(&mut resources, "0", 1).unwrap(), TryEnter::Entered("0".into()));
        assert!(matches!(raised(&mut resources, "one more", 9), Err(Refused::TooManyResources)));
        let longest = "x".repeat(MAX_RESOURCE_BYTES);
        assert_eq!(
            raised(&mut ResourceTable::default(), &longest, 9).unwrap(),
            TryEnter::Entered(longest.as_str().into())
        );
        for name in ["", &"x".repeat(MAX_RESOURCE_BYTES + 1)] {
            assert!(matches!(resources.try_enter(name, token(9)), Err(Refused::ResourceName { .. })));
        }
    }

    #[test]
    fn refused_callers_leave_no_state() {
        let mut resources = ResourceTable::default();
        raised(&mut resources, "a", 5).unwrap();
        raised(&mut resources, "a", 6).unwrap();
        let before = format!("{resources:?}");
        for (resource, index) in [("a", 4), ("a", 5), ("", 9), (&"x".repeat(MAX_RESOURCE_BYTES + 1), 9)] {
            assert!(resources.try_enter(resource, token(index)).is_err(), "{resource:?}, {index}");
            assert!(resources.mark_to_store(resource, token(index)).is_err(), "{resource:?}, {index}");
        }
        assert_eq!(resources.try_enter("a", token(6)).unwrap(), TryEnter::Wait { older: token(5) });
        assert_eq!(resources.try_enter("new", token(6)).unwrap(), TryEnter::RaiseMark);
        assert_eq!(format!("{resources:?}"), before);
    }

    #[test]
    fn waiting_is_bounded() {
        let mut resources = ResourceTable::default();
        (0..MAX_WAITING).for_each(|_| resources.begin_waiting().unwrap());
        assert!(matches!(resources.begin_waiting(), Err(Refused::TooManyWaiting)));
        resources.end_waiting();
        resources.begin_waiting().unwrap();
    }
}
