//! The list of members of one process. The refresh task writes it; snapshots and lease options read it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Member, Placement};
use crate::client::{CallError, Coordinator, HoldState, Lease, LeaseOptions, RetryBudget};
use crate::clock::Clock;
use crate::types::HolderId;

#[cfg(test)]
thread_local! {
    /// How often this thread has asked the placement.
    static PLACED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub(super) struct Roster {
    coordinator: Arc<dyn Coordinator>,
    budget: RetryBudget,
    clock: Arc<dyn Clock>,
    /// The name of the group and a colon: the prefix of the members' leases.
    pub prefix: String,
    own: Option<OwnMembership>,
    list: watch::Sender<MemberList>,
    /// Changes only if the members in `list` change.
    changes: watch::Sender<Arc<[Member]>>,
}

/// The membership of this process. It must not keep the manager alive: the manager stores lease options, and these
/// refer to it.
struct OwnMembership {
    id: String,
    holder: HolderId,
    is_held: Box<dyn Fn() -> bool + Send + Sync>,
    states: watch::Receiver<HoldState>,
}

#[derive(Clone)]
struct MemberList {
    members: Arc<[Member]>,
    /// When the read began, on the manager's clock. `None`: there was no read.
    as_of: Option<Duration>,
}

/// A group at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// The membership of this process. `None`: this process is not a member, or the list does not contain it yet.
    pub me: Option<Member>,
    /// The ready members, including this process, ordered by id.
    pub ready: Vec<Member>,
    /// All members, ordered by id.
    pub all: Vec<Member>,
    /// The age of the list. The list is read after each change and at least every
    /// [`refresh`](super::MemberOptions::refresh). A much higher age means that the cluster is unavailable: the members
    /// may have changed.
    pub age: Duration,
}

impl GroupSnapshot {
    /// The placement on the ready members of this snapshot.
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
        let own = me.map(|(id, lease)| OwnMembership {
            id: id.to_owned(),
            holder: lease.holder().clone(),
            is_held: Box::new(lease.is_held_check()),
            states: lease.states(),
        });
        let members: Arc<[Member]> = Arc::new([]);
        let list = watch::Sender::new(MemberList { members: members.clone(), as_of: None });
        Roster { coordinator, budget, clock, prefix, own, list, changes: watch::Sender::new(members) }
    }

    pub fn coordinator(&self) -> Arc<dyn Coordinator> {
        self.coordinator.clone()
    }

    /// Reads the members and stores them, unless a read that began later is stored already.
    pub async fn refresh(&self) -> Result<(), CallError> {
        let begun = self.clock.elapsed();
        let leases = self.coordinator.held(self.prefix.clone(), self.budget).await?;
        let mut members: Vec<Member> = leases.into_iter().filter_map(|lease| Member::of(lease, &self.prefix)).collect();
        members.sort_by(|one, other| one.id.cmp(&other.id));
        self.list.send_if_modified(|list| {
            let is_latest = list.as_of <= Some(begun);
            if is_latest {
                *list = MemberList { members: members.into(), as_of: Some(begun) };
                self.changes.send_if_modified(|known| {
                    let is_other = *known != list.members;
                    *known = list.members.clone();
                    is_other
                });
            }
            is_latest
        });
        Ok(())
    }

    pub fn snapshot(&self) -> GroupSnapshot {
        let MemberList { members, as_of } = self.list.borrow().clone();
        let is_me = |member: &Member| self.own.as_ref().is_some_and(|own| own.is(member));
        // After a local loss, this process is not a member in its own snapshots, even if the cluster still lists it.
        let believed = |member: &&Member| !is_me(member) || self.is_member();
        let all: Vec<Member> = members.iter().filter(believed).cloned().collect();
        GroupSnapshot {
            me: all.iter().find(|member| is_me(member)).cloned(),
            ready: all.iter().filter(|member| member.is_ready).cloned().collect(),
            all,
            age: as_of.map_or(Duration::MAX, |as_of| self.clock.elapsed().saturating_sub(as_of)),
        }
    }

    /// Whether this process holds its membership, by local knowledge.
    pub fn is_member(&self) -> bool {
        self.own.as_ref().is_some_and(|own| (own.is_held)())
    }

    /// Whether a name belongs to this process, by the known ready members.
    pub fn is_owned(&self, name: &str) -> bool {
        self.is_member() && self.is_placed_here(name)
    }

    /// Whether the placement picks the membership of this process. It computes a score for each member.
    fn is_placed_here(&self, name: &str) -> bool {
        #[cfg(test)]
        PLACED.set(PLACED.get() + 1);
        let members = self.list.borrow().members.clone();
        let ready = members.iter().filter(|member| member.is_ready);
        let owner = super::placement::owner(ready, name);
        owner.is_some_and(|owner| self.own.as_ref().is_some_and(|own| own.is(owner)))
    }

    /// These options, for a lease that only the process should hold to which `name` belongs.
    pub fn assign(self: &Arc<Self>, name: &str, options: LeaseOptions) -> LeaseOptions {
        let (roster, name) = (self.clone(), name.to_owned());
        options.should_hold(move || roster.is_owned(&name))
    }

    /// Waits until a name belongs to this process (`is_owned`) or to another one (`!is_owned`).
    pub async fn wait_for_ownership(&self, name: &str, is_owned: bool) {
        let mut members = self.changes.subscribe();
        let mut states = self.own.as_ref().map(|own| own.states.clone());
        loop {
            let is_member = self.is_member();
            if (is_member && self.is_placed_here(name)) == is_owned {
                return;
            }
            // Each renewal has a state.
            let own = async {
                while let Some(states) = &mut states
                    && states.changed().await.is_ok()
                {
                    if self.is_member() != is_member {
                        return true;
                    }
                }
                false
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

impl OwnMembership {
    fn is(&self, member: &Member) -> bool {
        member.id == self.id && member.holder == self.holder.as_str()
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::client::Loss;
    use crate::group::{Group, MemberOptions};
    use crate::testing::FakeCluster;

    /// A process can have 10,000 shards in a group of 1,000 members.
    #[tokio::test(start_paused = true)]
    async fn renewal_of_the_membership_asks_no_placement() {
        const SECOND: Duration = Duration::from_secs(1);
        let (cluster, ttl) = (FakeCluster::new(), 60 * SECOND);
        let options = MemberOptions::new("a").ttl(ttl).refresh(3_600 * SECOND);
        let member = Group::join(&cluster.manager(), "workers", options).await.expect("the member joins");
        let roster = member.roster.clone();
        let waiting = tokio::spawn(async move { roster.wait_for_ownership("shard", false).await });
        tokio::time::sleep(SECOND).await;
        let before = PLACED.get();
        assert!(before > 0, "control: the name belongs to this member");
        for _ in 0..5 {
            cluster.clock().advance(ttl * 2 / 5);
            tokio::time::sleep(SECOND).await;
        }
        assert!(member.is_member(), "control: it was renewed");
        assert_eq!(PLACED.get(), before);
        cluster.lose("workers:a", Loss::Revoked);
        tokio::time::timeout(SECOND, waiting).await.expect("the name belongs to no member").expect("no panic");
    }
}
