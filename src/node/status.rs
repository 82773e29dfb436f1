//! The state of the cluster as a node sees it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Inner, Node};
use crate::node::request::route::Forward;
use crate::node::request::{Answer, Request};
use crate::peer::Transport;
use crate::raft::MemberState;
use crate::storage::Storage;
use crate::types::{NodeId, Role};

/// Longest wait for the leader's view of the members.
const LEADER_TIMEOUT: Duration = Duration::from_millis(250);

/// The status of a cluster, from the view of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// The name of the cluster.
    pub cluster_id: String,
    /// The node that answered.
    pub node: NodeId,
    /// The leader, if `node` knows one.
    pub leader: Option<NodeId>,
    /// The Raft term of `node`.
    pub term: u64,
    /// Log index of the last entry that `node` applied.
    pub applied: u64,
    /// The members of the cluster.
    pub members: Vec<Member>,
}

/// One member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Member {
    /// The id of the member.
    pub id: NodeId,
    /// Its Raft role.
    pub role: Role,
    /// Address of the public listener.
    pub http: String,
    /// Address of the peer listener.
    pub peer: String,
    /// Number of log entries behind the leader's last one; `None` if no leader answers.
    pub lag: Option<u64>,
    /// Milliseconds since the leader sent the last message that this member acknowledged. If no leader answers, only
    /// the row of the leader has a value: the milliseconds since its last message to the answering node.
    pub last_contact_ms: Option<u64>,
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// Returns the status of the cluster.
    ///
    /// The members are the leader's view, or this node's own view if the leader does not answer within 250 ms.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn status(&self) -> ClusterStatus {
        let inner = &self.inner;
        let leadership = inner.raft.leadership();
        let members = match leadership.leader {
            Some(leader) if leader != inner.settings.id => {
                self.members_at_leader().await.unwrap_or_else(|| inner.members())
            }
            _ => inner.members(),
        };
        ClusterStatus {
            cluster_id: inner.settings.cluster.clone(),
            node: inner.settings.id,
            leader: leadership.leader,
            term: leadership.term,
            applied: inner.raft.replica().read(|state| state.applied.map_or(0, |applied| applied.index)),
            members,
        }
    }

    async fn members_at_leader(&self) -> Option<Vec<Member>> {
        // One attempt: without an answer the caller falls back to this node's view.
        let asked = self.inner.attempt(Request::Members, Forward::Once);
        match tokio::time::timeout(LEADER_TIMEOUT, asked).await.ok()?.ok()?.answer {
            Answer::Members(members) => Some(members),
            _ => None,
        }
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Returns the members from the view of this node. Only a leader knows their lag.
    pub(super) fn members(&self) -> Vec<Member> {
        let leader = self.raft.leadership().leader;
        let member = |state: MemberState| {
            let role = match (state.voter, Some(state.id) == leader) {
                (false, _) => Role::Learner,
                (true, true) => Role::Leader,
                (true, false) => Role::Follower,
            };
            let is_self = state.id == self.settings.id;
            let heard = state.heard.or(self.raft.last_contact().filter(|_| Some(state.id) == leader));
            Member {
                id: state.id,
                role,
                http: state.info.http,
                peer: state.info.peer,
                lag: if is_self { state.lag.map(|_| 0) } else { state.lag },
                last_contact_ms: if is_self { Some(0) } else { heard.map(|heard| heard.as_millis() as u64) },
            }
        };
        self.raft.members().into_iter().map(member).collect()
    }
}
