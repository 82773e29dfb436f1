//! Late answers: the deadline of a lease counts from the request, not from its answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::api::{Code, Release};
use tenure::client::{
    AcquireOptions, CallError, Coordinator, HoldState, Lease, LeaseOptions, Loss, ManagerOptions, RetryBudget, Wait,
    WithError,
};

use crate::link::{ClaimFate, Fate, Link, TTL, USABLE, Withheld};
use crate::world::{LONG, until, wait_in_queue};

#[tokio::test]
async fn grant_counts_from_its_claim() {
    let (link, delay) = (Link::new(), Duration::from_secs(10));
    let lease = link.lease();
    link.delay_next(delay);
    lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(lease.remaining(), Some(USABLE - delay));
}

#[tokio::test]
async fn grant_older_than_a_third_is_renewed_first() {
    let link = Link::new();
    let lease = link.lease();
    link.delay_next(TTL / 3 + Duration::from_millis(1));
    lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!((lease.remaining(), link.renewals.load(Ordering::SeqCst)), (Some(USABLE), 1));
}

/// The cluster has granted the lease.
#[tokio::test]
async fn grant_whose_first_renewal_fails_is_unknown() {
    let link = Link::new();
    let lease = link.lease();
    link.loses_next_renewal.store(true, Ordering::SeqCst);
    link.delay_next(TTL / 3 + Duration::from_millis(1));
    let unknown = lease.acquire(Wait::No).await.expect_err("its renewal failed");
    assert!(matches!(unknown, CallError::Unknown { .. }), "{unknown}");
    assert!(!lease.is_held());
    assert_eq!(lease.release().await, Ok(true));
    link.lease().acquire(Wait::No).await.expect("it was released");
}

/// The shutdown releases the grant meanwhile, so the cluster refuses the renewal.
#[tokio::test]
async fn shutdown_during_the_first_renewal_ends_the_acquire() {
    let link = Link::new();
    let manager = link.manager();
    let lease = manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a valid name");
    link.delay_next(TTL / 3 + Duration::from_millis(1));
    link.withheld.send_replace(Withheld { renewal_requests: true, ..Withheld::default() });
    let acquiring = tokio::spawn(async move { lease.acquire(Wait::No).await });
    until("the renewal is sent", || !link.sent_renewals.lock().expect("no panic").is_empty()).await;
    let failed = tokio::time::timeout(LONG, manager.shutdown()).await.expect("the shutdown ends");
    assert_eq!(failed, [], "the grant is released");
    link.withheld.send_replace(Withheld::default());
    let ended = tokio::time::timeout(LONG, acquiring).await.expect("the renewal is answered").expect("no panic");
    assert_eq!(ended, Err(CallError::ShutDown));
}

#[tokio::test]
async fn grant_older_than_its_ttl_is_refused_as_lost() {
    let link = Link::new();
    let lease = link.lease();
    link.delay_next(TTL + Duration::from_secs(1));
    let refused = lease.acquire(Wait::No).await.expect_err("the grant has expired");
    assert!(matches!(&refused, CallError::Refused(problem) if problem.code == Code::Lost), "{refused}");
    assert!(!lease.is_held());
}

#[tokio::test]
async fn renewal_counts_from_its_request() {
    let (link, delay) = (Link::new(), Duration::from_secs(15));
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("the lease is free");
    link.delay_next(delay);
    link.cluster.clock().advance(TTL * 2 / 5);
    until("it is renewed", || link.renewals.load(Ordering::SeqCst) > 0 && lease.remaining() > Some(TTL / 2)).await;
    assert_eq!(lease.remaining(), Some(USABLE - delay));
}

#[tokio::test]
async fn late_renewal_does_not_revive_a_lost_lease() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("the lease is free");
    // The cluster renews the lease in time, but its answer arrives after the holder's deadline.
    link.delay_next(TTL * 4 / 5);
    link.cluster.clock().advance(TTL * 2 / 5);
    until("it is renewed", || link.renewals.load(Ordering::SeqCst) > 0).await;
    for _ in 0..100 {
        assert!(!lease.is_held() && lease.token().is_none() && lease.remaining().is_none());
        tokio::task::yield_now().await;
    }
    until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
    assert!(!lease.is_held());
}

/// A waiter that stays in the queue after its claim was dropped would get the lease for a whole ttl.
#[tokio::test]
async fn abandoned_waiter_is_withdrawn() {
    let link = Link::new();
    let (held, lease) = (link.cluster.manager(), link.lease());
    let held = held.lease_with("job", LeaseOptions::new().infinite()).expect("a valid name");
    held.acquire(Wait::No).await.expect("the lease is free");
    let waits = async || link.waits(&lease).await;
    link.ignores_disconnects.store(true, Ordering::SeqCst);
    let claim = tokio::spawn({
        let lease = lease.clone();
        async move { lease.acquire(Wait::UpTo(TTL)).await }
    });
    while !waits().await {
        tokio::task::yield_now().await;
    }
    claim.abort();
    // The manager waits 250 ms, because the node usually withdraws the claim.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(
            (waits().await, link.claims.load(Ordering::SeqCst)),
            (true, 1),
            "the manager withdrew the claim too early"
        );
    }
    let begun = tokio::time::Instant::now();
    while waits().await {
        assert!(begun.elapsed() < LONG, "the claim is still in the queue");
        // All steps together are shorter than the wait of the claim.
        link.cluster.clock().advance(Duration::from_millis(50));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!lease.is_held());
    assert_eq!(held.release().await, Ok(true));
}

/// The rights of the client change while its claim waits. It has not left the queue then.
#[tokio::test]
async fn withdrawal_that_is_refused_is_repeated() {
    let link = Link::new();
    let (held, lease) = (link.cluster.manager(), link.lease());
    let held = held.lease_with("job", LeaseOptions::new().infinite()).expect("a valid name");
    held.acquire(Wait::No).await.expect("the lease is free");
    link.ignores_disconnects.store(true, Ordering::SeqCst);
    let claim = tokio::spawn({
        let lease = lease.clone();
        async move { lease.acquire(Wait::UpTo(TTL)).await }
    });
    until("it waits", || link.claims.load(Ordering::SeqCst) == 1).await;
    while !link.waits(&lease).await {
        tokio::task::yield_now().await;
    }
    link.failing_claims.lock().expect("no panic").extend([ClaimFate::Forbidden; 2]);
    claim.abort();
    let begun = tokio::time::Instant::now();
    while link.claims.load(Ordering::SeqCst) < 2 {
        assert!(begun.elapsed() < LONG, "no withdrawal");
        link.cluster.clock().advance(Duration::from_millis(50));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let release = tokio::spawn({
        let lease = lease.clone();
        async move { lease.release().await }
    });
    while link.claims.load(Ordering::SeqCst) < 3 {
        assert!(begun.elapsed() < LONG, "the release sends no withdrawal");
        link.cluster.clock().advance(Duration::from_millis(50));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = release.await.expect("no panic").expect_err("the withdrawal is refused");
    assert!(matches!(&refused, CallError::Refused(problem) if problem.code == Code::Forbidden), "{refused}");
    assert!(link.waits(&lease).await, "it is still in the queue");
}

#[tokio::test]
async fn history_resolves_a_release_without_answer() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("the lease is free");
    link.lose_next_release(Fate::CarriedOut);
    assert_eq!(lease.release().await, Ok(true), "the cluster applied the release");
    lease.acquire(Wait::No).await.expect("the lease is free");
    link.lose_next_release(Fate::NotCarriedOut);
    let unknown = lease.release().await.expect_err("the cluster still counts it as held");
    assert!(matches!(unknown, CallError::Unknown { .. }), "{unknown}");
    assert_eq!(lease.release().await, Ok(true), "the retry releases the same token");
    assert_eq!(lease.release().await, Ok(false), "the lease is not held");
    assert_eq!(link.releases.load(Ordering::SeqCst), 3, "nothing was sent for the last one");
    for fate in [Fate::Revoked, Fate::GrantedAnew] {
        lease.acquire(Wait::No).await.expect("the lease is free");
        link.lose_next_release(fate);
        assert_eq!(lease.release().await, Ok(false), "{fate:?}: this grant is over, and more is not known");
    }
}

/// The manager releases the token of the old grant once, before the next claim.
#[tokio::test]
async fn unreleased_token_is_released_once() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("the lease is free");
    link.lose_next_release(Fate::NotCarriedOut);
    assert!(lease.release().await.is_err());
    lease.acquire(Wait::No).await.expect("the old token is released first");
    assert_eq!(link.releases.load(Ordering::SeqCst), 2);
    assert_eq!(lease.release().await, Ok(true));
    lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(link.releases.load(Ordering::SeqCst), 3);
}

/// The cluster has ended the other grants already.
#[tokio::test]
async fn guard_gives_back_only_grants_lost_by_its_own_clock() {
    for (why, sent) in [(Loss::Stalled, 1), (Loss::Revoked, 0)] {
        let link = Link::new();
        let guard = link.lease().guard(Wait::No).await.expect("the lease is free");
        link.cluster.lose("job", why);
        assert_eq!(guard.release().await, Ok(false), "{why:?}");
        drop(guard);
        let begun = link.claims.load(Ordering::SeqCst);
        // The manager gives it back in a task. It has no other work.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!((begun, link.releases.load(Ordering::SeqCst)), (1, sent), "{why:?}");
    }
}

/// One request renews every lease of this holder that is due within a sixth of its ttl.
#[tokio::test]
async fn renewal_takes_along_what_is_due_soon_and_nothing_else() {
    let link = Link::new();
    let manager = link.manager();
    let lease = |name: &str| manager.lease_with(name, LeaseOptions::new().ttl(TTL)).expect("a name");
    let [first, soon, later] = [lease("first"), lease("soon"), lease("later")];
    let advance = |seconds| link.cluster.clock().advance(Duration::from_secs(seconds));
    first.acquire(Wait::No).await.expect("the lease is free");
    advance(4);
    soon.acquire(Wait::No).await.expect("the lease is free");
    advance(13);
    later.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(link.renewals.load(Ordering::SeqCst), 0);
    // A renewal is due after 18 to 22 seconds.
    advance(5);
    until("the first is renewed", || first.remaining() == Some(USABLE)).await;
    assert_eq!((soon.remaining(), link.renewals.load(Ordering::SeqCst)), (Some(USABLE), 1));
    assert_eq!(later.remaining(), Some(USABLE - Duration::from_secs(5)));
}

#[tokio::test]
async fn renewal_without_a_result_has_failed() {
    let link = Link::new();
    let lease = link.lease();
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    link.empties_next.store(true, Ordering::SeqCst);
    link.cluster.clock().advance(TTL * 2 / 5);
    until("the renewal fails", || matches!(lease.state(), HoldState::AtRisk { .. })).await;
    link.cluster.clock().advance(TTL / 10);
    until("it is renewed", || lease.remaining() == Some(USABLE)).await;
    assert_eq!(lease.token(), Some(token));
}

#[tokio::test]
async fn acquire_is_retried_as_often_as_asked_for() {
    let link = Link::new();
    link.cluster.mark_held_elsewhere("job");
    for retries in [0, 1, 3] {
        let options = AcquireOptions::new().retries(retries, Duration::from_millis(1));
        for way in ["acquire", "guard", "with"] {
            let (before, lease) = (link.claims.load(Ordering::SeqCst), link.lease());
            let acquired = async {
                match way {
                    "acquire" => lease.acquire(options).await.map(drop).map_err(WithError::from),
                    "guard" => lease.guard(options).await.map(drop).map_err(WithError::from),
                    _ => lease.with(options, async |_| {}).await,
                }
            };
            let ended = tokio::time::timeout(TTL / 3, acquired).await;
            assert!(matches!(ended, Ok(Err(WithError::NotAcquired(CallError::Refused(_))))), "{way}: {ended:?}");
            assert_eq!(link.claims.load(Ordering::SeqCst) - before, retries as usize + 1, "{way}");
        }
    }
}

#[tokio::test]
async fn lease_is_held_until_its_deadline_and_no_longer() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("the lease is free");
    let (ended, stopping, nanosecond) = (lease.ended(), lease.stopping(), Duration::from_nanos(1));
    link.cluster.clock().advance(USABLE - nanosecond);
    assert_eq!((lease.is_held(), lease.remaining()), (true, Some(nanosecond)));
    link.cluster.clock().advance(nanosecond);
    assert_eq!((lease.is_held(), lease.remaining()), (false, None));
    assert!(!ended.is_cancelled() && !stopping.is_cancelled(), "the manager has not looked");
    until("the manager has looked", || ended.is_cancelled() && stopping.is_cancelled()).await;
}

/// The cluster counts the lease as held until the end of its ttl, and the holder only until its own deadline.
#[tokio::test]
async fn check_is_false_after_the_holders_deadline() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(lease.check().await, Ok(true));
    let ended = lease.ended();
    link.cluster.clock().advance(USABLE);
    assert_eq!(lease.check().await, Ok(false));
    assert!(!ended.is_cancelled(), "the manager has not looked");
}

/// The next holder has the lease before the first one gets the answers to its renewal and to its hand-over.
#[tokio::test]
async fn answered_renewal_does_not_end_a_hand_overs_pause() {
    for renewal_fails in [false, true] {
        let link = Link::new();
        let (lease, next) = (link.lease(), link.lease());
        lease.acquire(Wait::No).await.expect("the lease is free");
        link.empties_next.store(renewal_fails, Ordering::SeqCst);
        link.withheld.send_replace(Withheld { renewals: true, hand_overs: true, ..Withheld::default() });
        let handing_over = link.hand_over_during_a_renewal(&lease, &next).await;
        let assert_one_holder = || {
            let local = (lease.is_held(), lease.token(), lease.remaining());
            assert_eq!(local, (false, None, None), "the next holder has the lease; renewal fails: {renewal_fails}");
        };
        assert_one_holder();
        link.withheld.send_replace(Withheld { hand_overs: true, ..Withheld::default() });
        until("the renewal is answered", || link.renewals.load(Ordering::SeqCst) > 0).await;
        for _ in 0..100 {
            assert_one_holder();
            tokio::task::yield_now().await;
        }
        link.withheld.send_replace(Withheld::default());
        assert_eq!(handing_over.await.expect("no panic"), Ok(true));
        assert_one_holder();
    }
}

#[tokio::test(start_paused = true)]
async fn hand_over_waits_for_the_end_of_the_work() {
    let link = Link::new();
    let (lease, next) = (link.lease(), link.lease());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (record, holds, waits) = (seen.clone(), lease.clone(), next.clone());
    let work = lease.before_release(move || {
        let (record, holds, waits) = (record.clone(), holds.clone(), waits.clone());
        async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            record.lock().expect("no panic").push((holds.is_held(), waits.is_held()));
        }
    });
    lease.acquire(Wait::No).await.expect("the lease is free");
    let waiting = wait_in_queue(&link.cluster, &next, TTL).await;
    assert_eq!(lease.hand_over(None).await, Ok(true));
    waiting.await.expect("no panic").expect("the cluster has handed the lease over");
    assert_eq!(*seen.lock().expect("no panic"), [(true, false)], "at the end of the work: held here, held there");
    drop(work);
}

#[tokio::test(start_paused = true)]
async fn hand_over_is_not_sent_while_the_work_goes_on() {
    let link = Link::new();
    let options = LeaseOptions::new().ttl(TTL).drain(Duration::from_millis(50));
    let (lease, next) = (link.manager().lease_with("job", options).expect("a valid name"), link.lease());
    lease.before_release(std::future::pending::<()>).detach();
    lease.acquire(Wait::No).await.expect("the lease is free");
    let waiting = wait_in_queue(&link.cluster, &next, TTL).await;
    let began = tokio::time::Instant::now();
    let refused = lease.hand_over(None).await.expect_err("the work goes on");
    assert!(matches!(&refused, CallError::Refused(problem) if problem.code == Code::NotDrained), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((lease.is_held(), link.waits(&next).await, waiting.is_finished()), (false, true, false));
}

/// A node that hangs must not cost the shortest lease of a batch.
#[tokio::test]
async fn renewal_takes_at_most_a_third_of_its_shortest_ttl() {
    const ENDLESS: Option<Duration> = None;
    let (seconds, ms) = (|s| Some(Duration::from_secs(s)), |ms| Some(Duration::from_millis(ms)));
    let cases = [
        (vec![seconds(6), seconds(60)], 2_000),
        (vec![seconds(60), seconds(6), seconds(12), ENDLESS], 2_000),
        // The operation timeout is 5 s.
        (vec![seconds(60)], 5_000),
        (vec![ENDLESS], 5_000),
        (vec![seconds(60), ms(120)], 50),
    ];
    for (ttls, expected_ms) in cases {
        let link = Link::new();
        let manager = link.manager();
        let interval = |ttl: &Option<Duration>| ttl.map_or(Duration::from_secs(10), |ttl| ttl / 3);
        let shortest = ttls.iter().map(interval).min().expect("a lease");
        // The shortest lease becomes due. The batch takes the others along, because they are due soon.
        let age = |ttl: &Option<Duration>| interval(ttl).mul_f64(if interval(ttl) == shortest { 1.15 } else { 0.8 });
        let mut by_age = ttls.clone();
        by_age.sort_by_key(|ttl| std::cmp::Reverse(age(ttl)));
        for (number, ttl) in by_age.iter().enumerate() {
            let options = LeaseOptions::new();
            let options = ttl.map_or(options.clone().infinite(), |ttl| options.ttl(ttl));
            let lease = manager.lease_with(format!("job-{number}"), options).expect("a valid name");
            lease.acquire(Wait::No).await.expect("the lease is free");
            let next = by_age.get(number + 1).map_or(Duration::ZERO, age);
            link.cluster.clock().advance(age(ttl) - next);
        }
        let sent = || link.sent_renewals.lock().expect("no panic").first().copied();
        until("a renewal is sent", || sent().is_some()).await;
        assert_eq!(sent(), Some((ttls.len(), Duration::from_millis(expected_ms))), "{ttls:?}");
    }
}

/// The bounds of the time must not cross.
#[tokio::test(start_paused = true)]
async fn shortest_time_of_a_renewal_is_50_ms() {
    let link = Link::new();
    let options = ManagerOptions::new().operation_timeout(Duration::from_millis(1));
    let manager = link.cluster.manager_through(link.clone(), options);
    let lease = manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    link.cluster.clock().advance(TTL * 2 / 5);
    until("it is renewed", || lease.remaining() == Some(USABLE)).await;
    assert_eq!(*link.sent_renewals.lock().expect("no panic"), [(1, Duration::from_millis(50))]);
}

/// The number of losses that a listener of this lease has received.
fn count_losses(lease: &Lease) -> Arc<AtomicUsize> {
    let losses = Arc::new(AtomicUsize::new(0));
    let counted = losses.clone();
    lease.on_lost(move |_| _ = counted.fetch_add(1, Ordering::SeqCst)).detach();
    losses
}

/// The cluster applies the hand-over before the renewal, and the renewal is answered first.
#[tokio::test]
async fn renewal_that_is_refused_by_a_hand_over_is_no_loss() {
    let link = Link::new();
    let (lease, next) = (link.lease(), link.lease());
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let losses = count_losses(&lease);
    link.withheld.send_replace(Withheld { renewal_requests: true, hand_overs: true, ..Withheld::default() });
    let handing_over = link.hand_over_during_a_renewal(&lease, &next).await;
    link.withheld.send_replace(Withheld { hand_overs: true, ..Withheld::default() });
    until("the renewal is answered", || link.renewals.load(Ordering::SeqCst) > 0).await;
    for _ in 0..100 {
        assert!(!lease.is_held());
        tokio::task::yield_now().await;
    }
    link.withheld.send_replace(Withheld::default());
    assert_eq!(handing_over.await.expect("no panic"), Ok(true));
    assert_eq!((lease.state(), losses.load(Ordering::SeqCst)), (HoldState::Released { token }, 0));
}

/// The cluster has handed the lease over, and its answer is on the way.
#[tokio::test]
async fn check_during_a_hand_over_reports_no_loss() {
    let link = Link::new();
    let (lease, next) = (link.lease(), link.lease());
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let losses = count_losses(&lease);
    link.withheld.send_replace(Withheld { renewal_requests: true, hand_overs: true, ..Withheld::default() });
    let handing_over = link.hand_over_during_a_renewal(&lease, &next).await;
    assert_eq!(lease.check().await, Ok(false));
    link.withheld.send_replace(Withheld::default());
    assert_eq!(handing_over.await.expect("no panic"), Ok(true));
    assert_eq!((lease.state(), losses.load(Ordering::SeqCst)), (HoldState::Released { token }, 0));
}

/// The acquire first releases the grant that the local clock ended. The shutdown ends before the answer to that release.
#[tokio::test]
async fn no_claim_is_sent_after_a_shutdown() {
    let link = Link::new();
    let manager = link.manager();
    let lease = manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    link.cluster.clock().advance(TTL * 995 / 1000);
    until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
    link.withheld.send_replace(Withheld { releases: true, ..Withheld::default() });
    let acquiring = tokio::spawn({
        let lease = lease.clone();
        async move { lease.acquire(Wait::No).await }
    });
    until("the release is sent", || link.releases.load(Ordering::SeqCst) > 0).await;
    let claims = link.claims.load(Ordering::SeqCst);
    // Without a time limit, a shutdown that waits for the acquire would wait for this test.
    let failed = tokio::time::timeout(Duration::from_secs(5), manager.shutdown()).await;
    let failed = failed.expect("the shutdown ends");
    let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["job"], "the release has no answer: {failed:?}");
    link.withheld.send_replace(Withheld::default());
    assert_eq!(acquiring.await.expect("no panic"), Err(CallError::ShutDown));
    assert_eq!(link.claims.load(Ordering::SeqCst), claims, "a claim was sent");
}

/// The lost lease is the first one of the batch, because it was acquired first.
#[tokio::test]
async fn lost_lease_of_a_batch_leaves_the_others_renewed() {
    let link = Link::new();
    let manager = link.manager();
    let lease = |name: &str| manager.lease_with(name, LeaseOptions::new().ttl(TTL)).expect("a name");
    let (lost, others) = (lease("lost"), ["one", "two", "three"].map(lease));
    let token = lost.acquire(Wait::No).await.expect("the lease is free");
    let later = Duration::from_secs(4);
    link.cluster.clock().advance(later);
    for other in &others {
        other.acquire(Wait::No).await.expect("the lease is free");
    }
    let (release, budget) = (Release::new(lost.holder().clone(), token), RetryBudget::within(LONG));
    let released = Coordinator::release(&link.cluster, lost.name().clone(), release, budget).await;
    assert!(released.expect("behind the manager's back").released);
    link.cluster.clock().advance(TTL * 2 / 5 - later);
    for _ in 0..2 {
        until("the others are renewed", || others.iter().all(|other| other.remaining() == Some(USABLE))).await;
        assert_eq!(lost.state(), HoldState::Lost { token, why: Loss::Released });
        link.cluster.clock().advance(TTL * 2 / 5);
    }
}
