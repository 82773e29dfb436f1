//! What became different in a group.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::watch;

use super::Member;

/// One difference between two lists of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupChange {
    Joined(Member),
    Left(Member),
    /// The same membership with other notes: its readiness, for instance.
    Changed {
        before: Member,
        now: Member,
    },
}

/// The differences as they come. What came and went between two of its steps is not told, so that it needs no more
/// room than the group, however slow its reader is.
#[derive(Debug)]
pub struct Changes {
    lists: watch::Receiver<Arc<[Member]>>,
    told: Arc<[Member]>,
    ready: VecDeque<GroupChange>,
}

impl Changes {
    pub(super) fn new(mut lists: watch::Receiver<Arc<[Member]>>) -> Changes {
        let told = lists.borrow_and_update().clone();
        Changes { lists, told, ready: VecDeque::new() }
    }

    /// Waits for the next difference; `None` when the group was closed. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<GroupChange> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Some(change);
            }
            self.lists.changed().await.ok()?;
            let now = self.lists.borrow_and_update().clone();
            self.ready = differences(&self.told, &now).into();
            self.told = now;
        }
    }
}

/// In the order of ids; somebody who left and came back has left and joined.
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
