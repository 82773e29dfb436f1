//! Waits whose client leaves while another request of its holder comes.

use super::*;
use crate::lease::WaiterId;

/// The client of the first request has left. The second request comes before the node has given up the place, and the
/// log refuses it.
#[tokio::test(start_paused = true)]
async fn refused_claim_keeps_no_place_of_a_request_that_left() {
    let (cluster, leader, _) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    let claim = |by: &str, limit: u32| {
        let Request::Acquire(claim) = claim_of(by) else { unreachable!("it is a claim") };
        let (inner, claim) = (node.inner.clone(), Request::Acquire(Acquire { limit, ..claim }));
        Box::pin(async move { inner.execute_as_leader(&Caller::Program, claim).await })
    };
    let mut first = claim("first", 1);
    while waiters(&node).await == 0 {
        assert!(first.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let second = tokio::spawn(claim("second", 1));
    until_waiters(&node, 2).await;
    drop(first);
    let mut again = claim("first", 2);
    assert!(again.as_mut().now_or_never().is_none(), "its claim is on the way");
    let answer = again.await.expect("answered").answer;
    assert_eq!(answer, Answer::Outcome(Outcome::Refused(Refusal::LimitDiffers { limit: 1 })));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(queue(&node).await, ["second"], "no request of the first holder waits");
    holder.release().await.expect("released");
    let granted = second.await.expect("it does not panic").expect("answered");
    assert!(matches!(granted.answer, Answer::Outcome(Outcome::Held { .. })), "{granted:?}");
    cluster.shutdown().await;
}

/// The node that leads next has dropped a request of a waiter while it did not lead.
#[tokio::test(start_paused = true)]
async fn request_dropped_without_a_leadership_keeps_its_place_under_a_later_one() {
    let (cluster, leader, [follower, other]) = start().await;
    let holder = lease(&manager(cluster.node(other)));
    holder.acquire(Wait::No).await.expect("free");
    let wait = |at: NodeId, by: &str| {
        let (inner, claim) = (cluster.node(at).inner.clone(), claim_of(by));
        tokio::spawn(async move { inner.execute_as_leader(&Caller::Program, claim).await.map(drop) })
    };
    let stays = wait(leader, "stays");
    until_waiters(cluster.node(other), 1).await;
    let next = cluster.node(follower);
    let (name, holder_id) = (LeaseName::new("job").expect("valid"), HolderId::new("stays").expect("valid"));
    drop(next.inner.requests.waits.register(WaiterId { name, holder: holder_id }));
    // The node takes note of it.
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(cluster.node(leader).transfer_leadership_to(follower).await, Ok(follower));
    let leads = async {
        while next.inner.requests.clock.leader_term().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, leads).await.expect("it leads");
    let ended = tokio::time::timeout(SOON, stays).await.expect("the earlier leader ends its waits");
    drop(ended.expect("no panic"));
    let leaves = wait(follower, "leaves");
    until_waiters(next, 2).await;
    leaves.abort();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(queue(next).await, ["stays"]);
    cluster.shutdown().await;
}
