//! Cluster formation: the member with the lowest id forms the cluster once.
//!
//! *Initialised* and *formed* are two facts, recorded one after the other. The marker in the data directory records
//! that the directory belongs to this node. A formed cluster follows from the store alone: the store then holds a vote,
//! a log entry or a snapshot. A node that crashes between the two steps forms the cluster at its next start.
//!
//! A lowest member that lost its disk must not form a second cluster. So it first collects answers from enough members
//! for a majority including itself, and each of them must have an empty store. It cannot know the data of a member that
//! does not answer, so a node that has never run must not start while the lowest member has lost its disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::config::MemberConfig;
use crate::node::request::call::{MAX_REPLY_BYTES, NodeCall, NodeReply};
use crate::node::{NodeCore, NodeFailure, Request};
use crate::peer::{Lane, Payload, Transport};
use crate::raft::PeerInfo;
use crate::storage::{Storage, codec};
use crate::types::NodeId;

/// Pause before this node asks the other members again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for the reply to a question about a store.
const STORE_STATE_TIMEOUT: Duration = Duration::from_millis(500);

/// The answers of the other members about their stores.
#[derive(Debug, Default)]
struct StoreAnswers {
    /// Number of members with an empty store.
    empty: usize,
    /// A member whose store is not empty.
    formed: Option<NodeId>,
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// Forms the cluster if this node has the lowest id.
    ///
    /// Returns when the cluster is formed, or when another node has data. In the latter case this node lost its disk,
    /// and the existing cluster continues without it.
    pub(in crate::node) async fn form(self: Arc<Self>, members: Vec<MemberConfig>) {
        if members.iter().map(|member| member.id).min() != Some(self.settings.id) {
            return;
        }
        while self.storage.is_empty() {
            let answers = self.store_states(&members).await;
            let is_majority = 1 + answers.empty > members.len() / 2;
            match answers.formed {
                None if is_majority => match self.raft.form(infos(&members)).await {
                    Ok(()) => return,
                    Err(why) => {
                        return self.lifecycle.fail(NodeFailure::Raft(format!("cannot form the cluster: {why}")));
                    }
                },
                None => {}
                Some(node) => {
                    return tracing::warn!(
                        node,
                        "this node's store is empty and the store of node {node} is not: this node forms no cluster. \
                         If it lost its disk, remove it from the cluster and add it again with a new id"
                    );
                }
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn store_states(&self, members: &[MemberConfig]) -> StoreAnswers {
        let others = members.iter().filter(|member| member.id != self.settings.id);
        let asked = others.map(|member| async move { (member.id, self.store_state(member).await) });
        let mut answers = StoreAnswers::default();
        for (node, is_empty) in join_all(asked).await {
            match is_empty {
                Some(true) => answers.empty += 1,
                Some(false) => answers.formed = Some(node),
                None => {}
            }
        }
        answers
    }

    /// Returns whether the member's store is empty, or `None` without an answer.
    async fn store_state(&self, member: &MemberConfig) -> Option<bool> {
        let payload = store_state_call();
        let call = self.transport.call(member.id, &member.peer, Lane::Control, payload, STORE_STATE_TIMEOUT);
        match codec::decode(&call.await.ok()?, MAX_REPLY_BYTES) {
            Ok(NodeReply::StoreState { is_empty }) => Some(is_empty),
            _ => None,
        }
    }
}

/// A call that changes nothing. The handshake before it presents this node to the other one.
pub(in crate::node) fn store_state_call() -> Payload {
    Payload::Node(NodeCall::<Request>::StoreState.encode())
}

fn infos(members: &[MemberConfig]) -> BTreeMap<NodeId, PeerInfo> {
    let info = |member: &MemberConfig| PeerInfo { http: member.http.clone(), peer: member.peer.clone() };
    members.iter().map(|member| (member.id, info(member))).collect()
}
