//! Changes of the members that the leader cannot begin.

use super::*;
use crate::node::membership::MemberRefusal;
use crate::types::MemberChange;

/// More entries than a successor may lack.
const ENTRIES: usize = 300;
/// Enough for an append, and less than a leadership lease.
const APPEND: Duration = Duration::from_millis(100);

/// The disks of both followers hang. The leader leads on, and the transfer before its removal has no target.
#[tokio::test(start_paused = true)]
async fn removal_of_a_leader_without_a_caught_up_voter_is_refused() {
    let (cluster, leader, followers) = start().await;
    tokio::time::sleep(SOON).await;
    followers.into_iter().for_each(|follower| cluster.hang_disk(follower));
    let node = cluster.node(leader).clone();
    let term = node.raft().leadership().term;
    for _ in 0..ENTRIES {
        let batch = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands: vec![Command::Tick] };
        let node = node.clone();
        tokio::spawn(async move { node.raft().propose(term, Proposal::leases(&batch)).await.map(drop) });
    }
    tokio::time::sleep(APPEND).await;
    let removal = Request::ChangeMembers(MemberChange::Remove { id: leader, force: false });
    let refused = node.request(removal, Forward::Never).await;
    let is_lagging = matches!(&refused, Err(RequestError::MemberRefused { refusal: MemberRefusal::Lags, .. }));
    assert!(is_lagging, "{refused:?}");
    assert_eq!(node.leadership().leader, Some(leader), "it still leads");
}
