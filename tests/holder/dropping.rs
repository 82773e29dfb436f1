//! Grants that the manager and the cluster see differently: after dropped futures of releases and hand-overs, after lost
//! answers, and before the manager has seen the end of a grant.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tenure::api::Code;
use tenure::client::{
    AcquireOptions, CallError, HoldState, Lease, LeaseManager, LeaseOptions, Loss, ManagerOptions, Wait,
};
use tenure::testing::{FakeCluster, Line, Switch};

use crate::link::{ClaimFate, Link, Withheld};
use crate::world::{LONG, until, wait_in_queue};

const TTL: Duration = Duration::from_secs(60);

/// A manager behind a switch, and the lease of another holder.
struct World {
    cluster: FakeCluster,
    switch: Switch,
    manager: LeaseManager,
    other: Lease,
}

impl World {
    fn start() -> World {
        let cluster = FakeCluster::new();
        let switch = Switch::new(cluster.clone());
        let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
        let other = cluster.manager().lease_with("job", LeaseOptions::new().infinite()).expect("a name");
        World { cluster, switch, manager, other }
    }

    fn infinite(&self) -> Lease {
        self.manager.lease_with("job", LeaseOptions::new().infinite()).expect("a name")
    }

    /// Polls a request once, without a connection, and drops it.
    fn drop_request<T>(&self, request: impl Future<Output = T>) {
        self.switch.set(Line::Cut);
        assert!(request.now_or_never().is_none(), "the request has no answer");
        self.switch.set(Line::Up);
    }
}

#[tokio::test]
async fn dropped_release_can_be_repeated() {
    let world = World::start();
    let lease = world.infinite();
    lease.acquire(Wait::No).await.expect("it is free");
    world.drop_request(lease.release());
    assert!(!lease.is_held());
    assert_eq!(lease.release().await, Ok(true));
    assert_eq!(lease.release().await, Ok(false));
    world.other.acquire(Wait::No).await.expect("it is free again");
}

#[tokio::test]
async fn acquire_after_a_dropped_release_gets_a_new_token() {
    let world = World::start();
    let lease = world.infinite();
    let token = lease.acquire(Wait::No).await.expect("it is free");
    world.drop_request(lease.release());
    assert!(lease.acquire(Wait::No).await.expect("this holder has it") > token);
}

#[tokio::test]
async fn guard_dropped_after_its_dropped_release_frees_the_lease() {
    let world = World::start();
    let guard = world.infinite().guard(Wait::No).await.expect("it is free");
    world.drop_request(guard.release());
    assert!(!guard.is_held());
    drop(guard);
    world.other.acquire(Wait::UpTo(LONG)).await.expect("the manager releases it");
}

/// The hand-over did not reach the cluster.
#[tokio::test]
async fn dropped_hand_over_leaves_an_acquirable_lease() {
    for acquires in [false, true] {
        let world = World::start();
        let lease = world.infinite();
        let token = lease.acquire(Wait::No).await.expect("it is free");
        let gone = lease.ended();
        world.drop_request(lease.hand_over(None));
        assert!(!lease.is_held());
        if acquires {
            assert!(lease.acquire(Wait::No).await.expect("this holder has it") > token);
            assert!(lease.is_held());
        } else {
            assert_eq!(lease.release().await, Ok(true));
            world.other.acquire(Wait::No).await.expect("it is free again");
        }
        assert!(gone.is_cancelled(), "the work under the first grant gets a signal");
    }
}

/// The request is on its way when its caller leaves, and gets no answer.
#[tokio::test(start_paused = true)]
async fn dropped_hand_over_ends_no_later_grant() {
    let world = World::start();
    let lease = world.infinite();
    lease.acquire(Wait::No).await.expect("it is free");
    world.switch.set(Line::Cut);
    let handed_over = tokio::time::timeout(Duration::from_millis(10), lease.hand_over(None)).await;
    handed_over.expect_err("the request has no answer");
    world.switch.set(Line::Up);
    let token = lease.acquire(Wait::No).await.expect("this holder has it");
    tokio::time::sleep(LONG).await;
    assert_eq!((lease.token(), lease.check().await), (Some(token), Ok(true)));
}

/// The cluster has handed the lease over.
#[tokio::test(start_paused = true)]
async fn hand_over_without_an_answer_ends_the_hold() {
    let world = World::start();
    let lease = world.infinite();
    let token = lease.acquire(Wait::No).await.expect("it is free");
    let waiting = wait_in_queue(&world.cluster, &world.other, LONG).await;
    world.switch.set(Line::Deaf);
    let unknown = lease.hand_over(None).await;
    assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
    waiting.await.expect("no panic").expect("the cluster has handed it over");
    for line in [Line::Deaf, Line::Up] {
        world.switch.set(line);
        assert_eq!((lease.is_held(), lease.token(), lease.remaining()), (false, None, None), "{line:?}");
        assert_eq!((lease.state(), world.other.is_held()), (HoldState::Released { token }, true), "{line:?}");
    }
}

/// The request of the hand-over is lost, so the cluster counts the lease as held.
#[tokio::test(start_paused = true)]
async fn lost_hand_over_leaves_the_lease_to_be_acquired_or_released() {
    for acquires in [false, true] {
        let world = World::start();
        let lease = world.infinite();
        let token = lease.acquire(Wait::No).await.expect("it is free");
        world.switch.set(Line::Cut);
        let unknown = lease.hand_over(None).await;
        assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
        world.switch.set(Line::Up);
        if acquires {
            let next = lease.acquire(Wait::No).await.expect("this holder has it");
            assert!(next > token, "the work under the first grant may still run");
        } else {
            assert_eq!(lease.release().await, Ok(true));
            world.other.acquire(Wait::No).await.expect("it is free again");
        }
    }
}

/// The manager sees the deadline up to 100 ms later. At first the cluster still counts the grant as held.
#[tokio::test]
async fn acquire_just_after_the_deadline_ends_the_old_grant() {
    for passed in [TTL * 995 / 1000, TTL + Duration::from_secs(1)] {
        let cluster = FakeCluster::new();
        let lease = cluster.manager().lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
        let losses = Arc::new(Mutex::new(Vec::new()));
        let seen = losses.clone();
        lease.on_lost(move |why| seen.lock().expect("plain").push(why)).detach();
        let token = lease.acquire(Wait::No).await.expect("it is free");
        let (gone, stopping) = (lease.ended(), lease.stopping());
        cluster.clock().advance(passed);
        assert!(!lease.is_held() && !gone.is_cancelled(), "the manager has not seen the deadline");
        let next = lease.acquire(Wait::No).await.expect("no other holder has it");
        assert!(next > token, "the work under the first grant may still run");
        assert!(gone.is_cancelled() && stopping.is_cancelled());
        until("the listener is called", || !losses.lock().expect("plain").is_empty()).await;
        assert_eq!(*losses.lock().expect("plain"), [Loss::Unreachable]);
        assert_eq!((lease.token(), lease.check().await), (Some(next), Ok(true)));
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_names_claims_whose_handle_was_dropped() {
    for line in [Line::Up, Line::Cut] {
        let cluster = FakeCluster::new();
        let switch = Switch::new(cluster.clone());
        let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
        switch.set(Line::Deaf);
        let unknown = manager.try_acquire("unanswered").await.map(drop);
        assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
        switch.set(Line::Cut);
        let dropped = manager.try_acquire("dropped").now_or_never();
        assert!(dropped.is_none(), "the request has no answer");
        tokio::time::sleep(LONG).await;
        switch.set(line);
        let failed = manager.shutdown().await;
        let mut names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let expected: &[&str] = if line == Line::Up { &[] } else { &["dropped", "unanswered"] };
        assert_eq!(names, expected, "{line:?}: {failed:?}");
        let other = cluster.manager().try_acquire("unanswered").await.expect("the cluster answers");
        assert_eq!(other.is_some(), line == Line::Up, "{line:?}");
    }
}

/// No time of the client ends a claim, because the time of the cluster can stand still. Meanwhile, the end of another claim
/// lets the manager forget what it no longer needs.
#[tokio::test(start_paused = true)]
async fn shutdown_names_unknown_claims_after_a_long_outage() {
    const WAIT: Duration = Duration::from_secs(600);
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    switch.set(Line::Cut);
    let lease = manager.lease_with("job", LeaseOptions::new().ttl(Duration::from_secs(1))).expect("a name");
    assert!(lease.acquire(Wait::UpTo(WAIT)).now_or_never().is_none(), "the request has no answer");
    drop(lease);
    for second in 0..WAIT.as_secs() {
        cluster.clock().advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
        if second == WAIT.as_secs() / 2 {
            let other = manager.lease_with("other", LeaseOptions::new().ttl(Duration::from_secs(1))).expect("a name");
            assert!(other.acquire(Wait::No).now_or_never().is_none(), "the request has no answer");
        }
    }
    let failed = manager.shutdown().await;
    let mut names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["job", "other"], "{failed:?}");
}

/// The first claim is carried out, and its answer is lost.
#[tokio::test]
async fn later_claim_says_nothing_about_an_earlier_one() {
    for (later, is_shut_down) in [(None, false), (Some(Code::TooBusy), false), (Some(Code::Forbidden), true)] {
        let link = Link::new();
        let manager = link.manager();
        let lease = manager.lease_with("job", LeaseOptions::new().infinite()).expect("a name");
        *link.failing_claims.lock().expect("plain") = [ClaimFate::AnswerLost, ClaimFate::NotSent].into();
        let unknown = lease.acquire(Wait::No).await;
        assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
        if let Some(code) = later {
            link.failing_claims.lock().expect("plain").clear();
            link.cluster.refuse("job", code);
        }
        let failed = lease.acquire(Wait::No).await;
        let expected = later.map_or_else(
            || matches!(failed, Err(CallError::Unavailable(_))),
            |code| matches!(&failed, Err(CallError::Refused(problem)) if problem.code == code),
        );
        assert!(expected, "{failed:?}");
        link.cluster.mark_free("job");
        if is_shut_down {
            assert_eq!(manager.shutdown().await, []);
        } else {
            assert_eq!(lease.release().await, Ok(true), "{later:?}");
        }
        link.lease().acquire(Wait::No).await.expect("the first claim was released");
    }
}

/// The cluster refuses the claim of a dropped acquire. It grants that of a later acquire, which was dropped, too, or whose
/// answer is lost.
#[tokio::test(start_paused = true)]
async fn earlier_claim_says_nothing_about_a_later_one() {
    const BRIEF: Duration = Duration::from_millis(5);
    for is_dropped in [false, true] {
        let link = Link::new();
        let lease = link.manager().lease_with("job", LeaseOptions::new().infinite()).expect("a name");
        link.withheld.send_replace(Withheld { claim_requests: true, ..Withheld::default() });
        let later = (!is_dropped).then_some(ClaimFate::AnswerLost);
        *link.failing_claims.lock().expect("plain") = std::iter::once(ClaimFate::Forbidden).chain(later).collect();
        let earlier = tokio::time::timeout(BRIEF, lease.acquire(Wait::No)).await;
        earlier.expect_err("the claim has no answer");
        let later = tokio::time::timeout(BRIEF, lease.acquire(Wait::No)).await;
        let is_expected = match is_dropped {
            true => later.is_err(),
            false => matches!(later, Ok(Err(CallError::Unknown { .. }))),
        };
        assert!(is_expected, "{later:?}");
        link.withheld.send_replace(Withheld::default());
        tokio::time::sleep(Duration::from_secs(1)).await;
        if !is_dropped {
            assert_eq!(lease.release().await, Ok(true));
        }
        let next = link.cluster.manager().try_acquire("job").await.expect("an answer");
        assert!(next.is_some(), "the later claim is forgotten, dropped: {is_dropped}");
    }
}

/// The second attempt is certainly not done: no node serves it, the cluster refuses it, or the node is shut down.
#[tokio::test(start_paused = true)]
async fn last_attempt_does_not_hide_an_unknown_one() {
    let fates =
        [(ClaimFate::NotSent, None), (ClaimFate::Forbidden, Some(Code::Forbidden)), (ClaimFate::ShutDown, None)];
    for (last, refused) in fates {
        let link = Link::new();
        let lease = link.lease();
        *link.failing_claims.lock().expect("plain") = [ClaimFate::AnswerLost, last].into();
        let unknown = lease.acquire(AcquireOptions::from(Wait::No).retries(1, LONG)).await;
        let Err(CallError::Unknown { last, .. }) = unknown else { panic!("{unknown:?}") };
        assert_eq!(last.map(|problem| problem.code), refused);
        assert_eq!(lease.release().await, Ok(true));
    }
}

/// The cluster has granted the first attempt, and cannot be reached any more.
#[tokio::test(start_paused = true)]
async fn shutdown_between_two_attempts_says_unknown() {
    let world = World::start();
    let lease = world.manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
    world.switch.set(Line::Deaf);
    let retries = AcquireOptions::from(Wait::No).retries(1, Duration::from_secs(3_600));
    let acquiring = tokio::spawn(async move { lease.acquire(retries).await });
    tokio::time::sleep(TTL).await;
    world.switch.set(Line::Cut);
    let left = world.manager.shutdown().await;
    assert!(left.iter().any(|(name, _)| name.as_str() == "job"), "{left:?}");
    let unknown = acquiring.await.expect("no panic");
    assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
    assert!(world.other.acquire(Wait::No).await.is_err(), "the first attempt was granted");
}

#[tokio::test(start_paused = true)]
async fn acquire_that_is_dropped_between_two_attempts_is_resolved() {
    let link = Link::new();
    let lease = link.lease();
    *link.failing_claims.lock().expect("plain") = [ClaimFate::AnswerLost].into();
    let acquiring = lease.acquire(AcquireOptions::from(Wait::No).retries(1, LONG));
    tokio::time::timeout(LONG / 2, acquiring).await.expect_err("it pauses before the second attempt");
    let next = link.lease();
    let free = async {
        while next.acquire(Wait::No).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, free).await.expect("the manager releases the grant of the first attempt");
}

/// The cluster has carried out the last renewal, so it counts the lease as held for longer than the manager does.
#[tokio::test(start_paused = true)]
async fn shutdown_releases_leases_that_the_local_clock_ended() {
    for line in [Line::Up, Line::Cut] {
        let world = World::start();
        let lease = world.manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
        lease.acquire(Wait::No).await.expect("it is free");
        world.switch.set(Line::Deaf);
        world.cluster.clock().advance(TTL * 2 / 5);
        until("a renewal is sent", || world.switch.renewals() > 0).await;
        world.cluster.clock().advance(TTL * 3 / 5);
        until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
        drop(lease);
        world.switch.set(line);
        let failed = world.manager.shutdown().await;
        let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
        let expected: &[&str] = if line == Line::Up { &[] } else { &["job"] };
        assert_eq!(names, expected, "{line:?}: {failed:?}");
        assert_eq!(world.other.acquire(Wait::No).await.is_ok(), line == Line::Up, "{line:?}");
    }
}

/// Another part of the program sets options for the next acquire.
#[tokio::test]
async fn options_of_a_grant_do_not_change() {
    let world = World::start();
    let graceful = LeaseOptions::new().ttl(TTL).grace(TTL / 3);
    let lease = world.manager.lease_with("job", graceful).expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    let stopping = lease.stopping();
    let other = world.manager.lease_with("job", LeaseOptions::new().ttl(TTL).renew_while(|| false)).expect("a name");
    world.cluster.clock().advance(TTL * 2 / 5);
    until("it is renewed", || world.switch.renewals() > 0 && lease.remaining() > Some(TTL * 9 / 10)).await;
    world.switch.set(Line::Cut);
    world.cluster.clock().advance(TTL * 3 / 4);
    until("the grace begins", || stopping.is_cancelled()).await;
    assert!(lease.is_held() && other.is_held());
}

/// The listener runs on, and renewals have no answer.
#[tokio::test]
async fn deadline_is_seen_while_the_listener_of_a_dropped_lease_runs() {
    let world = World::start();
    let lease = world.manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
    lease.before_release(std::future::pending::<()>).detach();
    lease.acquire(Wait::No).await.expect("it is free");
    let ended = lease.ended();
    let World { cluster, switch, manager, other } = world;
    drop((lease, manager, other));
    tokio::time::sleep(Duration::from_millis(50)).await;
    switch.set(Line::Cut);
    cluster.clock().advance(TTL);
    tokio::time::timeout(Duration::from_secs(3), ended.cancelled()).await.expect("the manager sees the deadline");
}

/// The lease reaches its longest hold while its listener runs. The cluster counts it as held for the default ttl.
#[tokio::test(start_paused = true)]
async fn grant_that_ends_during_its_drain_is_released_or_named() {
    for line in [Line::Up, Line::Cut] {
        let world = World::start();
        let options = LeaseOptions::new().longest_hold(Duration::from_secs(5));
        let lease = world.manager.lease_with("job", options).expect("valid options");
        lease.before_release(|| tokio::time::sleep(Duration::from_secs(1))).detach();
        let guard = lease.guard(Wait::No).await.expect("it is free");
        let passes = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            world.cluster.clock().advance(Duration::from_secs(6));
            until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
            world.switch.set(line);
        };
        if line == Line::Up {
            let (released, ()) = tokio::join!(guard.release(), passes);
            assert_eq!(released, Ok(false), "it was lost before");
        } else {
            let (failed, ()) = tokio::join!(world.manager.shutdown(), passes);
            let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["job"], "{failed:?}");
        }
        assert_eq!(world.other.acquire(Wait::No).await.is_ok(), line == Line::Up, "{line:?}");
    }
}

/// The listener takes longer than a request may.
#[tokio::test(start_paused = true)]
async fn dropped_lease_is_renewed_until_its_listener_has_ended() {
    let world = World::start();
    let lease = world.infinite();
    let (end, ended) = tokio::sync::oneshot::channel();
    let ended = Mutex::new(Some(ended));
    lease
        .before_release(move || {
            let ended = ended.lock().expect("plain").take();
            async move { drop(ended.expect("the listener runs once").await) }
        })
        .detach();
    lease.acquire(Wait::No).await.expect("it is free");
    // The shorter drain time of a second lease must not end the renewals of the first.
    let brief = LeaseOptions::new().infinite().drain(Duration::from_millis(10));
    let brief = world.manager.lease_with("brief", brief).expect("a name");
    brief.acquire(Wait::No).await.expect("it is free");
    let World { cluster, switch, manager, .. } = world;
    drop((lease, brief, manager));
    let before = switch.renewals();
    for _ in 0..20 {
        cluster.clock().advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(switch.renewals() > before);
    assert!(cluster.manager().try_acquire("job").await.expect("the cluster answers").is_none(), "the work goes on");
    end.send(()).expect("the listener runs");
    let free = async {
        while cluster.manager().try_acquire("job").await.expect("the cluster answers").is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(4), free).await.expect("the manager releases the lease");
}

/// The work may have no time to end, and the request has its own.
#[tokio::test(start_paused = true)]
async fn dropped_manager_waits_for_the_answers_to_its_releases() {
    let link = Link::new();
    link.withheld.send_replace(Withheld { release_requests: true, ..Withheld::default() });
    let manager = link.manager();
    let options = LeaseOptions::new().infinite().drain(Duration::ZERO);
    let lease = manager.lease_with("job", options).expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    drop((lease, manager));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(link.releases.load(Ordering::SeqCst), 1, "the release is sent");
    link.withheld.send_replace(Withheld::default());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(link.cluster.manager().try_acquire("job").await.expect("an answer").is_some());
}

/// Another part of the program sets shorter limits for the next acquire.
#[tokio::test(start_paused = true)]
async fn limits_of_a_grant_do_not_change() {
    let world = World::start();
    let long = LeaseOptions::new().ttl(TTL).drain(Duration::from_secs(10)).longest_hold(TTL * 10);
    let lease = world.manager.lease_with("job", long).expect("a name");
    lease.before_release(|| tokio::time::sleep(Duration::from_millis(50))).detach();
    lease.acquire(Wait::No).await.expect("it is free");
    let short = LeaseOptions::new().ttl(TTL).drain(Duration::ZERO).longest_hold(TTL);
    world.manager.lease_with("job", short).expect("a name");
    world.cluster.clock().advance(TTL * 2 / 5);
    until("it is renewed", || lease.remaining() > Some(TTL * 9 / 10)).await;
    assert_eq!(lease.release().await, Ok(true), "the work has 10 s to end");
}

/// The listener runs when the runtime of the manager's task ends.
#[test]
fn release_of_a_dropped_guard_outlives_its_runtime() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().expect("a runtime")
    };
    let (cluster, first) = (FakeCluster::new(), runtime());
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().infinite()).expect("a name");
    let calls = Arc::new(Mutex::new(0));
    let count = calls.clone();
    lease
        .before_release(move || {
            let mut calls = count.lock().expect("plain");
            *calls += 1;
            let is_first = *calls == 1;
            async move {
                if is_first {
                    std::future::pending::<()>().await;
                }
            }
        })
        .detach();
    let token = first.block_on(async {
        let guard = lease.guard(Wait::No).await.expect("it is free");
        let token = guard.token();
        drop(guard);
        until("the listener runs", || *calls.lock().expect("plain") == 1).await;
        token
    });
    drop(first);
    runtime().block_on(async {
        let next = lease.guard(Wait::UpTo(LONG)).await.expect("the manager releases the earlier grant");
        assert!(next.token() > token, "the earlier grant is renewed without an owner");
    });
}
