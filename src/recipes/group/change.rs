//! Changes of a group.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Member;

/// A difference between two lists of members.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum GroupChange {
    /// A member joined.
    Joined(Member),
    /// A member left, or its membership was lost.
    Left(Member),
    /// The metadata of a membership changed, for example its readiness.
    Changed {
        /// The member before the change.
        before: Member,
        /// The member after the change.
        now: Member,
    },
}

/// A stream of changes. It compares lists of members, so a slow reader misses members that came and went in between.
/// The memory is limited by the size of the group.
#[derive(Debug)]
pub struct Changes {
    lists: watch::Receiver<Arc<[Member]>>,
    last: Arc<[Member]>,
    ready: VecDeque<GroupChange>,
    /// Cancelled when the group was closed. Leases of the group keep the sender of `lists`.
    closed: CancellationToken,
}

impl Changes {
    pub(super) fn new(mut lists: watch::Receiver<Arc<[Member]>>, closed: CancellationToken) -> Changes {
        let last = lists.borrow_and_update().clone();
        Changes { lists, last, ready: VecDeque::new(), closed }
    }

    /// Waits for the next change. Returns `None` when the group was closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Option<GroupChange> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Some(change);
            }
            tokio::select! {
                biased;
                changed = self.lists.changed() => changed.ok()?,
                () = self.closed.cancelled() => return None,
            }
            let now = self.lists.borrow_and_update().clone();
            self.ready = differences(&self.last, &now).into();
            self.last = now;
        }
    }
}

/// The changes in the order of ids. A member with a new token has left and joined again.
fn differences(before: &[Member], now: &[Member]) -> Vec<GroupChange> {
    let mut pairs: BTreeMap<&str, (Option<&Member>, Option<&Member>)> = BTreeMap::new();
    before.iter().for_each(|member| pairs.entry(&member.id).or_default().0 = Some(member));
    now.iter().for_each(|member| pairs.entry(&member.id).or_default().1 = Some(member));
    let mut changes = Vec::new();
    for pair in pairs.into_values() {
        match pair {
            (Some(before), Some(now)) if before == now => {}
            (Some(before), Some(now)) if before.token == now.token => {
                changes.push(GroupChange::Changed { before: before.clone(), now: now.clone() });
            }
            (before, now) => {
                changes.extend(before.cloned().map(GroupChange::Left));
                changes.extend(now.cloned().map(GroupChange::Joined));
            }
        }
    }
    changes
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::member;
    use crate::token::FencingToken;

    #[test]
    fn member_with_another_token_has_left_and_joined() {
        let before = [member("a", 1), member("b", 1), member("d", 1)];
        let again = Member { token: FencingToken { term: 1, index: 2 }, ..member("a", 1) };
        let now = [again.clone(), member("b", 2), member("c", 1)];
        let expected = [
            GroupChange::Left(member("a", 1)),
            GroupChange::Joined(again),
            GroupChange::Changed { before: member("b", 1), now: member("b", 2) },
            GroupChange::Joined(member("c", 1)),
            GroupChange::Left(member("d", 1)),
        ];
        assert_eq!(differences(&before, &now), expected);
        assert_eq!(differences(&before, &before), []);
    }
}
