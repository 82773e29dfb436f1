//! The list of members that one process has: read by the task, asked by everybody.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Member, Placement};
use crate::client::{CallError, Coordinator, HoldState, Lease, RetryBudget};
use crate::clock::Clock;
use crate::types::HolderId;

pub(super) struct Roster {
    coordinator: Arc<dyn Coordinator>,
    budget: RetryBudget,
    clock: Arc<dyn Clock>,
    /// The group's name and a colon: how members' leases begin.
    pub prefix: String,
    me: Option<Me>,
    list: watch::Sender<List>,
    /// Moves when `list` has other members than before.
    changes: watch::Sender<Arc<[Member]>>,
}

/// One's own place. It must not keep the manager alive: leases ask it in their options, and the manager keeps those.
struct Me {
    id: String,
    holder: HolderId,
    is_held: Box<dyn Fn() -> bool + Send + Sync>,
    states: watch::Receiver<HoldState>,
}

#[derive(Clone)]
struct List {
    members: Arc<[Member]>,
    /// When it was asked for, on the manager's clock. `None`: never.
    as_of: Option<Duration>,
}

/// A group at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSnapshot {
    /// Oneself. `None`: not a member, not any more, or not seen in the list yet.
    pub me: Option<Member>,
    /// Those that are ready, oneself included, in the order of their ids.
    pub ready: Vec<Member>,
    /// All members, in the order of their ids.
    pub all: Vec<Member>,
    /// How old the list is. It is refreshed at every change and at least every
    /// [`refresh`](super::MemberOptions::refresh); when it is much older than that, the cluster cannot be asked, and
    /// others may have come or gone.
    pub age: Duration,
}

impl GroupSnapshot {
    /// Where names belong by this snapshot.
    pub fn placement(&self) -> Placement {
        Placement::new(self.ready.iter().cloned())
    }
}

impl Roster {
    pub fn new(
        coordinator: Arc<dyn Coordinator>,
        budget: RetryBudget,
        clock: Arc<dyn Clock>,
        prefix: String,
        me: Option<(&str, &Lease)>,
    ) -> Roster {
        let me = me.map(|(id, lease)| Me {
            id: id.to_owned(),
            holder: lease.holder().clone(),
            is_held: Box::new(lease.probe()),
            states: lease.states(),
        });
        let members: Arc<[Member]> = Arc::new([]);
        let list = watch::Sender::new(List { members: members.clone(), as_of: None });
        Roster { coordinator, budget, clock, prefix, me, list, changes: watch::Sender::new(members) }
    }

    pub fn coordinator(&self) -> Arc<dyn Coordinator> {
        self.coordinator.clone()
    }

    /// Reads the members and takes them over, unless a read that was begun later has come before.
    pub async fn look(&self) -> Result<(), CallError> {
        let begun = self.clock.elapsed();
        let leases = self.coordinator.held(self.prefix.clone(), self.budget).await?;
        let mut members: Vec<Member> = leases.into_iter().filter_map(|lease| Member::of(lease, &self.prefix)).collect();
        members.sort_by(|one, other| one.id.cmp(&other.id));
        self.list.send_if_modified(|list| {
            let is_newer = list.as_of < Some(begun);
            if is_newer {
                *list = List { members: members.into(), as_of: Some(begun) };
                self.changes.send_if_modified(|known| {
                    let is_other = *known != list.members;
                    *known = list.members.clone();
                    is_other
                });
            }
            is_newer
        });
        Ok(())
    }

    pub fn snapshot(&self) -> GroupSnapshot {
        let List { members, as_of } = self.list.borrow().clone();
        let is_me = |member: &Member| self.me.as_ref().is_some_and(|me| me.is(member));
        // Whoever has lost its membership, and has not heard of it from the cluster, is not a member to itself.
        let believed = |member: &&Member| !is_me(member) || self.is_member();
        let all: Vec<Member> = members.iter().filter(believed).cloned().collect();
        GroupSnapshot {
            me: all.iter().find(|member| is_me(member)).cloned(),
            ready: all.iter().filter(|member| member.is_ready).cloned().collect(),
            all,
            age: as_of.map_or(Duration::MAX, |as_of| self.clock.elapsed().saturating_sub(as_of)),
        }
    }

    /// Whether this process holds its place in the group, by its own knowledge.
    pub fn is_member(&self) -> bool {
        self.me.as_ref().is_some_and(|me| (me.is_held)())
    }

    /// Whether a name belongs to this process, among the members that are known to be ready.
    pub fn is_mine(&self, name: &str) -> bool {
        let members = self.list.borrow().members.clone();
        let ready = members.iter().filter(|member| member.is_ready);
        let owner = super::placement::owner(ready, name);
        owner.is_some_and(|owner| self.me.as_ref().is_some_and(|me| me.is(owner))) && self.is_member()
    }

    /// Waits until a name belongs to this process, or does not.
    pub async fn until_mine(&self, name: &str, is_mine: bool) {
        let mut members = self.changes.subscribe();
        let mut states = self.me.as_ref().map(|me| me.states.clone());
        while self.is_mine(name) != is_mine {
            let own = async {
                match &mut states {
                    Some(states) => states.changed().await.is_ok(),
                    None => false,
                }
            };
            tokio::select! {
                _ = members.changed() => {}
                true = own => {}
            }
        }
    }

    pub fn changes(&self) -> watch::Receiver<Arc<[Member]>> {
        self.changes.subscribe()
    }
}

impl Me {
    fn is(&self, member: &Member) -> bool {
        member.id == self.id && member.holder == self.holder.as_str()
    }
}
