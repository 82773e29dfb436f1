//! Acquiring: true, false or unknown, and never a surprise.

use std::time::Duration;

use tenure::api::{Acquire, Code, TtlMs};
use tenure::client::{AcquireOptions, CallError, HoldState, ManagerOptions, Wait};
use tenure::testing::Line;
use tenure::types::HolderId;
use tokio::time::Instant;

use crate::steady::safety;
use crate::world::{LONG, OPERATION, TTL, World, over_both_ways, short, until};

over_both_ways!(
    a_handle_acquires_nothing,
    acquire_is_held_or_refused_at_once_with_who_and_until_when,
    acquire_again_is_the_same_grant,
    all_handles_of_a_name_are_one_lease,
    an_acquire_without_an_answer_is_unknown_and_not_held,
    an_acquire_that_is_given_up_leaves_nothing_held,
    acquire_dropped_on_its_way_leaves_nothing_held,
    without_a_cluster_acquire_ends_within_its_timeout,
    wait_up_to_ends_with_the_wait,
    wait_for_ttl_outlasts_a_holder_that_died,
    waiters_get_it_first_come_first_served,
    a_grant_that_was_waited_for_has_its_whole_time,
    a_claim_with_a_shorter_ttl_does_not_begin_the_longer_one_anew,
    retries_come_after_their_delay,
    retries_wait_for_what_is_left_of_the_wait,
    should_hold_refuses_without_asking,
    two_concurrent_acquires_have_one_holder,
);

pub fn code(error: &CallError) -> Option<Code> {
    match error {
        CallError::Refused(problem) => Some(problem.code),
        _ => None,
    }
}

async fn a_handle_acquires_nothing(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short()).expect("a name");
    assert_eq!((lease.is_held(), lease.should_hold(), lease.remaining()), (false, true, None));
    assert_eq!((lease.state(), lease.token()), (HoldState::Idle, None));
    assert_eq!(lease.check().await, Ok(false));
    assert!(lease.gone().is_cancelled(), "there is nothing to work under");
    let taken = other.manager.lease("job").expect("a name").acquire(Wait::No).await;
    assert!(taken.is_ok(), "it was free: {taken:?}");
}

async fn acquire_is_held_or_refused_at_once_with_who_and_until_when(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short()).expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    assert!(lease.is_held() && lease.remaining().is_some_and(|left| left < TTL));
    assert_eq!(lease.token(), Some(token));
    assert_eq!(lease.check().await, Ok(true));
    let refused = other.manager.lease("job").expect("a name").acquire(Wait::No).await.expect_err("it is held");
    let CallError::Refused(problem) = refused else { panic!("{refused:?}") };
    assert_eq!(problem.code, Code::Held);
    assert_eq!(problem.holder.as_deref(), Some(one.manager.holder().as_str()));
    assert_eq!(problem.token, Some(token));
    assert!(problem.since.is_some() && problem.retry_after_ms.is_some_and(|ms| ms <= TTL.as_millis() as u64));
    assert!(other.manager.try_acquire("job").await.expect("an answer").is_none());
}

async fn acquire_again_is_the_same_grant(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!(lease.acquire(Wait::No).await, Ok(token));
    let history = world.remote().history(lease.name()).await.expect("an answer").transitions;
    assert_eq!(history.len(), 1, "one grant: {history:?}");
}

async fn all_handles_of_a_name_are_one_lease(world: &World) {
    let holder = world.holder();
    let (one, other) = (holder.manager.lease("job").expect("a name"), holder.manager.lease("job").expect("a name"));
    let token = one.acquire(Wait::No).await.expect("it is free");
    assert!(other.is_held());
    assert_eq!(holder.manager.clone().lease("job").expect("a name").token(), Some(token));
    assert_eq!(other.release().await, Ok(true));
    assert!(!one.is_held());
}

async fn an_acquire_without_an_answer_is_unknown_and_not_held(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease("job").expect("a name");
    one.switch.set(Line::Deaf);
    let unknown = lease.acquire(Wait::No).await.expect_err("no answer arrives");
    assert!(matches!(unknown, CallError::Unknown { .. }), "{unknown:?}");
    assert!(!lease.is_held());
    assert_eq!(lease.state(), HoldState::Idle);
    let refused = other.manager.lease("job").expect("a name").acquire(Wait::No).await.expect_err("it was granted");
    let CallError::Refused(problem) = refused else { panic!("{refused:?}") };
    one.switch.set(Line::Up);
    assert_eq!(lease.acquire(Wait::No).await.ok(), problem.token, "sent again, it is the same grant");
    assert_eq!(lease.release().await, Ok(true));
    // And without sending it again: a release finds what the doubt was about.
    one.switch.set(Line::Deaf);
    assert!(lease.acquire(Wait::No).await.is_err());
    one.switch.set(Line::Up);
    assert_eq!(lease.release().await, Ok(true));
    assert!(other.manager.lease("job").expect("a name").acquire(Wait::No).await.is_ok());
}

async fn an_acquire_that_is_given_up_leaves_nothing_held(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let held = other.manager.lease("job").expect("a name");
    held.acquire(Wait::No).await.expect("it is free");
    let lease = one.manager.lease("job").expect("a name");
    let waiting = tokio::time::timeout(Duration::from_millis(300), lease.acquire(Wait::UpTo(LONG))).await;
    assert!(waiting.is_err(), "it is held by another");
    assert_eq!(held.release().await, Ok(true));
    let third = world.holder();
    let begun = Instant::now();
    third.manager.lease("job").expect("a name").acquire(Wait::UpTo(LONG)).await.expect("nobody holds it");
    assert!(begun.elapsed() < Duration::from_secs(5), "long before the default ttl: {:?}", begun.elapsed());
    assert!(!lease.is_held());
}

/// The claim can reach the cluster after its caller has given up. The manager must not take the lease for free before that.
async fn acquire_dropped_on_its_way_leaves_nothing_held(world: &World) {
    const DROPS: u32 = 30;
    let (one, other) = (world.holder(), world.holder());
    for drop in 0..DROPS {
        let (name, wait) = (format!("job-{drop}"), [Wait::No, Wait::UpTo(LONG)][drop as usize % 2]);
        let lease = one.manager.lease(&name).expect("a name");
        // `0`: the claim is sent, and nothing more.
        let given_up = tokio::time::timeout(Duration::from_micros(300) * drop, lease.acquire(wait)).await;
        if given_up.is_ok() {
            lease.release().await.expect("an answer");
        }
        let next = other.manager.lease(&name).expect("a name");
        let granted = next.acquire(Wait::UpTo(Duration::from_secs(5))).await;
        assert!(granted.is_ok(), "long before the default ttl, drop {drop}: {granted:?}");
    }
}

async fn without_a_cluster_acquire_ends_within_its_timeout(world: &World) {
    let holder = world.holder();
    holder.switch.set(Line::Cut);
    let begun = Instant::now();
    let ended = holder.manager.lease("job").expect("a name").acquire(Wait::No).await;
    assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
    assert!(begun.elapsed() < OPERATION + Duration::from_secs(1), "{:?}", begun.elapsed());
}

async fn wait_up_to_ends_with_the_wait(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    one.manager.lease("job").expect("a name").acquire(Wait::No).await.expect("it is free");
    let begun = Instant::now();
    let wait = Duration::from_millis(400);
    let refused = other.manager.lease("job").expect("a name").acquire(Wait::UpTo(wait)).await.expect_err("it is held");
    assert_eq!(code(&refused), Some(Code::WaitTimeout), "{refused:?}");
    assert!((wait..wait + OPERATION).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn wait_for_ttl_outlasts_a_holder_that_died(world: &World) {
    let (dead, other) = (world.holder(), world.holder());
    let before = dead.manager.lease_with("job", short()).expect("a name").acquire(Wait::No).await.expect("it is free");
    dead.switch.set(Line::Cut);
    let lease = other.manager.lease_with("job", short().ttl(TTL * 2)).expect("a name");
    let token = lease.acquire(Wait::ForTtl).await.expect("the other one cannot renew");
    assert!(token > before);
}

async fn waiters_get_it_first_come_first_served(world: &World) {
    let first = world.holder();
    let held = first.manager.lease("job").expect("a name");
    held.acquire(Wait::No).await.expect("it is free");
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = Vec::new();
    for number in 0..3 {
        let holder = world.holder();
        let sender = sender.clone();
        waiting.push(tokio::spawn(async move {
            let lease = holder.manager.lease("job").expect("a name");
            lease.acquire(Wait::UpTo(LONG)).await.expect("its turn comes");
            sender.send(number).expect("somebody counts");
            lease.release().await.expect("an answer");
        }));
        let queued = world.remote();
        let name = held.name().clone();
        for _ in 0.. {
            if queued.queue(&name).await.expect("an answer").waiters.len() == number + 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    held.release().await.expect("an answer");
    for task in waiting {
        task.await.expect("it ends well");
    }
    assert_eq!([order.recv().await, order.recv().await, order.recv().await], [Some(0), Some(1), Some(2)]);
}

/// Its time would be over before the answer came, if it were counted from the request.
async fn a_grant_that_was_waited_for_has_its_whole_time(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let held = one.manager.lease("job").expect("a name");
    held.acquire(Wait::No).await.expect("it is free");
    let lease = other.manager.lease_with("job", short()).expect("a name");
    let waiter = lease.clone();
    let waiting = tokio::spawn(async move { waiter.acquire(Wait::UpTo(LONG)).await });
    tokio::time::sleep(TTL * 2).await;
    held.release().await.expect("an answer");
    waiting.await.expect("it ends").expect("its turn comes");
    assert!(lease.remaining().is_some_and(|left| left > TTL / 2), "{:?}", lease.remaining());
    tokio::time::sleep(TTL * 2).await;
    assert!(lease.is_held(), "and it is renewed: {:?}", lease.state());
}

/// The cluster takes no time away, and gives none: whoever took the ttl in its answer for the time left would believe in
/// the lease for longer than the cluster does.
async fn a_claim_with_a_shorter_ttl_does_not_begin_the_longer_one_anew(world: &World) {
    let holder = world.holder_with(ManagerOptions::new().holder(HolderId::new("the-same").expect("valid")));
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let long = Duration::from_secs(3);
    let before = Acquire {
        ttl_ms: Some(TtlMs::Millis(long.as_millis() as u64)),
        ..Acquire::new(HolderId::new("the-same").expect("valid"))
    };
    world.remote().acquire(lease.name(), &before).await.expect("it is free");
    tokio::time::sleep(long / 2).await;
    lease.acquire(Wait::No).await.expect("its own");
    let (asked, left) = (Instant::now(), lease.remaining().expect("it is held"));
    let shown = world.remote().get(lease.name()).await.expect("an answer").expires_in_ms.expect("it is finite");
    let ends = Duration::from_millis(shown) + asked.elapsed();
    assert!(left <= ends, "the holder believes in it for {left:?}, and it expires in {ends:?} at most");
    tokio::time::sleep(long).await;
    assert_eq!((lease.is_held(), lease.check().await), (true, Ok(true)), "and it is renewed");
}

async fn retries_come_after_their_delay(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let held = one.manager.lease("job").expect("a name");
    held.acquire(Wait::No).await.expect("it is free");
    let delay = Duration::from_millis(150);
    let begun = Instant::now();
    let lease = other.manager.lease("job").expect("a name");
    let refused = lease.acquire(AcquireOptions::new().retries(3, delay)).await.expect_err("it is held");
    assert_eq!(code(&refused), Some(Code::Held));
    assert!(begun.elapsed() >= delay * 3, "{:?}", begun.elapsed());
    let retrying = lease.acquire(AcquireOptions::new().retries(100, delay));
    let (acquired, released) = tokio::join!(retrying, async {
        tokio::time::sleep(delay).await;
        held.release().await
    });
    assert!(acquired.is_ok() && released == Ok(true), "{acquired:?}, {released:?}");
}

async fn retries_wait_for_what_is_left_of_the_wait(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    one.manager.lease("job").expect("a name").acquire(Wait::No).await.expect("it is free");
    let (wait, delay) = (Duration::from_millis(500), Duration::from_millis(10));
    let options = AcquireOptions::new().wait(Wait::UpTo(wait)).retries(3, delay);
    let begun = Instant::now();
    let refused = other.manager.lease("job").expect("a name").acquire(options).await.expect_err("it is held");
    assert_eq!(code(&refused), Some(Code::Held), "the last one does not wait: {refused:?}");
    assert!((wait + delay * 3..wait * 3).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn should_hold_refuses_without_asking(world: &World) {
    let holder = world.holder();
    let options = short().should_hold(|| false);
    let lease = holder.manager.lease_with("job", options).expect("a name");
    holder.switch.set(Line::Cut);
    let begun = Instant::now();
    let refused = lease.acquire(Wait::ForTtl).await.expect_err("another should");
    assert_eq!(code(&refused), Some(Code::ShouldNotHold));
    assert!(!lease.should_hold() && begun.elapsed() < Duration::from_millis(500));
}

async fn two_concurrent_acquires_have_one_holder(world: &World) {
    for round in 0..10 {
        let name = format!("job-{round}");
        let holders: Vec<_> = (0..4).map(|_| world.holder()).collect();
        let claims = holders.iter().map(|holder| {
            let lease = holder.manager.lease(&name).expect("a name");
            async move { lease.acquire(Wait::No).await }
        });
        let ended = futures_util::future::join_all(claims).await;
        let held = ended.iter().filter(|ended| ended.is_ok()).count();
        safety!(held <= 1, "{held} holders: {ended:?}");
        assert_eq!(held, 1, "{ended:?}");
        let refused = ended.iter().filter_map(|ended| ended.as_ref().err());
        assert!(refused.clone().all(|error| code(error) == Some(Code::Held)), "{:?}", refused.collect::<Vec<_>>());
        until("exactly one believes so", || {
            holders.iter().filter(|holder| holder.manager.lease(&name).expect("a name").is_held()).count() == 1
        })
        .await;
    }
}
