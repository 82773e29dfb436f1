//! Counted leases: an entry grants a name once, so the leader postpones further claims and hand-overs of the entry.

use futures_util::future::{BoxFuture, join_all};

use super::*;
use crate::lease::HolderLease;

type Answered = Result<Answer, ProposeError>;

/// Three nodes, and the leader of them. An entry takes as long as a message of the leader.
async fn slow(entry: Duration) -> (Cluster, TestNode) {
    let (cluster, leader, others) = start().await;
    let node = cluster.node(leader).clone();
    node.request(Request::Change(Command::Tick), Forward::Once).await.expect("it leads");
    others.into_iter().for_each(|other| cluster.board.delay(leader, other, entry));
    (cluster, node)
}

fn execute(node: &TestNode, request: Request) -> BoxFuture<'static, Answered> {
    let inner = node.inner.clone();
    let answered = async move { inner.execute_as_leader(&Caller::Program, request).await };
    answered.map(|executed| executed.map(|response| response.answer)).boxed()
}

fn counted(by: &str, limit: u32, wait_ms: Option<u64>) -> Request {
    let Request::Acquire(claim) = claim_of(by) else { unreachable!("it is a claim") };
    Request::Acquire(Acquire { limit, wait_ms, ..claim })
}

fn held(answered: Answered) -> HolderLease {
    match answered {
        Ok(Answer::Outcome(Outcome::Held { lease, .. })) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

/// Sends a request, so that the next entry has it.
fn send(node: &TestNode, request: Request) -> BoxFuture<'static, Answered> {
    let mut sent = execute(node, request);
    assert!(sent.as_mut().now_or_never().is_none(), "its entry takes longer");
    sent
}

fn revoke() -> Request {
    let name = LeaseName::new("job").expect("valid");
    Request::Change(Command::Revoke { name, reason: String::new() })
}

/// Two claims share an entry, which grants one of them. The third claim comes while the entry is in flight.
#[tokio::test(start_paused = true)]
async fn later_claim_of_a_counted_lease_does_not_overtake_a_postponed_one() {
    const ENTRY: Duration = Duration::from_millis(40);
    let (cluster, node) = slow(ENTRY).await;
    let claim = |by| send(&node, counted(by, 2, None));
    let (first, second) = (claim("first"), claim("second"));
    tokio::time::sleep(ENTRY / 4).await;
    let third = claim("third");
    let answers = join_all([first, second, third]).await;
    let [first, second, third] = answers.try_into().expect("three answers");
    assert!(held(first).token < held(second).token);
    assert!(matches!(third, Ok(Answer::Outcome(Outcome::Refused(Refusal::Held { .. })))), "{third:?}");
    cluster.shutdown().await;
}

/// A claim, a revoke and a claim share an entry. The revoke frees the lease, but the entry has granted it already.
#[tokio::test(start_paused = true)]
async fn later_claim_does_not_overtake_a_claim_that_is_postponed_after_a_revoke() {
    const ENTRY: Duration = Duration::from_millis(40);
    let (cluster, node) = slow(ENTRY).await;
    let (first, revoked) = (send(&node, counted("a", 1, None)), send(&node, revoke()));
    let second = send(&node, counted("b", 1, None));
    tokio::time::sleep(ENTRY / 4).await;
    let third = send(&node, counted("c", 1, None));
    let answers = join_all([first, revoked, second, third]).await;
    let [first, revoked, second, third] = answers.try_into().expect("four answers");
    assert_eq!(revoked, Ok(Answer::Outcome(Outcome::Revoked(1))));
    assert!(held(first).token < held(second).token);
    assert!(matches!(third, Ok(Answer::Outcome(Outcome::Refused(Refusal::Held { .. })))), "{third:?}");
    cluster.shutdown().await;
}

/// Three claims share an entry, which grants the first one. The third claim would get the second slot from the queue.
#[tokio::test(start_paused = true)]
async fn claim_with_a_wait_does_not_overtake_a_postponed_claim_of_its_entry() {
    let (cluster, node) = slow(Duration::from_millis(40)).await;
    let (first, second) = (send(&node, counted("first", 2, None)), send(&node, counted("second", 2, None)));
    let third = tokio::spawn(send(&node, counted("third", 2, Some(60_000))));
    let answers = join_all([first, second]).await;
    let [first, second] = answers.try_into().expect("two answers");
    assert!(held(first).token < held(second).token);
    until_waiters(&node, 1).await;
    assert_eq!(queue(&node).await, ["third"]);
    assert!(!third.is_finished(), "both slots are taken");
    cluster.shutdown().await;
}

/// The entry of the four commands grants the lease once, and the revoke frees it again.
#[tokio::test(start_paused = true)]
async fn claim_with_a_wait_does_not_overtake_a_claim_postponed_after_a_revoke() {
    let (cluster, node) = slow(Duration::from_millis(40)).await;
    let (first, revoked) = (send(&node, counted("a", 1, None)), send(&node, revoke()));
    let second = send(&node, counted("b", 1, None));
    let third = tokio::spawn(send(&node, counted("c", 1, Some(60_000))));
    let answers = join_all([first, revoked, second]).await;
    let [first, revoked, second] = answers.try_into().expect("three answers");
    assert_eq!(revoked, Ok(Answer::Outcome(Outcome::Revoked(1))));
    assert!(held(first).token < held(second).token);
    until_waiters(&node, 1).await;
    assert_eq!(queue(&node).await, ["c"]);
    assert!(!third.is_finished(), "the second claim has the lease");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn hand_overs_of_a_counted_lease_in_one_entry_both_succeed() {
    let (cluster, node) = slow(Duration::from_millis(40)).await;
    let holders = join_all(["a", "b"].map(|by| execute(&node, counted(by, 2, None)))).await;
    let mut waiting = Vec::new();
    for (place, by) in ["c", "d"].into_iter().enumerate() {
        waiting.push(tokio::spawn(execute(&node, counted(by, 2, Some(60_000)))));
        until_waiters(&node, place + 1).await;
    }
    let handed = holders.into_iter().map(|holder| {
        let HolderLease { name, holder, token, .. } = held(holder);
        let mut handed = execute(&node, Request::Change(Command::HandOver { name, holder, token, to: None }));
        assert!(handed.as_mut().now_or_never().is_none(), "its entry takes longer");
        handed
    });
    let handed: Vec<_> = handed.collect();
    for (answered, waits) in join_all(handed).await.into_iter().zip(waiting) {
        let Ok(Answer::Outcome(Outcome::HandedOver(lease))) = answered else { panic!("{answered:?}") };
        let granted = held(waits.await.expect("no panic"));
        assert_eq!((granted.holder, granted.token), (lease.holder, lease.token));
    }
    cluster.shutdown().await;
}

/// Each entry grants one of the claims.
#[tokio::test(start_paused = true)]
async fn postponed_claim_is_refused_after_a_wait_of_800_ms() {
    let (cluster, node) = slow(Duration::from_millis(80)).await;
    let began = Instant::now();
    let claims = (0..20).map(|number| {
        let claim = execute(&node, counted(&format!("holder-{number}"), 1_000, None));
        claim.map(move |answered| (answered, began.elapsed()))
    });
    let (granted, refused): (Vec<_>, Vec<_>) = join_all(claims).await.into_iter().partition(|(one, _)| one.is_ok());
    assert!(granted.len() > 1, "the claims are in one entry: {refused:?}");
    assert!(!refused.is_empty(), "each claim waited for an entry of its own: {granted:?}");
    for (answered, took) in refused {
        assert_eq!(answered, Err(ProposeError::Refused(RequestError::Busy)));
        assert!((Duration::from_millis(800)..Duration::from_millis(1_500)).contains(&took), "{took:?}");
    }
    cluster.shutdown().await;
}
