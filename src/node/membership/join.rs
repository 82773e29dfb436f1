//! The incarnation of the data directory that each member joined with, and this node's own membership.
//!
//! An incarnation is a random number that a node draws at the first start of its data directory. The leader writes a
//! member's incarnation into the log at their first contact. From then on every node refuses that member with a
//! different incarnation. A voter that lost its disk may have lost votes and entries that the cluster relies on.
//!
//! Only the loss of a disk changes an incarnation. So an earlier one counts wherever this node finds it: in the state,
//! in the uncommitted part of the log, or in memory. A node that is not a member yet may still get a new disk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::access::Caller;
use crate::config::MemberConfig;
use crate::node::membership::form::store_state_call;
use crate::node::request::call::{MAX_REPLY_BYTES, NodeReply};
use crate::node::request::route::Forward;
use crate::node::{NodeCore, NodeFailure, Request};
use crate::peer::{Incarnations, Lane, PeerError, PeerRefusal, Transport};
use crate::raft::{Joined, PeerInfo, Proposal, RaftHandle, Replica};
use crate::storage::{Storage, codec};
use crate::types::{MemberChange, NodeId};

/// Interval of the checks of the membership. A new contact causes a check at once.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// The same while the cluster removes this node: its clients wait until it stops.
const LEAVING_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time of one check.
pub(in crate::node) const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the answer of a peer.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// A node warns when the cluster has had other addresses of it than its file for so many checks: 3 s. After its move, it
/// first has to receive the change.
const CHECKS_BEFORE_WARNING: u32 = 10;

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

    /// Returns the observed members that have not joined in the state.
    fn unrecorded(&self, replica: &Replica) -> Vec<Joined> {
        let observed = self.observed.lock();
        replica.read(|state| {
            let is_new = |node: &NodeId| state.is_member(*node) && !state.joined.contains_key(node);
            let new = observed.iter().filter(|(node, _)| is_new(node));
            new.map(|(&node, &incarnation)| Joined { node, incarnation }).collect()
        })
    }

    /// Whether the first observed incarnation of a node is final. It is not while the node is no member.
    fn is_final(&self, node: NodeId) -> bool {
        let Some(replica) = self.replica.get() else { return true };
        replica.read(|state| !state.is_formed() || state.is_member(node))
    }
}

impl Incarnations for MemberRegistry {
    fn joined(&self, node: NodeId) -> Option<u64> {
        let joined = self.replica.get()?.read(|state| state.joined.get(&node).copied());
        joined.or_else(|| self.observed.lock().get(&node).copied().filter(|_| self.is_final(node)))
    }

    fn is_removed(&self, node: NodeId) -> bool {
        self.replica.get().is_some_and(|replica| replica.is_removed(node))
    }

    fn observe(&self, node: NodeId, incarnation: u64) {
        let is_final = self.is_final(node);
        let mut observed = self.observed.lock();
        if is_final && observed.len() >= MAX_OBSERVED && !observed.contains_key(&node) {
            // A node that is no member keeps no place from a member.
            let stranger = observed.keys().copied().find(|&other| !self.is_final(other));
            if let Some(stranger) = stranger {
                observed.remove(&stranger);
            }
        }
        let has_room = observed.len() < MAX_OBSERVED;
        match observed.entry(node) {
            Entry::Vacant(first) if has_room => {
                first.insert(incarnation);
                self.added.notify_one();
            }
            Entry::Occupied(mut earlier) if !is_final => *earlier.get_mut() = incarnation,
            _ => {}
        }
    }
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// Looks after the membership until the node stops or fails.
    ///
    /// A leader proposes the incarnations that it observed, and completes the change of an earlier leader. A node that
    /// has not joined presents itself to its peers. A learner asks to become a voter. A node fails if a peer knows
    /// another incarnation of it, or if it was removed.
    pub(in crate::node) async fn join(
        self: Arc<Self>,
        known: Arc<MemberRegistry>,
        incarnation: u64,
        configured: Vec<MemberConfig>,
    ) {
        let mut leads = self.requests.clock.changes();
        let mut differed = 0;
        loop {
            let leader_term = *leads.borrow_and_update();
            let step = match leader_term {
                Some(leader_term) => self.lead_members(&known, leader_term.term).map(|()| None).boxed(),
                None => self.follow_members(incarnation, &configured).boxed(),
            };
            // Without a majority a proposal has no answer, and the leadership of this node ends.
            if let Ok(Some(refusal)) = tokio::time::timeout(STEP_TIMEOUT, step).await {
                return self.lifecycle.fail(NodeFailure::Refused(refusal));
            }
            differed = if self.has_other_addresses(&configured) { differed + 1 } else { 0 };
            if differed == CHECKS_BEFORE_WARNING {
                self.warn_of_other_addresses();
            }
            // A new contact counts towards majorities at once, so the leader records it at once. Until then no node
            // would notice the loss of its disk.
            let pause = if self.is_leaving() { LEAVING_POLL_INTERVAL } else { POLL_INTERVAL };
            tokio::select! {
                () = known.added.notified() => {}
                _ = leads.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Whether the cluster removes this node at present. The leader does not send it the end of that change.
    fn is_leaving(&self) -> bool {
        let next = self.raft.current_membership().next_voters;
        next.is_some_and(|next| !next.contains(&self.settings.id))
    }

    async fn lead_members(&self, known: &MemberRegistry, term: u64) {
        known.record(&self.raft, term).await;
        let Some(next) = self.raft.current_membership().next_voters else { return };
        let done = if next.contains(&self.settings.id) {
            self.raft.complete_change(term).await.map_err(|error| error.to_string())
        } else {
            // A leader never removes itself: a voter that stays takes over, and completes the change.
            let timeout = self.settings.timeouts.transfer_leadership;
            self.raft.transfer_leadership_among(&next, timeout).await.map(drop).map_err(|error| error.to_string())
        };
        match done {
            Ok(()) => tracing::info!(?next, "the change of the voters that an earlier leader began is complete"),
            // The next check repeats it.
            Err(error) => tracing::debug!(%error, "the change of the voters is not complete yet"),
        }
    }

    /// Returns the reason why this node does not belong to the cluster, if a peer or the own state has one.
    async fn follow_members(self: &Arc<Self>, incarnation: u64, configured: &[MemberConfig]) -> Option<PeerRefusal> {
        let own = self.settings.id;
        let (joined, is_removed) =
            self.raft.replica().read(|state| (state.joined.get(&own).copied(), state.is_removed(own)));
        if is_removed {
            return Some(PeerRefusal::Removed { node: own });
        }
        if let Some(joined) = joined.filter(|&joined| joined != incarnation) {
            return Some(PeerRefusal::OtherDisk { node: own, joined, now: incarnation });
        }
        let membership = self.raft.current_membership();
        let is_heard = self.raft.last_contact().is_some_and(|heard| heard <= self.settings.timeouts.leaderless);
        if joined.is_none() || !is_heard || self.is_leaving() {
            return ask(&self.transport, own, addresses_to_ask(configured, &membership.nodes)).await;
        }
        if membership.nodes.contains_key(&own) && !membership.voters.contains(&own) {
            // The leader refuses it until this node has caught up.
            let promote = Request::ChangeMembers(MemberChange::Promote { id: own });
            let _ = self.attempt(&Caller::Program, promote, Forward::Once).boxed().await;
        }
        None
    }

    /// Whether the cluster has other addresses of this node than the file.
    fn has_other_addresses(&self, configured: &[MemberConfig]) -> bool {
        let file = configured.iter().find(|member| member.id == self.settings.id);
        let member = self.raft.member(self.settings.id);
        member.zip(file).is_some_and(|(member, file)| (&member.http, &member.peer) != (&file.http, &file.peer))
    }

    fn warn_of_other_addresses(&self) {
        let Some(PeerInfo { http, peer }) = self.raft.member(self.settings.id) else { return };
        tracing::warn!(
            http,
            peer,
            "the cluster has other addresses of this node than its file: correct the file, or tell the cluster with \
             `tenure member update`"
        );
    }
}

/// The addresses of the peers. Those of the cluster replace those of the file.
fn addresses_to_ask<'a>(
    configured: &'a [MemberConfig],
    members: &'a BTreeMap<NodeId, PeerInfo>,
) -> BTreeMap<NodeId, &'a str> {
    let file = configured.iter().map(|member| (member.id, member.peer.as_str()));
    let members = members.iter().map(|(&id, info)| (id, info.peer.as_str()));
    file.chain(members).collect()
}

/// Presents this node to its peers. Returns the refusal of a peer that knows another incarnation of it, or its removal.
pub(in crate::node) async fn ask<T: Transport>(
    transport: &T,
    own: NodeId,
    peers: impl IntoIterator<Item = (NodeId, &str)>,
) -> Option<PeerRefusal> {
    let others = peers.into_iter().filter(|(peer, _)| *peer != own);
    // At once, so that silent peers do not delay the others.
    let calls = others
        .map(|(peer, address)| transport.call(peer, address, Lane::Control, store_state_call(), CALL_TIMEOUT))
        .collect::<FuturesUnordered<_>>();
    let refusals = calls.filter_map(|asked| std::future::ready(refusal_in(own, asked)));
    pin!(refusals).next().await
}

fn refusal_in(own: NodeId, asked: Result<Bytes, PeerError>) -> Option<PeerRefusal> {
    match asked {
        Err(PeerError::Refused {
            reason: reason @ (PeerRefusal::OtherDisk { node, .. } | PeerRefusal::Removed { node }),
            ..
        }) if node == own => Some(reason),
        Ok(reply) if matches!(codec::decode(&reply, MAX_REPLY_BYTES), Ok(NodeReply::Removed)) => {
            Some(PeerRefusal::Removed { node: own })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::peer::Payload;
    use crate::raft::FeatureLevel;

    /// All peers below 11 are silent. The others have removed this node.
    #[derive(Clone)]
    struct SilentPeers;

    impl Transport for SilentPeers {
        async fn call(&self, to: NodeId, _: &str, _: Lane, _: Payload, wait: Duration) -> Result<Bytes, PeerError> {
            if to < 11 {
                tokio::time::sleep(wait).await;
                return Err(PeerError::Timeout { target: to, timeout: wait });
            }
            Ok(codec::encode(&NodeReply::Removed).into())
        }

        async fn is_refused(&self, _: NodeId, _: &str) -> bool {
            unreachable!("no leader fails here")
        }

        async fn shutdown(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn silent_peers_do_not_delay_the_answer_of_another() {
        let began = Instant::now();
        let peers = |last| (1..=last).map(|peer| (peer, "peer"));
        assert_eq!(ask(&SilentPeers, 12, peers(11)).await, Some(PeerRefusal::Removed { node: 12 }));
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(ask(&SilentPeers, 12, peers(10)).await, None);
        assert_eq!(began.elapsed(), CALL_TIMEOUT);
    }

    #[test]
    fn members_are_asked_at_their_addresses_in_the_cluster() {
        let file = |id, peer: &str| MemberConfig { id, http: String::new(), peer: peer.to_owned() };
        let member = |id, peer: &str| (id, PeerInfo { http: String::new(), peer: peer.to_owned() });
        let file = [file(1, "old"), file(2, "only-in-the-file")];
        let members = BTreeMap::from([member(1, "new"), member(3, "joined-later")]);
        let expected = BTreeMap::from([(1, "new"), (2, "only-in-the-file"), (3, "joined-later")]);
        assert_eq!(addresses_to_ask(&file, &members), expected);
    }

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

    #[cfg(feature = "testing")]
    #[tokio::test(start_paused = true)]
    async fn strangers_keep_no_place_from_a_member() {
        use crate::config::{LeaseSettings, RaftTimings};
        use crate::testing::Cluster;

        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let replica = cluster.node(cluster.leader().await).raft().replica().clone();
        let formed = async {
            while !replica.read(|state| state.is_member(3)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), formed).await.expect("the members are in the state");
        let known = MemberRegistry::default();
        known.load(replica, Vec::new());
        for stranger in 0..MAX_OBSERVED as u64 {
            known.observe(1_000 + stranger, 1);
        }
        known.observe(3, 30);
        known.observe(5_000, 50);
        {
            let observed = known.observed.lock();
            let expected = (MAX_OBSERVED, Some(&30), None);
            assert_eq!((observed.len(), observed.get(&3), observed.get(&5_000)), expected);
        }
        cluster.shutdown().await;
    }

    #[test]
    fn unapplied_join_counts_before_any_contact() {
        let known = MemberRegistry::default();
        known.load(Replica::new(Vec::new(), FeatureLevel::SUPPORTED), vec![Joined { node: 2, incarnation: 20 }]);
        known.observe(2, 21);
        assert_eq!(known.joined(2), Some(20));
    }
}
