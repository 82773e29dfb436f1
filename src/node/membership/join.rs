//! Who joined with which disk.
//!
//! Each data directory has an incarnation: a random number from its first start. The leader writes a member's
//! incarnation into the log when it first meets it, and from then on every node refuses that member with another
//! one: a voter that lost its disk may have forgotten votes and entries that the cluster counts on.
//!
//! An incarnation only ever changes by the loss of a disk, so every trace of an earlier one counts: in the state, in
//! the part of the log that is not known to be committed, and in the memory of this process.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::MemberConfig;
use crate::node::{Inner, NodeFailure};
use crate::peer::{Incarnations, Lane, PeerError, Refusal, Transport};
use crate::raft::{Joined, Proposal, RaftHandle, Replica};
use crate::storage::Storage;
use crate::types::NodeId;

/// How often members that have not joined yet are looked for, beside when one is met.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);
/// Longest wait for a peer that is asked whether it knows this node.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// Most nodes whose first disk is remembered in memory: far more than a cluster has. Whoever can speak the protocol can make
/// up a new one with every connection.
const MAX_OBSERVED: usize = 1024;

/// What this node knows of its peers' disks.
#[derive(Default)]
pub(crate) struct MemberRegistry {
    replica: OnceLock<Replica>,
    /// The first that each node came with, as far as this node has seen since it started or has in its log.
    observed: Mutex<BTreeMap<NodeId, u64>>,
    /// Somebody was met.
    news: Notify,
}

impl MemberRegistry {
    /// From now on callers are let in: `logged` and the replica say with which disks.
    pub fn look_into(&self, replica: Replica, logged: Vec<Joined>) {
        for Joined { node, incarnation } in logged {
            self.observed.lock().entry(node).or_insert(incarnation);
        }
        let first = self.replica.set(replica);
        assert!(first.is_ok(), "a node has one replica");
    }

    /// Writes down, as the leader of `term`, whom this node met.
    pub(in crate::node) async fn record<S: Storage>(&self, raft: &RaftHandle<S>, term: u64) {
        for new in self.unwritten(raft.replica()) {
            // Lost with the lead, it is written by the next leader.
            let _ = raft.propose(term, Proposal::joined(new)).await;
        }
    }

    /// Who was met and is not in the log.
    fn unwritten(&self, replica: &Replica) -> Vec<Joined> {
        let observed = self.observed.lock();
        replica.read(|state| {
            let new = observed.iter().filter(|(node, _)| !state.joined.contains_key(node));
            new.map(|(&node, &incarnation)| Joined { node, incarnation }).collect()
        })
    }
}

impl Incarnations for MemberRegistry {
    fn are_read(&self) -> bool {
        self.replica.get().is_some()
    }

    fn joined(&self, node: NodeId) -> Option<u64> {
        let joined = self.replica.get()?.read(|state| state.joined.get(&node).copied());
        joined.or_else(|| self.observed.lock().get(&node).copied())
    }

    fn observe(&self, node: NodeId, incarnation: u64) {
        let mut observed = self.observed.lock();
        let has_room = observed.len() < MAX_OBSERVED;
        if let Entry::Vacant(first) = observed.entry(node)
            && has_room
        {
            first.insert(incarnation);
            self.news.notify_one();
        }
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Runs until every member has joined: a leader writes down whom it met; a node that has not joined asks its peers
    /// whether they will have it, and fails if one says that its disk is not the one it joined with.
    pub(in crate::node) async fn join(
        self: Arc<Self>,
        known: Arc<MemberRegistry>,
        incarnation: u64,
        peers: Vec<MemberConfig>,
    ) {
        let mut leads = self.clock.changes();
        loop {
            let joined = self.raft.replica().read(|state| state.joined.clone());
            if joined.get(&self.id).is_some_and(|&joined| joined != incarnation) {
                let refusal = Refusal::OtherDisk { node: self.id, joined: joined[&self.id], now: incarnation };
                return self.fail(NodeFailure::Refused(refusal));
            }
            if self.raft.members().iter().all(|member| joined.contains_key(&member.id)) && !joined.is_empty() {
                return;
            }
            let lead = *leads.borrow_and_update();
            if let Some(lead) = lead {
                known.record(&self.raft, lead.term).await;
            }
            if lead.is_none()
                && !joined.contains_key(&self.id)
                && let Some(refusal) = ask(&self.transport, self.id, &peers).await
            {
                return self.fail(NodeFailure::Refused(refusal));
            }
            // A member that is met counts towards majorities at once, so it is written down at once: until then it
            // could lose its disk unnoticed.
            tokio::select! {
                () = known.news.notified() => {}
                _ = leads.changed() => {}
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// The node cannot go on, and says why. The first reason stays.
    pub(in crate::node) fn fail(&self, why: NodeFailure) {
        tracing::error!(%why, "this node cannot go on");
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert(why);
            first
        });
    }
}

/// Presents this node to each of its peers. Tells if one of them refuses it for its disk.
pub(in crate::node) async fn ask<T: Transport>(transport: &T, own: NodeId, peers: &[MemberConfig]) -> Option<Refusal> {
    for peer in peers.iter().filter(|peer| peer.id != own) {
        let asked = transport.call(peer.id, &peer.peer, Lane::Control, Bytes::new(), ASK_TIMEOUT).await;
        if let Err(PeerError::Refused { reason: reason @ Refusal::OtherDisk { node, .. }, .. }) = asked
            && node == own
        {
            return Some(reason);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_1024_nodes_are_remembered() {
        let known = MemberRegistry::default();
        for node in 1..=1_025 {
            known.observe(node, node * 10);
        }
        // The first disk of a node stays, also where there is no room for another node.
        known.observe(1, 11);
        let observed = known.observed.lock();
        assert_eq!((observed.len(), observed.last_key_value()), (1_024, Some((&1_024, &10_240))));
        assert_eq!(observed[&1], 10);
    }
}
