//! Forming the cluster: once in its life, by the member with the lowest id.
//!
//! *Initialised* and *formed* are two facts, recorded one after the other. The marker in the data directory says that the
//! directory belongs to this node. That the cluster is formed follows from the store alone: it then holds a vote, a log
//! entry or a snapshot. A node that ends in between does at its next start what it had not done.
//!
//! A lowest node whose disk was lost must not form a second cluster. So it first hears from enough members to be a
//! majority with itself, and each of them has an empty store, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::config::MemberConfig;
use crate::node::{Inner, NodeFailure};
use crate::peer::{Lane, Transport};
use crate::raft::{Call, PeerInfo, Reply};
use crate::storage::{Storage, codec};
use crate::types::NodeId;

/// Pause before the other members are asked again. They start at about the same time.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait for one member's answer.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// Largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 4096;

/// What the other members say of their stores.
#[derive(Debug, Default)]
struct Answers {
    /// How many have an empty one.
    empty: usize,
    /// A member that has not.
    formed: Option<NodeId>,
}

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Forms the cluster if that is this node's part. Returns when it is formed, or when another node has data: then this
    /// node's disk was lost, and what the other one has stays the cluster.
    pub(in crate::node) async fn form(self: Arc<Self>, members: Vec<MemberConfig>) {
        if members.iter().map(|member| member.id).min() != Some(self.id) {
            return;
        }
        while self.storage.is_empty() {
            let answers = self.ask_for_stores(&members).await;
            let is_majority = 1 + answers.empty > members.len() / 2;
            match answers.formed {
                None if is_majority => match self.raft.form(infos(&members)).await {
                    Ok(()) => return,
                    Err(why) => return self.fail(NodeFailure::Raft(format!("the cluster was not formed: {why}"))),
                },
                None => {}
                Some(node) => {
                    return tracing::warn!(
                        node,
                        "this node's store is empty and the store of node {node} is not: this node forms no cluster. If \
                         its disk was lost, remove it from the cluster and let it join again under a new id"
                    );
                }
            }
            tokio::time::sleep(ASK_INTERVAL).await;
        }
    }

    async fn ask_for_stores(&self, members: &[MemberConfig]) -> Answers {
        let others = members.iter().filter(|member| member.id != self.id);
        let asked = others.map(|member| async move { (member.id, self.ask_for_store(member).await) });
        let mut answers = Answers::default();
        for (node, is_empty) in join_all(asked).await {
            match is_empty {
                Some(true) => answers.empty += 1,
                Some(false) => answers.formed = Some(node),
                None => {}
            }
        }
        answers
    }

    /// Whether the member's store is empty, if it says so.
    async fn ask_for_store(&self, member: &MemberConfig) -> Option<bool> {
        let call = codec::encode(&Call::StoreState).into();
        let answer = self.transport.call(member.id, &member.peer, Lane::Control, call, ASK_TIMEOUT).await.ok()?;
        match codec::decode(&answer, MAX_ANSWER_BYTES) {
            Ok(Reply::StoreState { is_empty }) => Some(is_empty),
            _ => None,
        }
    }
}

fn infos(members: &[MemberConfig]) -> BTreeMap<NodeId, PeerInfo> {
    let info = |member: &MemberConfig| PeerInfo { http: member.http.clone(), peer: member.peer.clone() };
    members.iter().map(|member| (member.id, info(member))).collect()
}
