//! The fake that users of the library test with.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::api::Code;
use tenure::client::{CallError, HoldState, LeaseOptions, Loss, Wait, WithError};
use tenure::testing::FakeCluster;

use crate::acquiring::code;
use crate::world::{LONG, until};

#[tokio::test]
async fn leases_are_held_by_default() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a name");
    let token = lease.acquire(Wait::No).await.expect("nobody said otherwise");
    assert!(lease.is_held());
    assert_eq!(lease.check().await, Ok(true));
    assert_eq!(lease.release().await, Ok(true));
    assert!(lease.acquire(Wait::No).await.expect("free again") > token);
}

#[tokio::test]
async fn what_is_marked_as_held_elsewhere_is_lost_and_refused_until_it_is_marked_as_held() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let lease = manager.lease("job").expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    cluster.mark_held_elsewhere("job");
    assert!(!lease.is_held());
    let refused = lease.acquire(Wait::No).await.expect_err("elsewhere");
    assert_eq!(code(&refused), Some(Code::Held));
    assert!(manager.acquire_or_none("job").await.expect("an answer").is_none());
    let waiting = tokio::spawn({
        let lease = lease.clone();
        async move { lease.acquire(Wait::UpTo(LONG)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    cluster.mark_held("job");
    assert!(waiting.await.expect("it ends").is_ok());
}

#[tokio::test]
async fn every_reason_of_a_loss_can_be_played() {
    let reasons = [Loss::Expired, Loss::Revoked, Loss::HandedOver, Loss::Unreachable, Loss::Suspended, Loss::Stalled];
    for why in reasons {
        let cluster = FakeCluster::new();
        let lease = cluster.manager().lease("job").expect("a name");
        let told = Arc::new(Mutex::new(Vec::new()));
        let seen = told.clone();
        lease.on_lost(move |why| seen.lock().expect("plain").push(why)).detach();
        let work = lease.with(Wait::No, |_| std::future::pending::<()>());
        let (ended, ()) = tokio::join!(work, async {
            until("it works", || lease.is_held()).await;
            cluster.lose("job", why);
        });
        assert_eq!(ended, Err(WithError::Lost(why)));
        assert!(matches!(lease.state(), HoldState::Lost { why: seen, .. } if seen == why));
        until("it is told", || told.lock().expect("plain").len() == 1).await;
        assert_eq!(*told.lock().expect("plain"), [why]);
    }
}

#[tokio::test]
async fn refusals_and_unknown_outcomes_can_be_played() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a name");
    cluster.refuse("job", Code::QueueFull);
    assert_eq!(code(&lease.acquire(Wait::No).await.expect_err("refused")), Some(Code::QueueFull));
    cluster.unknown("job");
    assert!(matches!(lease.acquire(Wait::No).await, Err(CallError::Unknown { .. })));
    cluster.mark_held("job");
    assert!(lease.acquire(Wait::No).await.is_ok());
    cluster.unknown("job");
    assert!(matches!(lease.release().await, Err(CallError::Unknown { .. })));
    assert!(!lease.is_held());
}

#[tokio::test]
async fn time_passes_when_the_test_says_so() {
    let cluster = FakeCluster::new();
    let ttl = Duration::from_secs(60);
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().ttl(ttl)).expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!(lease.remaining(), Some(ttl * 99 / 100));
    // Renewed meanwhile, it lasts; in one leap, as after a pause, it does not.
    for _ in 0..10 {
        let before = lease.remaining().expect("it is held");
        cluster.clock().advance(ttl * 2 / 5);
        until("it is renewed", || lease.remaining() > Some(before - ttl / 10)).await;
    }
    cluster.clock().advance(ttl);
    assert!(!lease.is_held() && lease.token().is_none() && lease.remaining().is_none(), "known at once");
    until("it is lost", || matches!(lease.state(), HoldState::Lost { why: Loss::Suspended, .. })).await;
}
