//! The state of the cluster as a node sees it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, join_all, select};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Node, NodeCore};
use crate::access::Caller;
use crate::node::request::call::{MAX_REPLY_BYTES, NodeCall, NodeReply};
use crate::node::request::route::Forward;
use crate::node::request::{Answer, Request};
use crate::peer::{Lane, Payload, Transport};
use crate::raft::{CurrentLeader, MemberProgress};
use crate::storage::{Storage, codec};
use crate::types::{DiskState, MemberState, NodeId, Role};

/// Bounds of the wait for the leader's view of the members, and for an answer of each member. Between them, it is the
/// heartbeat interval, which is longer than a round trip.
const ANSWER_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(250)..=Duration::from_secs(1);
/// Changes of the leader that a node remembers.
const MAX_LEADER_CHANGES: usize = 32;
/// A member that lacks this many log entries is lagging.
const LAGGING: u64 = 1_000;

/// The status of a cluster, from the view of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// The name of the cluster.
    pub cluster_id: String,
    /// The node that answered.
    pub node: NodeId,
    /// The leader, if `node` reaches it.
    pub leader: Option<NodeId>,
    /// Whether `node` reaches a leader that a majority acknowledges. Without one, no lease changes.
    pub quorum: bool,
    /// The Raft term of `node`.
    pub term: u64,
    /// Log index of the last entry that `node` applied.
    pub applied: u64,
    /// The monotonic clock of `node`, which times leases, in milliseconds since a fixed point.
    pub monotonic_ms: u64,
    /// The wall clock of `node`, in milliseconds since 1970. For display only.
    pub wall_ms: u64,
    /// What all members understand, as a number: see `docs/operations.md`. It rises after an upgrade of all members.
    pub feature_level: u32,
    /// The last 32 leaders that `node` has known since its start, oldest first.
    pub leader_changes: Vec<LeaderChange>,
    /// The members of the cluster.
    pub members: Vec<MemberStatus>,
}

/// The start of a leader's term, as a node learned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeaderChange {
    /// The Raft term.
    pub term: u64,
    /// The leader of that term.
    pub leader: NodeId,
    /// When the node learned it, in milliseconds since 1970. For display only.
    pub wall_ms: u64,
}

/// One member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// The id of the member.
    pub id: NodeId,
    /// Its Raft role.
    pub role: Role,
    /// As the leader sees it. Without a quorum: whether it answers `node`; `last_contact_ms` is then the time for which
    /// it has been unreachable.
    #[serde(skip, default = "unknown")]
    pub state: MemberState,
    /// Address of the public listener.
    pub http: String,
    /// Address of the peer listener.
    pub peer: String,
    /// Number of log entries behind the leader's last one; `None` if no leader answers. A new leader counts the whole log
    /// until the member answers it.
    pub lag: Option<u64>,
    /// Milliseconds since the leader sent the last message that this member acknowledged. If no leader answers: since the
    /// last sign of life of this member that the answering node knows of, from the member or from a leader.
    pub last_contact_ms: Option<u64>,
    /// The end of the validity of its certificate, in milliseconds since 1970. It is the certificate that the member
    /// presented in its last connection with the answering node. `None` without TLS, or before such a connection.
    #[serde(skip)]
    pub certificate_expires_ms: Option<u64>,
    /// As the member answered `node` in the last 2 s. `None` if it did not answer, or has an older release.
    #[serde(skip)]
    pub disk: Option<DiskState>,
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// Returns the status of the cluster.
    ///
    /// The members are the leader's view. If no leader answers within the heartbeat interval, they are this node's own view, from
    /// the members that answered it in that time. The wait is at least 250 ms and at most 1 s.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn status(&self) -> ClusterStatus {
        let inner = &self.inner;
        let leadership = inner.raft.leadership();
        let (quorum, mut members) = match leadership.leader {
            Some(leader) if leader == inner.settings.id => {
                (true, inner.with_disks(inner.judged_by_leader(inner.members())))
            }
            Some(_) => self.members_at_follower().await,
            None => (false, inner.asked(inner.members()).boxed().await),
        };
        if !quorum {
            // This node may still know the last leader, which leads no more or cannot be reached. The next one can have
            // any number of later entries.
            for member in &mut members {
                member.lag = None;
                if member.role == Role::Leader {
                    member.role = Role::Follower;
                }
            }
        }
        let (monotonic_ms, wall_ms) = inner.requests.clock.reading();
        ClusterStatus {
            monotonic_ms,
            wall_ms,
            cluster_id: inner.settings.cluster.clone(),
            node: inner.settings.id,
            leader: leadership.leader.filter(|_| quorum),
            quorum,
            term: leadership.term,
            applied: inner.raft.replica().read(|state| state.applied.map_or(0, |applied| applied.index)),
            feature_level: inner.raft.replica().level().0,
            leader_changes: inner.leader_changes.lock().iter().copied().collect(),
            members: inner.with_certificates(members),
        }
    }

    /// Returns whether the leader answers, and the members. Asks all members at once, so that one limit is enough.
    async fn members_at_follower(&self) -> (bool, Vec<MemberStatus>) {
        // Without the boxes, the types of the callers are nested too deeply for the compiler.
        let own = self.inner.asked(self.inner.members()).boxed();
        let (at_leader, own) = match select(self.members_at_leader().boxed(), own).await {
            Either::Left((Some(members), _)) => (Some(members), Vec::new()),
            Either::Left((None, own)) => (None, own.await),
            Either::Right((own, at_leader)) => (at_leader.await, own),
        };
        match at_leader {
            Some(members) => (true, self.inner.with_disks(self.inner.judged_by_leader(members))),
            None => (false, own),
        }
    }

    async fn members_at_leader(&self) -> Option<Vec<MemberStatus>> {
        // One attempt: without an answer the caller falls back to this node's view.
        let asked = self.inner.attempt(&Caller::Program, Request::Members, Forward::Once);
        match tokio::time::timeout(self.inner.answer_timeout(), asked).await.ok()?.ok()?.answer {
            Answer::Members(members) => Some(members),
            _ => None,
        }
    }
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// Returns the members from the view of this node. Only a leader knows their lag.
    pub(super) fn members(&self) -> Vec<MemberStatus> {
        let leader = self.raft.leadership().leader;
        let member = |state: MemberProgress| {
            let role = match (state.voter, Some(state.id) == leader) {
                (false, _) => Role::Learner,
                (true, true) => Role::Leader,
                (true, false) => Role::Follower,
            };
            let is_self = state.id == self.settings.id;
            let heard = state.heard.or(self.raft.last_contact().filter(|_| Some(state.id) == leader));
            MemberStatus {
                id: state.id,
                role,
                state: MemberState::Other,
                http: state.info.http,
                peer: state.info.peer,
                lag: if is_self { state.lag.map(|_| 0) } else { state.lag },
                last_contact_ms: if is_self { Some(0) } else { heard.map(|heard| heard.as_millis() as u64) },
                certificate_expires_ms: None,
                disk: None,
            }
        };
        self.raft.members().into_iter().map(member).collect()
    }

    /// Sets the expiry of each member's certificate. The nodes do not send it to each other.
    pub(super) fn with_certificates(&self, members: Vec<MemberStatus>) -> Vec<MemberStatus> {
        let Some(tls) = &self.tls else { return members };
        let expires_ms = |id| Some(u64::try_from(tls.expires_of(id)?).unwrap_or(0) * 1_000);
        let with = |member: MemberStatus| MemberStatus { certificate_expires_ms: expires_ms(member.id), ..member };
        members.into_iter().map(with).collect()
    }

    /// Sets the state of each member from the leader's view.
    pub(super) fn judged_by_leader(&self, members: Vec<MemberStatus>) -> Vec<MemberStatus> {
        let longest = self.settings.timeouts.leaderless;
        members.into_iter().map(|member| MemberStatus { state: state_at_leader(&member, longest), ..member }).collect()
    }

    /// Remembers the leader of each term that this node learns.
    pub(super) async fn record_leaders(self: Arc<Self>) {
        let mut leadership = self.raft.watch_leadership();
        loop {
            let CurrentLeader { term, leader } = leadership.now();
            if let Some(leader) = leader {
                let (_, wall_ms) = self.requests.clock.reading();
                let mut changes = self.leader_changes.lock();
                if changes.back().is_none_or(|last| (last.term, last.leader) != (term, leader)) {
                    changes.push_back(LeaderChange { term, leader, wall_ms });
                }
                let excess = changes.len().saturating_sub(MAX_LEADER_CHANGES);
                changes.drain(..excess);
            }
            leadership.changed().await;
        }
    }

    /// Keeps the last sign of life of each member, for the time without a leader.
    pub(super) fn record_contacts(&self, members: &[MemberStatus]) {
        let (now, _) = self.requests.clock.reading();
        let heard = members.iter().filter_map(|member| Some((member.id, member.last_contact_ms?)));
        let mut contacts = self.contacts.lock();
        contacts.retain(|id, _| members.iter().any(|member| member.id == *id));
        for (id, ms) in heard {
            let last = contacts.entry(id).or_default();
            *last = now.saturating_sub(ms).max(*last);
        }
    }

    fn answer_timeout(&self) -> Duration {
        let heartbeat_interval = Duration::from_millis(self.raft.timings.heartbeat_interval_ms);
        heartbeat_interval.clamp(*ANSWER_TIMEOUTS.start(), *ANSWER_TIMEOUTS.end())
    }

    /// Asks a member for the state of its disk. `None` without an answer.
    async fn disk_of(&self, member: &MemberStatus) -> Option<Option<DiskState>> {
        if member.id == self.settings.id {
            return Some(Some(self.disk_state()));
        }
        let payload = Payload::Node(NodeCall::<Request>::DiskState.encode());
        let timeout = self.answer_timeout();
        let call = self.transport.call(member.id, &member.peer, Lane::Control, payload, timeout);
        let answer = tokio::time::timeout(timeout, call).await.ok()?.ok()?;
        match codec::decode(&answer, MAX_REPLY_BYTES) {
            Ok(NodeReply::DiskState(disk)) => Some(Some(disk)),
            _ => Some(None),
        }
    }

    /// Sets the last known state of each member's disk.
    fn with_disks(&self, members: Vec<MemberStatus>) -> Vec<MemberStatus> {
        let disks = self.disks.lock();
        let disk = |id| if id == self.settings.id { Some(self.disk_state()) } else { disks.get(&id).copied() };
        members.into_iter().map(|member| MemberStatus { disk: disk(member.id), ..member }).collect()
    }

    /// Asks all members for the states of their disks.
    pub(super) async fn update_disks(&self) {
        let members = self.members();
        let asked = members.iter().map(|member| async { Some((member.id, self.disk_of(member).await.flatten()?)) });
        let answers = join_all(asked).await;
        *self.disks.lock() = answers.into_iter().flatten().collect();
    }

    /// Sets the state of each member: whether it answers this node, and the state of its disk.
    async fn asked(&self, members: Vec<MemberStatus>) -> Vec<MemberStatus> {
        let asked = members.into_iter().map(|member| async move {
            if let Some(disk) = self.disk_of(&member).await {
                return MemberStatus { state: MemberState::Ok, last_contact_ms: Some(0), disk, ..member };
            }
            let (now, _) = self.requests.clock.reading();
            let known = self.contacts.lock().get(&member.id).map(|last| now.saturating_sub(*last));
            let last_contact_ms = known.into_iter().chain(member.last_contact_ms).min();
            MemberStatus { state: MemberState::Unreachable, last_contact_ms, ..member }
        });
        let members = join_all(asked).await;
        self.record_contacts(&members);
        members
    }
}

/// The last answer of each member about its disk.
pub(super) type Disks = Mutex<BTreeMap<NodeId, DiskState>>;

pub(super) type LeaderChanges = Mutex<VecDeque<LeaderChange>>;

/// When each member last gave a sign of life, in milliseconds of this node's monotonic clock.
pub(super) type Contacts = Mutex<BTreeMap<NodeId, u64>>;

/// The state of a member from the leader's view. It is unreachable if it acknowledged nothing for longer than `longest`.
fn state_at_leader(member: &MemberStatus, longest: Duration) -> MemberState {
    let is_heard = member.last_contact_ms.is_some_and(|ms| Duration::from_millis(ms) <= longest);
    match member.role {
        Role::Leader => MemberState::Ok,
        _ if !is_heard => MemberState::Unreachable,
        _ if member.lag.is_some_and(|lag| lag >= LAGGING) => MemberState::Lagging,
        _ => MemberState::Ok,
    }
}

/// The members in an answer of the leader have no states yet.
fn unknown() -> MemberState {
    MemberState::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_depends_on_the_contact_and_the_lag() {
        let longest = Duration::from_millis(1_300);
        let state = |role, last_contact_ms, lag| {
            let (http, peer) = (String::new(), String::new());
            let member = MemberStatus {
                id: 1,
                role,
                state: unknown(),
                http,
                peer,
                lag,
                last_contact_ms,
                certificate_expires_ms: None,
                disk: None,
            };
            state_at_leader(&member, longest)
        };
        for role in [Role::Follower, Role::Learner] {
            assert_eq!(state(role, Some(1_300), Some(999)), MemberState::Ok);
            assert_eq!(state(role, Some(1_300), Some(1_000)), MemberState::Lagging);
            assert_eq!(state(role, Some(1_301), Some(0)), MemberState::Unreachable);
            assert_eq!(state(role, None, Some(1_000)), MemberState::Unreachable, "it was never heard");
        }
        assert_eq!(state(Role::Leader, Some(0), Some(0)), MemberState::Ok);
    }
}
