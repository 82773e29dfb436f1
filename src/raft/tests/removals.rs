//! Calls of a removed node, in an in-memory cluster under a paused clock.

use std::time::Duration;

use super::super::wire::{self, Call, Reply, RequestVote, TransferCall};
use crate::config::{LeaseSettings, RaftTimings};
use crate::peer::{Lane, Payload, Transport};
use crate::raft::MembershipChange;
use crate::raft::types::position;
use crate::storage::{Storage, VoteRecord};
use crate::testing::Cluster;

const SOON: Duration = Duration::from_secs(30);

/// The node is down during its removal, so it does not know of it. The calls arrive without a handshake, as on a connection
/// that is open.
#[tokio::test(start_paused = true)]
async fn removed_node_gets_no_vote_and_no_leadership() {
    let mut cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    // The leader records the join of each member.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let removed = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let other = cluster.ids().find(|id| ![leader, removed].contains(id)).expect("three nodes");
    cluster.crash(removed).await;
    let raft = cluster.node(leader).raft();
    let (term, decided_at) = (raft.leadership().term, raft.membership_position());
    raft.change_members(term, decided_at, MembershipChange::Remove(removed)).await.expect("removed");
    let applied = async {
        while ![leader, other].into_iter().all(|id| cluster.node(id).is_removed(removed)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, applied).await.expect("both members apply the removal");
    let last = raft.replica().read(|state| state.applied.as_ref().map(position));
    for voter in [leader, other] {
        let before = cluster.disk(voter).vote().expect("it voted");
        let vote = VoteRecord { term: before.term + 1, candidate: Some(removed), committed: false };
        let ballot = |transfer| RequestVote { vote, last, transfer };
        let from = VoteRecord { committed: true, ..vote };
        let transfer = Call::Transfer(TransferCall { from, to: voter, last });
        // Without a transfer, the lease of the leader would protect it, too.
        for call in [Call::Vote(ballot(true)), Call::PreVote(ballot(false)), transfer] {
            let payload = Payload::Raft(wire::encode(&call));
            let answer = cluster.board.transport(removed).call(voter, "in memory", Lane::Control, payload, SOON).await;
            let reply: Reply = wire::decode(&answer.expect("answered")).expect("readable");
            let is_refused = matches!(&reply, Reply::Failed(why) if why.contains("was removed from the cluster"));
            assert!(is_refused, "{call:?} to node {voter}: {reply:?}");
        }
        assert_eq!(cluster.disk(voter).vote(), Some(before), "the vote of node {voter}");
    }
    cluster.shutdown().await;
}
