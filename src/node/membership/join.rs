//! The incarnation of the data directory that each member joined with.
//!
//! An incarnation is a random number that a node draws at the first start of its data directory. The leader writes a
//! member's incarnation into the log at their first contact. From then on every node refuses that member with a
//! different incarnation. A voter that lost its disk may have lost votes and entries that the cluster relies on.
//!
//! Only the loss of a disk changes an incarnation. So an earlier one counts wherever this node finds it: in the state,
//! in the uncommitted part of the log, or in memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::MemberConfig;
use crate::node::membership::form::store_state_call;
use crate::node::{Inner, NodeFailure};
use crate::peer::{Incarnations, Lane, PeerError, Refusal, Transport};
use crate::raft::{Joined, Proposal, RaftHandle, Replica};
use crate::storage::Storage;
use crate::types::NodeId;

/// Interval of the checks for members that have not joined. A new contact causes a check at once.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Longest wait for the answer of a peer.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// Most nodes whose first incarnation is kept in memory. A cluster has at most 15 members, but a faulty peer can
/// present a new node id with each connection.
const MAX_OBSERVED: usize = 1024;

/// The incarnations of all nodes that this node knows.
#[derive(Default)]
pub(crate) struct MemberRegistry {
    /// Set when the node has restored its state, before it accepts callers.
    replica: OnceLock<Replica>,
    /// The first incarnation of each node, from the log or from contacts since the start of this node.
    observed: Mutex<BTreeMap<NodeId, u64>>,
    /// Notified when `observed` has a new node.
    added: Notify,
}

impl MemberRegistry {
    /// Sets the sources of known incarnations: the replica, and the `logged` ones that it has not applied.
    pub fn load(&self, replica: Replica, logged: Vec<Joined>) {
        for Joined { node, incarnation } in logged {
            self.observed.lock().entry(node).or_insert(incarnation);
        }
        let first = self.replica.set(replica);
        assert!(first.is_ok(), "a node has one replica");
    }

    /// Proposes, as the leader of `term`, every observed incarnation that the state does not have.
    pub(in crate::node) async fn record<S: Storage>(&self, raft: &RaftHandle<S>, term: u64) {
        for new in self.unrecorded(raft.replica()) {
            // If this node loses its leadership, the next leader proposes it.
            let _ = raft.propose(term, Proposal::joined(new)).await;
        }
    }

    /// Returns the observed nodes that have not joined in the state.
    fn unrecorded(&self, replica: &Replica) -> Vec<Joined> {
        let observed = self.observed.lock();
        replica.read(|state| {
            let new = observed.iter().filter(|(node, _)| !state.joined.contains_key(node));
            new.map(|(&node, &incarnation)| Joined { node, incarnation }).collect()
        })
    }
}

impl Incarnations for MemberRegistry {
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
            self.added.notify_one();
        }
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Runs until every member has joined.
    ///
    /// A leader proposes the incarnations that it observed. A node that has not joined presents itself to its peers. It
    /// fails if a peer knows another incarnation of it.
    pub(in crate::node) async fn join(
        self: Arc<Self>,
        known: Arc<MemberRegistry>,
        incarnation: u64,
        peers: Vec<MemberConfig>,
    ) {
        let mut leads = self.requests.clock.changes();
        loop {
            let joined = self.raft.replica().read(|state| state.joined.clone());
            if joined.get(&self.settings.id).is_some_and(|&joined| joined != incarnation) {
                let refusal =
                    Refusal::OtherDisk { node: self.settings.id, joined: joined[&self.settings.id], now: incarnation };
                return self.lifecycle.fail(NodeFailure::Refused(refusal));
            }
            if self.raft.members().iter().all(|member| joined.contains_key(&member.id)) && !joined.is_empty() {
                return;
            }
            let leader_term = *leads.borrow_and_update();
            if let Some(leader_term) = leader_term {
                known.record(&self.raft, leader_term.term).await;
            }
            if leader_term.is_none()
                && !joined.contains_key(&self.settings.id)
                && let Some(refusal) = ask(&self.transport, self.settings.id, &peers).await
            {
                return self.lifecycle.fail(NodeFailure::Refused(refusal));
            }
            // A new contact counts towards majorities at once, so the leader records it at once. Until then no node
            // would notice the loss of its disk.
            tokio::select! {
                () = known.added.notified() => {}
                _ = leads.changed() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }
}

/// Presents this node to each of its peers. Returns the refusal of a peer that knows another incarnation of it.
pub(in crate::node) async fn ask<T: Transport>(transport: &T, own: NodeId, peers: &[MemberConfig]) -> Option<Refusal> {
    for peer in peers.iter().filter(|peer| peer.id != own) {
        let asked = transport.call(peer.id, &peer.peer, Lane::Control, store_state_call(), CALL_TIMEOUT).await;
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
    fn registry_keeps_1024_incarnations() {
        let known = MemberRegistry::default();
        for node in 1..=1_025 {
            known.observe(node, node * 10);
        }
        // A full registry keeps the first incarnation of a known node.
        known.observe(1, 11);
        let observed = known.observed.lock();
        assert_eq!((observed.len(), observed.last_key_value()), (1_024, Some((&1_024, &10_240))));
        assert_eq!(observed[&1], 10);
    }

    #[test]
    fn unapplied_join_counts_before_any_contact() {
        let known = MemberRegistry::default();
        known.load(Replica::new(Vec::new()), vec![Joined { node: 2, incarnation: 20 }]);
        known.observe(2, 21);
        assert_eq!(known.joined(2), Some(20));
    }
}
