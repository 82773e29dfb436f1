//! Shutdowns during releases and hand-overs: they name what the cluster may still count as held.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::api::Code;
use tenure::client::{CallError, HoldState, LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tenure::testing::{FakeCluster, Line, ManualClock, Switch};

use crate::acquiring::code;
use crate::link::{Link, TTL, Withheld};
use crate::world::{LONG, until, wait_in_queue};

/// A manager behind a switch.
fn switched() -> (FakeCluster, Switch, LeaseManager) {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    (cluster, switch, manager)
}

/// Shuts the manager down and returns the names.
async fn shut_down(manager: &LeaseManager) -> Vec<String> {
    manager.shutdown().await.iter().map(|(name, _)| name.to_string()).collect()
}

/// The keeper checks the leases whose time has come.
async fn let_the_keeper_check(cluster: &FakeCluster, passed: Duration) {
    cluster.clock().advance(passed);
    tokio::time::sleep(Duration::from_millis(500)).await;
}

/// The guard was dropped, and the listener runs when the shutdown begins.
#[tokio::test(start_paused = true)]
async fn shutdown_names_a_lease_whose_background_release_is_not_drained() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let options = LeaseOptions::new().infinite().drain(Duration::from_millis(200));
    let lease = manager.lease_with("job", options).expect("valid options");
    lease.before_release(std::future::pending::<()>).detach();
    drop(lease.guard(Wait::No).await.expect("it is free"));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let failed = manager.shutdown().await;
    assert!(
        matches!(failed.as_slice(), [(name, error)] if name.as_str() == "job" && code(error) == Some(Code::NotDrained)),
        "{failed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn undrained_lease_is_refused_as_not_drained_until_it_expires() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let options = LeaseOptions::new().ttl(TTL).drain(Duration::from_millis(20));
    let lease = manager.lease_with("job", options).expect("valid options");
    lease.before_release(std::future::pending::<()>).detach();
    let guard = lease.guard(Wait::No).await.expect("it is free");
    for round in 0..2 {
        let refused = guard.release().await.expect_err("the work goes on");
        assert_eq!(code(&refused), Some(Code::NotDrained), "{round}");
        assert!(manager.try_acquire("job").await.expect("an answer").is_none(), "the guard excludes others: {round}");
    }
    cluster.clock().advance(TTL + Duration::from_secs(1));
    assert_eq!((guard.release().await, lease.release().await), (Ok(false), Ok(false)));
}

/// The default of `drain`.
#[tokio::test(start_paused = true)]
async fn work_has_30_s_to_end_by_default() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().infinite()).expect("valid options");
    lease.before_release(std::future::pending::<()>).detach();
    lease.acquire(Wait::No).await.expect("it is free");
    let begun = tokio::time::Instant::now();
    let refused = lease.release().await.expect_err("the work goes on");
    assert_eq!((code(&refused), begun.elapsed().as_secs()), (Some(Code::NotDrained), 30));
}

/// The work of each lease takes some time to end.
#[tokio::test(start_paused = true)]
async fn leases_are_released_concurrently() {
    const WORK: Duration = Duration::from_secs(10);
    for shuts_down in [true, false] {
        let manager = FakeCluster::new().manager();
        let mut leases = Vec::new();
        for name in ["one", "two", "three"] {
            let lease = manager.lease_with(name, LeaseOptions::new().infinite()).expect("valid options");
            lease.before_release(|| tokio::time::sleep(WORK)).detach();
            lease.acquire(Wait::No).await.expect("it is free");
            leases.push(lease);
        }
        let begun = tokio::time::Instant::now();
        let failed = if shuts_down { manager.shutdown().await } else { manager.release_all().await };
        assert_eq!(failed, [], "shutdown: {shuts_down}");
        let took = begun.elapsed();
        assert!((WORK..WORK * 2).contains(&took), "{took:?} for three leases, shutdown: {shuts_down}");
        assert!(leases.iter().all(|lease| !lease.is_held()), "shutdown: {shuts_down}");
    }
}

/// The cluster has no record of the grant any more.
#[tokio::test(start_paused = true)]
async fn undrained_lease_that_the_cluster_forgot_is_over() {
    const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let options = LeaseOptions::new().ttl(TTL).drain(Duration::from_millis(20));
    let lease = manager.lease_with("job", options).expect("valid options");
    lease.before_release(std::future::pending::<()>).detach();
    let guard = lease.guard(Wait::No).await.expect("it is free");
    guard.release().await.expect_err("the work goes on");
    for _ in 0..2 {
        cluster.clock().advance(MONTH);
        cluster.manager().try_acquire("other").await.expect("an answer");
    }
    assert_eq!((guard.release().await, lease.release().await), (Ok(false), Ok(false)));
}

/// An acquire in progress replaces the grant of the guard while the guard waits for it.
#[tokio::test(start_paused = true)]
async fn guard_of_an_undrained_lease_releases_no_later_grant() {
    let link = Link::new();
    let manager = link.manager();
    let options = LeaseOptions::new().infinite().drain(Duration::from_millis(20));
    let lease = manager.lease_with("job", options).expect("valid options");
    let listener = lease.before_release(std::future::pending::<()>);
    let guard = Arc::new(lease.guard(Wait::No).await.expect("it is free"));
    guard.release().await.expect_err("the work goes on");
    drop(listener);
    link.withheld.send_replace(Withheld { release_requests: true, ..Withheld::default() });
    let acquiring = tokio::spawn({
        let lease = lease.clone();
        async move { lease.acquire(Wait::No).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let releasing = tokio::spawn({
        let guard = guard.clone();
        async move { guard.release().await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    link.withheld.send_replace(Withheld::default());
    let token = acquiring.await.expect("no panic").expect("it is granted");
    assert!(token > guard.token(), "the acquire released the earlier grant");
    assert_eq!(releasing.await.expect("no panic"), Ok(false));
    assert_eq!(lease.token(), Some(token), "the later grant stays");
}

/// The release began before the shutdown, and its request is lost.
#[tokio::test(start_paused = true)]
async fn shutdown_names_a_lease_whose_release_is_in_flight() {
    for options in [LeaseOptions::new().ttl(TTL), LeaseOptions::new().infinite()] {
        let (cluster, switch, manager) = switched();
        let lease = manager.lease_with("job", options).expect("valid options");
        lease.acquire(Wait::No).await.expect("it is free");
        switch.set(Line::Cut);
        let releasing = tokio::spawn({
            let lease = lease.clone();
            async move { lease.release().await }
        });
        until("it is given up", || !lease.is_held()).await;
        let_the_keeper_check(&cluster, TTL / 2).await;
        assert_eq!(shut_down(&manager).await, ["job"]);
        let released = releasing.await.expect("no panic");
        assert!(matches!(released, Err(CallError::Unknown { .. })), "{released:?}");
    }
}

/// The cluster did not get the hand-over, or the work did not end before it.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_or_names_a_lease_that_was_not_handed_over() {
    for (line, is_drained) in [(Line::Up, true), (Line::Cut, true), (Line::Up, false)] {
        let (cluster, switch, manager) = switched();
        let options = LeaseOptions::new().infinite().drain(Duration::from_millis(20));
        let lease = manager.lease_with("job", options).expect("valid options");
        lease.acquire(Wait::No).await.expect("it is free");
        if is_drained {
            switch.set(Line::Cut);
        } else {
            lease.before_release(std::future::pending::<()>).detach();
        }
        let failed = lease.hand_over(None).await.expect_err("it is not handed over");
        assert_eq!(code(&failed).is_some(), !is_drained, "{failed:?}");
        drop(lease);
        let_the_keeper_check(&cluster, TTL).await;
        switch.set(line);
        let is_freed = line == Line::Up && is_drained;
        let expected: &[&str] = if is_freed { &[] } else { &["job"] };
        assert_eq!(shut_down(&manager).await, expected, "{line:?}, {is_drained}");
        let next = cluster.manager().try_acquire("job").await.expect("an answer");
        assert_eq!(next.is_some(), is_freed, "{line:?}, {is_drained}");
    }
}

/// The shutdown begins before the cluster gets the claim, which arrives after a second or after the shutdown.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_or_names_a_claim_that_the_cluster_does_not_know_yet() {
    for arrives_meanwhile in [true, false] {
        let link = Link::new();
        link.withheld.send_replace(Withheld { claim_requests: true, ..Withheld::default() });
        let manager = link.manager();
        let lease = manager.lease_with("job", LeaseOptions::new().infinite()).expect("valid options");
        let acquiring = tokio::spawn(async move { lease.acquire(Wait::UpTo(LONG)).await });
        until("the claim is sent", || link.claims.load(Ordering::SeqCst) == 1).await;
        let shutting_down = tokio::spawn(async move { shut_down(&manager).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        if arrives_meanwhile {
            link.withheld.send_replace(Withheld::default());
        }
        let left = tokio::time::timeout(LONG, shutting_down).await.expect("the shutdown ends").expect("no panic");
        let ended = acquiring.await.expect("no panic");
        link.withheld.send_replace(Withheld::default());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let next = link.cluster.manager().try_acquire("job").await.expect("an answer");
        if arrives_meanwhile {
            assert_eq!((left, ended), (Vec::new(), Err(CallError::ShutDown)));
            assert!(next.is_some(), "the claim was granted and is held by no program");
        } else {
            assert_eq!(left, ["job"]);
            assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
        }
    }
}

/// The acquire was dropped a second before the shutdown. Its claim arrives a second later, or after the shutdown.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_or_names_the_claim_of_a_dropped_acquire() {
    for arrives_meanwhile in [true, false] {
        let (link, manager) = withheld_claim(LeaseOptions::new().infinite()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let shutting_down = tokio::spawn(async move { shut_down(&manager).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        if arrives_meanwhile {
            link.withheld.send_replace(Withheld::default());
        }
        let left = tokio::time::timeout(LONG, shutting_down).await.expect("the shutdown ends").expect("no panic");
        let expected: &[&str] = if arrives_meanwhile { &[] } else { &["job"] };
        assert_eq!(left, expected);
        link.withheld.send_replace(Withheld::default());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let next = link.cluster.manager().try_acquire("job").await.expect("an answer");
        assert_eq!(next.is_some(), arrives_meanwhile);
    }
}

/// The manager has stopped looking for the claim when the shutdown begins.
#[tokio::test(start_paused = true)]
async fn shutdown_names_the_claim_of_a_dropped_acquire_until_its_time_is_over() {
    let (link, manager) = withheld_claim(LeaseOptions::new().ttl(TTL)).await;
    let _lease = manager.lease("job").expect("a name");
    tokio::time::sleep(LONG).await;
    assert_eq!(shut_down(&manager).await, ["job"]);
    assert_eq!(shut_down(&manager).await, ["job"]);
    // The cluster may grant the claim until the end of its wait.
    link.cluster.clock().advance(TTL + LONG / 2);
    assert_eq!(shut_down(&manager).await, ["job"]);
    link.cluster.clock().advance(LONG + LONG);
    assert_eq!(shut_down(&manager).await, [""; 0]);
}

/// A cluster can have a default ttl of 24 h.
#[tokio::test(start_paused = true)]
async fn shutdown_names_a_claim_for_the_longest_default_ttl() {
    let (link, manager) = withheld_claim(LeaseOptions::new()).await;
    tokio::time::sleep(LONG).await;
    link.cluster.clock().advance(Duration::from_secs(24 * 3600));
    assert_eq!(shut_down(&manager).await, ["job"]);
}

/// The caller of the shutdown has a time limit of its own.
#[tokio::test(start_paused = true)]
async fn dropped_shutdown_ends_the_waiting_acquires() {
    let (cluster, switch, manager) = switched();
    let lease = manager.lease("job").expect("a name");
    cluster.mark_held_elsewhere("job");
    let waiting = wait_in_queue(&cluster, &lease, LONG).await;
    switch.set(Line::Cut);
    let shut_down = tokio::time::timeout(Duration::from_millis(10), shut_down(&manager)).await;
    shut_down.expect_err("the cluster does not confirm the end of the claim");
    let ended = tokio::time::timeout(LONG, waiting).await.expect("the acquire ends").expect("no panic");
    assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
    assert_eq!(lease.acquire(Wait::No).await, Err(CallError::ShutDown));
}

/// The time of the cluster stands still in an outage, and the clock of the manager goes on.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_or_names_a_lease_after_an_outage_longer_than_its_ttl() {
    for (line, is_released) in [(Line::Up, true), (Line::Up, false), (Line::Cut, true), (Line::Cut, false)] {
        let (cluster, clock) = (FakeCluster::new(), ManualClock::new());
        let switch = Switch::new(cluster.clone());
        let options = ManagerOptions::new().clock(Arc::new(clock.clone()));
        let manager = LeaseManager::with_options(switch.clone(), options).expect("valid options");
        let lease = manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("valid options");
        lease.acquire(Wait::No).await.expect("it is free");
        switch.set(Line::Cut);
        if is_released {
            lease.release().await.expect_err("the cluster does not answer");
        } else {
            clock.advance(TTL);
            until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
        }
        drop(lease);
        clock.advance(TTL * 10);
        tokio::time::sleep(LONG).await;
        switch.set(line);
        let is_freed = line == Line::Up;
        let expected: &[&str] = if is_freed { &[] } else { &["job"] };
        assert_eq!(shut_down(&manager).await, expected, "{line:?}, {is_released}");
        let next = cluster.manager().try_acquire("job").await.expect("an answer");
        assert_eq!(next.is_some(), is_freed, "{line:?}, {is_released}");
    }
}

/// The program releases the lease before the manager looks for the claim.
#[tokio::test(start_paused = true)]
async fn release_after_a_dropped_acquire_forgets_no_claim() {
    let link = Link::new();
    link.withheld.send_replace(Withheld { claim_requests: true, ..Withheld::default() });
    let manager = link.manager();
    let lease = manager.lease_with("job", LeaseOptions::new().infinite()).expect("valid options");
    let acquired = tokio::time::timeout(Duration::from_millis(5), lease.acquire(Wait::No)).await;
    acquired.expect_err("the claim has no answer");
    let released = lease.release().await;
    assert!(matches!(released, Err(CallError::Unknown { .. })), "{released:?}");
    link.withheld.send_replace(Withheld::default());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let next = link.cluster.manager().try_acquire("job").await.expect("an answer");
    assert!(next.is_some(), "the lease went to a claim that the manager has forgotten");
}

/// A manager whose acquire was dropped before its claim arrived at the cluster.
async fn withheld_claim(options: LeaseOptions) -> (Link, LeaseManager) {
    let link = Link::new();
    link.withheld.send_replace(Withheld { claim_requests: true, ..Withheld::default() });
    let manager = link.manager();
    let lease = manager.lease_with("job", options).expect("valid options");
    let acquiring = tokio::spawn(async move { lease.acquire(Wait::UpTo(LONG)).await });
    until("the claim is sent", || link.claims.load(Ordering::SeqCst) == 1).await;
    acquiring.abort();
    acquiring.await.expect_err("it is dropped");
    (link, manager)
}
