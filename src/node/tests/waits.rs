//! Waits whose client leaves while another request of its holder comes.

use tokio::task::JoinHandle;

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
    drop(next.inner.requests.waits.register_alone(WaiterId { name, holder: holder_id }));
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

/// A claim of one holder at a node, with this wait.
fn wait_at(cluster: &Cluster, at: NodeId, wait: Duration) -> JoinHandle<Result<Answer, RequestError>> {
    let Request::Acquire(claim) = claim_of("waits") else { unreachable!("it is a claim") };
    let claim = Request::Acquire(Acquire { wait_ms: Some(wait.as_millis() as u64), ..claim });
    let node = cluster.node(at).clone();
    tokio::spawn(async move { node.request(claim, Forward::Once).await.map(|response| response.answer) })
}

const SHORT_WAIT: Duration = Duration::from_secs(2);
const LONG_WAIT: Duration = Duration::from_secs(60);

/// A client whose node may be isolated claims at another node, and the first request goes on.
#[tokio::test(start_paused = true)]
async fn each_request_of_a_holder_waits_for_its_own_time() {
    let (cluster, leader, [follower, _]) = start().await;
    let node = cluster.node(leader);
    let holder = lease(&manager(node));
    holder.acquire(Wait::No).await.expect("free");
    for is_long_first in [true, false] {
        let began = Instant::now();
        let waits = if is_long_first { [LONG_WAIT, SHORT_WAIT] } else { [SHORT_WAIT, LONG_WAIT] };
        let first = wait_at(&cluster, follower, waits[0]);
        until_waiters(node, 1).await;
        let second = wait_at(&cluster, leader, waits[1]);
        let (long, short) = if is_long_first { (first, second) } else { (second, first) };
        let ended = tokio::time::timeout(SHORT_WAIT + SOON, short).await.expect("it ends in time").expect("no panic");
        assert_eq!(ended, Ok(Answer::WaitTimeout), "long first: {is_long_first}");
        assert!(began.elapsed() >= SHORT_WAIT, "{:?}", began.elapsed());
        tokio::time::sleep(SOON).await;
        assert!(!long.is_finished(), "long first: {is_long_first}");
        assert_eq!(queue(node).await, ["waits"], "long first: {is_long_first}");
        long.abort();
        until_waiters(node, 0).await;
    }
    cluster.shutdown().await;
}

/// The client of the longer request leaves first.
#[tokio::test(start_paused = true)]
async fn last_request_of_a_holder_ends_its_wait_at_its_own_time() {
    let (cluster, leader, [follower, _]) = start().await;
    let node = cluster.node(leader);
    let holder = lease(&manager(node));
    holder.acquire(Wait::No).await.expect("free");
    let began = Instant::now();
    let (long, short) = (wait_at(&cluster, follower, LONG_WAIT), wait_at(&cluster, leader, SHORT_WAIT));
    until_waiters(node, 1).await;
    tokio::time::sleep(SHORT_WAIT / 2).await;
    long.abort();
    let ended = tokio::time::timeout(SHORT_WAIT + SOON, short).await.expect("it ends in time").expect("no panic");
    assert_eq!(ended, Ok(Answer::WaitTimeout));
    assert!(began.elapsed() >= SHORT_WAIT, "{:?}", began.elapsed());
    assert_eq!(queue(node).await, [] as [&str; 0]);
    cluster.shutdown().await;
}

/// Waits until 20 ms before the end of a short wait. From then on, an entry takes 40 ms.
async fn slow_entries_at_the_end(cluster: &Cluster, leader: NodeId, others: [NodeId; 2], began: Instant) {
    const ENTRY: Duration = Duration::from_millis(40);
    tokio::time::sleep_until(began + SHORT_WAIT - ENTRY / 2).await;
    others.into_iter().for_each(|other| cluster.board.delay(leader, other, ENTRY));
}

/// The claim of the second request is on the way at the end of the first wait, and the log refuses it.
#[tokio::test(start_paused = true)]
async fn refused_claim_hides_no_grant_from_an_earlier_request() {
    let (cluster, leader, others) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    let began = Instant::now();
    let first = wait_at(&cluster, leader, SHORT_WAIT);
    until_waiters(&node, 1).await;
    slow_entries_at_the_end(&cluster, leader, others, began).await;
    let released = tokio::spawn(async move { holder.release().await });
    tokio::time::sleep(Duration::from_millis(5)).await;
    let Request::Acquire(claim) = claim_of("waits") else { unreachable!("it is a claim") };
    let (inner, claim) = (node.inner.clone(), Request::Acquire(Acquire { limit: 2, ..claim }));
    let mut second = Box::pin(async move { inner.execute_as_leader(&Caller::Program, claim).await });
    assert!(second.as_mut().now_or_never().is_none(), "its claim is on the way");
    let granted = tokio::time::timeout(SOON, first).await.expect("it ends in time").expect("no panic");
    assert!(matches!(granted, Ok(Answer::Outcome(Outcome::Held { .. }))), "{granted:?}");
    assert!(began.elapsed() > SHORT_WAIT, "the grant came before the end of the wait");
    let refused = second.await.map(|response| response.answer);
    assert_eq!(refused, Ok(Answer::Outcome(Outcome::Refused(Refusal::LimitDiffers { limit: 1 }))));
    released.await.expect("no panic").expect("released");
    cluster.shutdown().await;
}

/// The claim of the second request is on the way at the end of the first wait, and is queued then.
#[tokio::test(start_paused = true)]
async fn wait_ends_when_the_claim_of_another_request_is_queued() {
    let (cluster, leader, others) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    let began = Instant::now();
    let first = wait_at(&cluster, leader, SHORT_WAIT);
    until_waiters(&node, 1).await;
    slow_entries_at_the_end(&cluster, leader, others, began).await;
    let second = wait_at(&cluster, leader, LONG_WAIT);
    let ended = tokio::time::timeout(SOON, first).await.expect("it ends in time").expect("no panic");
    assert_eq!(ended, Ok(Answer::WaitTimeout));
    assert!(began.elapsed() > SHORT_WAIT, "{:?}", began.elapsed());
    assert!(!second.is_finished());
    assert_eq!(queue(&node).await, ["waits"]);
    second.abort();
    cluster.shutdown().await;
}

/// The longest request has left. A third one is on the way at the end of the second wait, and the log refuses it.
#[tokio::test(start_paused = true)]
async fn wait_ends_when_the_claim_of_another_request_is_refused() {
    let (cluster, leader, others) = start().await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    let began = Instant::now();
    let (long, short) = (wait_at(&cluster, leader, LONG_WAIT), wait_at(&cluster, leader, SHORT_WAIT));
    until_waiters(&node, 1).await;
    tokio::time::sleep(SHORT_WAIT / 2).await;
    long.abort();
    slow_entries_at_the_end(&cluster, leader, others, began).await;
    let Request::Acquire(claim) = claim_of("waits") else { unreachable!("it is a claim") };
    let (inner, claim) = (node.inner.clone(), Request::Acquire(Acquire { limit: 2, ..claim }));
    let refused = tokio::spawn(async move { inner.execute_as_leader(&Caller::Program, claim).await });
    let ended = tokio::time::timeout(SOON, short).await.expect("it ends in time").expect("no panic");
    assert_eq!(ended, Ok(Answer::WaitTimeout));
    assert!(began.elapsed() > SHORT_WAIT, "{:?}", began.elapsed());
    let refused = refused.await.expect("no panic").map(|response| response.answer);
    assert_eq!(refused, Ok(Answer::Outcome(Outcome::Refused(Refusal::LimitDiffers { limit: 1 }))));
    assert_eq!(queue(&node).await, [] as [&str; 0]);
    cluster.shutdown().await;
}
