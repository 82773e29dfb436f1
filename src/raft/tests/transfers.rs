//! Leadership transfers in an in-memory cluster under a paused clock.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;

use crate::config::{LeaseSettings, RaftTimings};
use crate::lease::{Batch, Command, Stamp};
use crate::raft::{ChangeError, MembershipChange, PeerInfo, Proposal, TransferError};
use crate::sim::SyncMode;
use crate::testing::Cluster;

const TIMEOUT: Duration = Duration::from_secs(2);
/// Enough for an append, and less than a leadership lease.
const APPEND: Duration = Duration::from_millis(100);

/// Leaves `entries` entries without an acknowledgement of a follower, and then transfers leadership.
async fn transfer_with(entries: usize) -> Result<u64, TransferError> {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    tokio::time::sleep(TIMEOUT).await;
    let followers: Vec<_> = cluster.ids().filter(|id| *id != leader).collect();
    followers.iter().for_each(|&follower| cluster.hang_disk(follower));
    let node = cluster.node(leader).clone();
    let term = node.raft().leadership().term;
    for _ in 0..entries {
        let batch = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands: vec![Command::Tick] };
        let node = node.clone();
        tokio::spawn(async move { node.raft().propose(term, Proposal::leases(&batch)).await.map(drop) });
    }
    tokio::time::sleep(APPEND).await;
    // The disks work again after the decision.
    let release = async {
        tokio::time::sleep(APPEND).await;
        for follower in followers {
            cluster.disk(follower).set_mode(SyncMode::Inline);
            cluster.disk(follower).sync();
        }
    };
    tokio::join!(node.raft().transfer_leadership(TIMEOUT), release).0
}

#[tokio::test(start_paused = true)]
async fn leadership_goes_to_no_voter_that_lacks_over_256_entries() {
    assert_eq!(transfer_with(300).await, Err(TransferError::NoCaughtUpVoter));
    let transferred = transfer_with(200).await;
    assert!(transferred.is_ok(), "{transferred:?}");
}

/// The first target cannot be reached. With two transfers at once, openraft would make both targets stand for election.
#[tokio::test(start_paused = true)]
async fn second_transfer_begins_after_the_end_of_the_first() {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let followers: Vec<_> = cluster.ids().filter(|id| *id != leader).collect();
    let third = cluster.node(followers[1]);
    let term = third.leadership().term;
    cluster.board.cut(leader, followers[0]);
    let mut transfers = Vec::new();
    for to in followers {
        let node = cluster.node(leader).clone();
        transfers.push(tokio::spawn(async move { node.transfer_leadership_within(to, TIMEOUT).await }));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Less than an election timeout, and enough for an election of a target.
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(third.leadership().term, term, "no node stands for election");
    assert!(!transfers[1].is_finished());
    cluster.board.heal();
    for transfer in transfers {
        // Another node leads after the leadership lease, so the second transfer may find that this node does not lead.
        let ended = transfer.await.expect("no panic");
        assert!(matches!(ended, Ok(_) | Err(TransferError::NotLeader)), "{ended:?}");
    }
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn former_leader_that_leads_again_reads_from_memory() {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let next = cluster.ids().find(|id| *id != leader).expect("three nodes");
    tokio::time::sleep(TIMEOUT).await;
    for (from, to) in [(leader, next), (next, leader)] {
        cluster.node(from).transfer_leadership_to(to).await.expect("transferred");
        assert_eq!(cluster.leader().await, to);
        tokio::time::sleep(TIMEOUT).await;
    }
    let reads = async {
        while !cluster.node(leader).raft().may_read_locally() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, reads).await.expect("only the term of a transfer has no local reads");
    cluster.shutdown().await;
}

/// The dead voter has the lower id and lacks nothing.
#[tokio::test(start_paused = true)]
async fn leadership_goes_to_no_dead_voter() {
    let mut cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let followers: Vec<_> = cluster.ids().filter(|id| *id != leader).collect();
    tokio::time::sleep(TIMEOUT).await;
    cluster.crash(followers[0]).await;
    let raft = cluster.node(leader).raft();
    tokio::time::sleep(2 * raft.timings.leadership_lease()).await;
    let lacks_nothing = {
        let metrics = raft.metrics.borrow_watched();
        let matched = metrics.replication.as_ref().and_then(|progress| progress.get(&followers[0])?.as_ref());
        matched.is_some_and(|matched| Some(matched.index) == metrics.last_log_index)
    };
    assert!(lacks_nothing, "control: the idle leader appends nothing");
    // After a transfer to the dead voter, the other one takes over only when the leadership lease ends.
    assert_eq!(raft.transfer_leadership(APPEND).await, Ok(followers[1]));
    cluster.shutdown().await;
}

/// The caller decided on the change in the earlier term. Another leader may have changed the members since.
#[tokio::test(start_paused = true)]
async fn member_change_of_an_earlier_term_is_refused() {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let next = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let earlier = cluster.node(leader).leadership().term;
    tokio::time::sleep(TIMEOUT).await;
    for (from, to) in [(leader, next), (next, leader)] {
        cluster.node(from).transfer_leadership_to(to).await.expect("transferred");
        assert_eq!(cluster.leader().await, to);
        tokio::time::sleep(TIMEOUT).await;
    }
    let node = cluster.node(leader).clone();
    let term = node.leadership().term;
    assert!(term > earlier, "term {term} follows term {earlier}");
    let (removal, decided_at) = (MembershipChange::Remove(next), node.raft().membership_position());
    assert_eq!(node.raft().change_members(earlier, decided_at, removal.clone()).await, Err(ChangeError::NotLeader));
    assert!(node.voters().contains(&next));
    assert_eq!(node.raft().change_members(term, decided_at, removal).await, Ok(()), "control: the current term");
    cluster.shutdown().await;
}

/// Of two changes that the leader decides on at once, it makes one. A later address of a removed member would add it again.
#[tokio::test(start_paused = true)]
async fn member_change_that_was_decided_before_another_is_refused() {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let other = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let raft = cluster.node(leader).raft();
    let (term, decided_at) = (cluster.node(leader).leadership().term, raft.membership_position());
    let addresses = PeerInfo { http: "127.0.0.1:1".to_owned(), peer: "127.0.0.1:2".to_owned() };
    let update = MembershipChange::SetAddresses(other, addresses);
    raft.change_members(term, decided_at, MembershipChange::Remove(other)).await.expect("removed");
    assert_eq!(raft.change_members(term, decided_at, update.clone()).await, Err(ChangeError::InProgress));
    assert!(!raft.current_membership().nodes.contains_key(&other), "a removed node stays removed");
    let control = raft.change_members(term, raft.membership_position(), update).await;
    assert_eq!((control, raft.current_membership().nodes.contains_key(&other)), (Ok(()), true), "control");
    cluster.shutdown().await;
}

/// The leader also looks for a change that an earlier leader began, and completes it.
#[tokio::test(start_paused = true)]
async fn no_other_call_completes_a_change_that_runs() {
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    let other = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let raft = cluster.node(leader).raft();
    let (term, decided_at) = (cluster.node(leader).leadership().term, raft.membership_position());
    let mut change = Box::pin(raft.change_members(term, decided_at, MembershipChange::Remove(other)));
    // The call proposes the first entry here, and the second one when it is polled again.
    assert!(futures_util::poll!(&mut change).is_pending());
    let committed = async {
        while raft.metrics.borrow_watched().committed_membership_config.membership().get_joint_config().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, committed).await.expect("the first entry is committed");
    assert_eq!(raft.complete_change(term).await, Err(ChangeError::InProgress));
    assert!(raft.current_membership().next_voters.is_some(), "another call made the second entry");
    assert_eq!(change.await, Ok(()));
    assert!(!cluster.node(leader).voters().contains(&other));
    cluster.shutdown().await;
}
