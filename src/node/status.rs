//! What a node knows of its cluster.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Inner, Node};
use crate::node::request::route::Forward;
use crate::node::request::{Answer, Request};
use crate::peer::Transport;
use crate::raft::MemberState;
use crate::storage::Storage;
use crate::types::NodeId;

/// Longest wait for the leader's view of the members.
const ASK_LEADER: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub cluster_id: String,
    /// Which node answered.
    pub node: NodeId,
    pub leader: Option<NodeId>,
    pub term: u64,
    /// Log index of the last applied entry here.
    pub applied: u64,
    pub members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: NodeId,
    pub role: Role,
    /// Address of the public listener.
    pub http: String,
    /// Address of the peer listener.
    pub peer: String,
    /// Entries behind the leader's last; `None` where no leader can be asked.
    pub lag: Option<u64>,
    /// Milliseconds since the leader sent the last message that it acknowledged; where no leader can be asked, only
    /// for the leader's own row, since this node heard from it.
    pub last_contact_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    Leader,
    Follower,
    Learner,
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// The cluster as this node and, where one can be asked, the leader see it. Takes half a second at most.
    pub async fn status(&self) -> ClusterStatus {
        let inner = &self.inner;
        let leadership = inner.raft.leadership();
        let members = match leadership.leader {
            Some(leader) if leader != inner.id => self.members_at_leader().await.unwrap_or_else(|| inner.members()),
            _ => inner.members(),
        };
        ClusterStatus {
            cluster_id: inner.cluster.clone(),
            node: inner.id,
            leader: leadership.leader,
            term: leadership.term,
            applied: inner.raft.replica().read(|state| state.applied.map_or(0, |applied| applied.index)),
            members,
        }
    }

    async fn members_at_leader(&self) -> Option<Vec<Member>> {
        // One try: with no answer the own view has to do.
        let asked = self.inner.attempt(Request::Members, Forward::Once);
        match tokio::time::timeout(ASK_LEADER, asked).await.ok()?.ok()?.answer {
            Answer::Members(members) => Some(members),
            _ => None,
        }
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    /// The members as this node sees them: only a leader knows how far they are.
    pub(super) fn members(&self) -> Vec<Member> {
        let leader = self.raft.leadership().leader;
        let member = |state: MemberState| {
            let role = match (state.voter, Some(state.id) == leader) {
                (false, _) => Role::Learner,
                (true, true) => Role::Leader,
                (true, false) => Role::Follower,
            };
            let is_self = state.id == self.id;
            let heard = state.heard.map(|heard| heard.as_millis() as u64);
            let heard_leader = self.contact.elapsed_ms().filter(|_| Some(state.id) == leader);
            Member {
                id: state.id,
                role,
                http: state.info.http,
                peer: state.info.peer,
                lag: if is_self { state.lag.map(|_| 0) } else { state.lag },
                last_contact_ms: if is_self { Some(0) } else { heard.or(heard_leader) },
            }
        };
        self.raft.members().into_iter().map(member).collect()
    }
}
