//! The work of a guard during a hand-over of its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure::api::Code;
use tenure::client::{CallError, HoldState, Lease, Loss, Wait};
use tenure::election::{Election, ElectionOptions, ResignError};

use tokio::sync::watch;

use crate::link::{Link, TTL, Withheld};
use crate::world::{LONG, until, wait_in_queue};

/// The answer to each hand-over waits.
fn withheld() -> Withheld {
    Withheld { hand_overs: true, ..Withheld::default() }
}

fn is_no_such_waiter(error: &CallError) -> bool {
    matches!(error, CallError::Refused(problem) if problem.code == Code::NoSuchWaiter)
}

/// Another holder may have the lease until the answer.
#[tokio::test]
async fn work_pauses_during_a_hand_over_and_goes_on_after_a_refusal() {
    let link = Link::new();
    let guard = Arc::new(link.lease().guard(Wait::No).await.expect("the lease is free"));
    let steps = Arc::new(AtomicUsize::new(0));
    let (counted, holds) = (steps.clone(), guard.clone());
    // In a task of its own, so that only the refusal wakes it.
    let work = tokio::spawn(async move {
        let endless = async {
            loop {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        };
        holds.while_held::<()>(endless).await
    });
    until("the work runs", || steps.load(Ordering::SeqCst) > 0).await;
    link.withheld.send_replace(withheld());
    let lease = Lease::clone(&guard);
    let handing_over = tokio::spawn(async move { lease.hand_over(None).await });
    until("the request is sent", || !guard.is_held()).await;
    let before = steps.load(Ordering::SeqCst);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(steps.load(Ordering::SeqCst), before, "the work ran during the hand-over");
    link.withheld.send_replace(Withheld::default());
    let refused = handing_over.await.expect("no panic").expect_err("the queue is empty");
    assert!(is_no_such_waiter(&refused), "{refused}");
    until("the work goes on", || steps.load(Ordering::SeqCst) > before).await;
    assert!(guard.is_held() && !work.is_finished());
    work.abort();
}

/// The leadership is paused until the answer to the first hand-over, which is refused.
#[tokio::test(start_paused = true)]
async fn leader_hands_over_after_a_refused_hand_over() {
    let link = Link::new();
    let election = Election::new(&link.manager(), "job", ElectionOptions::new().ttl(TTL)).expect("valid options");
    let leadership = election.campaign().await.expect("elected");
    link.withheld.send_replace(withheld());
    let first = leadership.hand_over(None);
    let second = async {
        until("the request is sent", || !leadership.is_leader()).await;
        let mut second = std::pin::pin!(leadership.hand_over(None));
        let early = tokio::time::timeout(LONG, &mut second).await;
        assert!(early.is_err(), "before the answer to the first hand-over: {early:?}");
        link.withheld.send_replace(Withheld::default());
        second.await
    };
    let (first, second) = tokio::join!(first, second);
    for refused in [first, second] {
        let is_refused = matches!(&refused, Err(ResignError::Call(error)) if is_no_such_waiter(error));
        assert!(is_refused, "the queue is empty: {refused:?}");
    }
    assert!(leadership.is_leader());
}

/// The work asks for a release, which waits for the end of the hand-over.
#[tokio::test]
async fn dropped_hand_over_ends_the_work() {
    let link = Link::new();
    let guard = Arc::new(link.lease().guard(Wait::No).await.expect("the lease is free"));
    link.withheld.send_replace(withheld());
    let (end, ended) = watch::channel(false);
    let drain = guard.before_release(move || {
        let mut ended = ended.clone();
        async move { drop(ended.wait_for(|is_over| *is_over).await.map(drop)) }
    });
    let (lease, holds) = (Lease::clone(&guard), guard.clone());
    let handing_over = tokio::spawn(async move { lease.hand_over(None).await });
    until("the listener runs", || end.receiver_count() > 1).await;
    let work = tokio::spawn(async move { holds.while_held(holds.release()).await });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    end.send_replace(true);
    until("the request is sent", || !guard.is_held()).await;
    handing_over.abort();
    let lost = tokio::time::timeout(LONG, work).await.expect("the work ends").expect("no panic");
    assert_eq!(lost, Err(Loss::Released));
    assert_eq!(guard.release().await, Ok(true));
    link.lease().acquire(Wait::No).await.expect("it was released");
    drop(drain);
}

#[tokio::test]
async fn work_that_hands_its_own_lease_over_gets_the_refusal() {
    let link = Link::new();
    let lease = link.lease();
    link.withheld.send_replace(withheld());
    let answers = {
        let (link, lease) = (link.clone(), lease.clone());
        tokio::spawn(async move {
            until("the request is sent", || lease.state() != HoldState::Idle && !lease.is_held()).await;
            link.withheld.send_replace(Withheld::default());
        })
    };
    let worked = lease.with(Wait::No, |lease| async move {
        let refused = lease.hand_over(None).await;
        (refused, lease.is_held())
    });
    let worked = tokio::time::timeout(LONG, worked).await.expect("the refusal wakes the work");
    let (refused, is_held) = worked.expect("the lease is held to the end of the work");
    assert!(is_no_such_waiter(&refused.expect_err("the queue is empty")) && is_held);
    answers.await.expect("no panic");
}

#[tokio::test]
async fn work_that_hands_its_own_lease_over_ends() {
    let link = Link::new();
    let (lease, next) = (link.lease(), link.lease());
    let guard = lease.guard(Wait::No).await.expect("the lease is free");
    let waiting = wait_in_queue(&link.cluster, &next, TTL).await;
    link.withheld.send_replace(withheld());
    let answers = {
        let link = link.clone();
        tokio::spawn(async move {
            waiting.await.expect("no panic").expect("the cluster has handed the lease over");
            link.withheld.send_replace(Withheld::default());
        })
    };
    let worked = guard.while_held(async { lease.hand_over(None).await }).await;
    assert_eq!(worked, Err(Loss::Released), "another holder has the lease");
    assert!(!lease.is_held() && next.is_held());
    answers.await.expect("no panic");
}
