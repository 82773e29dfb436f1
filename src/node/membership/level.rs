//! The feature level: the leader raises it to the highest one that all members support.
//!
//! A member of an older release does not know the question, and answers that it cannot read it. It supports the first
//! level. A member without an answer holds the level down, because its release is unknown.
//!
//! Forwarded requests name the term of their leader as soon as that leader supports it. A new cluster is at the first
//! level until all members have answered, and it already executes requests.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::node::NodeCore;
use crate::node::membership::join::STEP_TIMEOUT;
use crate::node::request::RequestError;
use crate::node::request::call::{MAX_REPLY_BYTES, NodeCall, NodeReply};
use crate::node::request::propose::ProposeError;
use crate::peer::{Lane, Payload, PeerError, PeerRefusal, Transport};
use crate::raft::{FeatureLevel, Proposal};
use crate::storage::{Storage, codec};
use crate::types::NodeId;

/// Pause before the leader asks again after a member held the level down.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for the answer of a member.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// As the leader, raises the level of the cluster. Returns when it is the level of this node.
    pub(in crate::node) async fn keep_feature_level(self: Arc<Self>) {
        let mut leads = self.requests.clock.changes();
        while self.raft.replica().level() < self.settings.feature_level {
            let leader_term = *leads.borrow_and_update();
            if let Some(leader_term) = leader_term {
                // Without a majority a proposal has no answer, and the leadership of this node ends.
                let raised = tokio::time::timeout(STEP_TIMEOUT, self.raise_feature_level(leader_term.term)).await;
                if let Ok(Err(reason)) = raised {
                    tracing::debug!(reason, "the feature level of the cluster stays");
                }
            }
            tokio::select! {
                _ = leads.changed() => {}
                () = tokio::time::sleep(RETRY_PAUSE) => {}
            }
        }
    }

    /// Raises the level, as the leader of `term`, to the highest one that all members support.
    ///
    /// # Errors
    ///
    /// Which member holds the level below that of this node.
    async fn raise_feature_level(&self, term: u64) -> Result<(), String> {
        let own = self.settings.feature_level;
        let members = self.raft.current_membership().nodes;
        let others = members.iter().filter(|(id, _)| **id != self.settings.id);
        let asked = others.map(|(&id, info)| async move { (id, self.feature_level_of(id, &info.peer).await) });
        let mut lowest = own;
        let mut held_by = None;
        for (id, answer) in join_all(asked).await {
            let level = answer.unwrap_or(FeatureLevel::FIRST);
            if level < lowest {
                lowest = level;
                held_by = Some(match answer {
                    Some(level) => format!("node {id} supports only level {level}: upgrade it"),
                    None => format!("node {id} does not answer: start it, or remove it from the cluster"),
                });
            }
        }
        // A member that was added meanwhile may support less.
        let is_current = self.raft.current_membership().nodes == members;
        if lowest > self.raft.replica().level() && is_current {
            let proposed = self.raft.propose(term, Proposal::level(lowest)).await;
            proposed.map_err(|error| error.to_string())?;
            tracing::info!(level = lowest.0, "all members support this feature level: the cluster uses it");
        }
        held_by.map_or(Ok(()), Err)
    }

    /// The highest level that a member supports. `None` if it does not answer.
    pub(super) async fn feature_level_of(&self, id: NodeId, peer: &str) -> Option<FeatureLevel> {
        level_in(self.ask_level(id, peer).await?)
    }

    async fn ask_level(&self, id: NodeId, peer: &str) -> Option<NodeReply> {
        let call = Payload::Node(NodeCall::<()>::FeatureLevel.encode());
        let call = self.transport.call(id, peer, Lane::Control, call, ANSWER_TIMEOUT);
        match tokio::time::timeout(ANSWER_TIMEOUT, call).await.ok()? {
            Ok(reply) => codec::decode(&reply, MAX_REPLY_BYTES).ok(),
            Err(PeerError::Refused { reason: PeerRefusal::Removed { node }, .. }) if node == self.settings.id => {
                Some(NodeReply::Removed)
            }
            Err(_) => None,
        }
    }

    /// The level of the requests that this node forwards to the leader of a term: that of the cluster, or that of the
    /// leader if it is higher. A leader that has answered is not asked again in its term.
    ///
    /// # Errors
    ///
    /// `NotLeader` if the leader does not answer, or if the cluster removed this node.
    pub(in crate::node) async fn forward_level(
        &self,
        leader: NodeId,
        term: u64,
        peer: &str,
    ) -> Result<FeatureLevel, ProposeError> {
        let level = self.raft.replica().level();
        if level >= FeatureLevel::REQUEST_TERMS {
            return Ok(level);
        }
        // A node that starts again, maybe with another release, does not lead in its earlier term.
        let known = *self.requests.leader_level.lock();
        if let Some((_, supported)) = known.filter(|&(of, _)| of == (leader, term)) {
            return Ok(supported.max(level));
        }
        let reply = tokio::select! {
            reply = self.ask_level(leader, peer) => reply,
            () = self.raft.other_leader(leader) => None,
        };
        if matches!(reply, Some(NodeReply::Removed)) {
            return Err(self.was_removed());
        }
        let supported = reply.and_then(level_in).ok_or(ProposeError::NotLeader)?;
        *self.requests.leader_level.lock() = Some(((leader, term), supported));
        Ok(supported.max(level))
    }

    /// Makes sure that the cluster has this level, as the leader of `term`.
    ///
    /// # Errors
    ///
    /// A member holds the level down.
    pub(in crate::node) async fn require_level(&self, term: u64, level: FeatureLevel) -> Result<(), String> {
        let current = self.raft.replica().level();
        if current >= level {
            return Ok(());
        }
        let raised = self.raise_feature_level(term).await;
        if self.raft.replica().level() >= level {
            return Ok(());
        }
        let reason = raised.err().unwrap_or_else(|| "the members changed meanwhile: try again".to_owned());
        Err(format!("this needs feature level {level}, and the cluster has level {current}: {reason}"))
    }
}

fn level_in(reply: NodeReply) -> Option<FeatureLevel> {
    match reply {
        NodeReply::FeatureLevel(level) => Some(level),
        NodeReply::Done(done) => matches!(*done, Err(RequestError::Unreadable(_))).then_some(FeatureLevel::FIRST),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_that_cannot_read_the_question_has_the_first_level() {
        let done = |error| NodeReply::Done(Box::new(Err(error)));
        assert_eq!(level_in(done(RequestError::Unreadable("unknown".to_owned()))), Some(FeatureLevel::FIRST));
        assert_eq!(level_in(NodeReply::FeatureLevel(FeatureLevel(7))), Some(FeatureLevel(7)));
        for no_answer in [done(RequestError::Busy), NodeReply::NotLeader, NodeReply::Removed] {
            assert_eq!(level_in(no_answer), None);
        }
    }
}
