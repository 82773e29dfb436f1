//! The fake cluster for tests of library users.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::api::{Acquire, Code, Release};
use tenure::client::{
    CallError, Coordinator, HoldState, Lease, LeaseOptions, Loss, ManagerOptions, RetryBudget, Wait, WithError,
};
use tenure::testing::{FakeCluster, Line, Switch};

use crate::acquiring::code;
use crate::world::{LONG, until, wait_in_queue};

#[tokio::test]
async fn fake_leases_are_free_by_default() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    assert!(lease.is_held() && lease.state().is_held());
    assert_eq!(lease.check().await, Ok(true));
    assert_eq!(lease.release().await, Ok(true));
    assert!(!lease.state().is_held());
    assert!(lease.acquire(Wait::No).await.expect("the lease is free again") > token);
}

#[tokio::test]
async fn lease_accepts_text_and_lease_names() {
    let manager = FakeCluster::new().manager();
    let lease = manager.lease("job").expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let same = manager.lease(lease.name()).expect("a valid name");
    assert_eq!(same.token(), Some(token));
}

#[tokio::test]
async fn lease_held_elsewhere_is_refused_until_free() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let lease = manager.lease("job").expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    cluster.mark_held_elsewhere("job");
    assert!(!lease.is_held());
    let refused = lease.acquire(Wait::No).await.expect_err("another holder has the lease");
    assert_eq!(code(&refused), Some(Code::Held));
    assert!(manager.try_acquire("job").await.expect("the cluster answers").is_none());
    let waiting = tokio::spawn({
        let lease = lease.clone();
        async move { lease.acquire(Wait::UpTo(LONG)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    cluster.mark_free("job");
    assert!(waiting.await.expect("the task ends").is_ok());
}

#[tokio::test]
async fn fake_can_cause_each_loss_reason() {
    let reasons = [Loss::Expired, Loss::Revoked, Loss::HandedOver, Loss::Unreachable, Loss::Suspended, Loss::Stalled];
    for why in reasons {
        let cluster = FakeCluster::new();
        let lease = cluster.manager().lease("job").expect("a valid name");
        let losses = Arc::new(Mutex::new(Vec::new()));
        let seen = losses.clone();
        lease.on_lost(move |why| seen.lock().expect("not poisoned").push(why)).detach();
        let work = lease.with(Wait::No, |_| std::future::pending::<()>());
        let (ended, ()) = tokio::join!(work, async {
            until("the work runs", || lease.is_held()).await;
            cluster.lose("job", why);
        });
        assert_eq!(ended, Err(WithError::Lost(why)));
        assert!(matches!(lease.state(), HoldState::Lost { why: seen, .. } if seen == why));
        until("the listener is called", || losses.lock().expect("not poisoned").len() == 1).await;
        assert_eq!(*losses.lock().expect("not poisoned"), [why]);
    }
}

#[tokio::test]
async fn fake_can_refuse_and_lose_answers() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let lease = manager.lease("job").expect("a valid name");
    cluster.refuse("job", Code::QueueFull);
    assert_eq!(code(&lease.acquire(Wait::No).await.expect_err("refused")), Some(Code::QueueFull));
    let refused = manager.try_acquire("job").await.expect_err("another holder is not the reason");
    assert_eq!(code(&refused), Some(Code::QueueFull));
    cluster.unknown("job");
    assert!(matches!(lease.acquire(Wait::No).await, Err(CallError::Unknown { .. })));
    cluster.mark_free("job");
    assert!(lease.acquire(Wait::No).await.is_ok());
    cluster.unknown("job");
    assert!(matches!(lease.release().await, Err(CallError::Unknown { .. })));
    assert!(!lease.is_held());
}

#[tokio::test]
async fn manual_clock_controls_expiry() {
    let cluster = FakeCluster::new();
    let ttl = Duration::from_secs(60);
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().ttl(ttl)).expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(lease.remaining(), Some(ttl * 99 / 100));
    // With renewals in between, the lease lasts. A jump of a whole ttl, as after a pause, ends it.
    for _ in 0..10 {
        let before = lease.remaining().expect("the lease is held");
        cluster.clock().advance(ttl * 2 / 5);
        until("it is renewed", || lease.remaining() > Some(before - ttl / 10)).await;
    }
    cluster.clock().advance(ttl);
    assert!(
        !lease.is_held() && lease.token().is_none() && lease.remaining().is_none(),
        "the lease ends without a request"
    );
    until("it is lost", || matches!(lease.state(), HoldState::Lost { why: Loss::Suspended, .. })).await;
}

/// The clock jumps as after a stop of the process, and the work is woken at the same moment.
#[tokio::test]
async fn paused_work_is_not_polled_after_its_deadline() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a valid name");
    let (steps, wake) = (Arc::new(Mutex::new(0)), Arc::new(tokio::sync::Notify::new()));
    let (taken, woken) = (steps.clone(), wake.clone());
    let work = lease.with(Wait::No, |_| async move {
        loop {
            *taken.lock().expect("not poisoned") += 1;
            woken.notified().await;
        }
    });
    let pause = async {
        until("the work runs", || *steps.lock().expect("not poisoned") == 1).await;
        wake.notify_one();
        until("the work runs again", || *steps.lock().expect("not poisoned") == 2).await;
        cluster.clock().advance(Duration::from_secs(3600));
        wake.notify_one();
    };
    let (ended, ()): (Result<(), WithError>, ()) = tokio::join!(work, pause);
    assert_eq!(ended, Err(WithError::Lost(Loss::Suspended)));
    assert_eq!(*steps.lock().expect("not poisoned"), 2);
}

/// A local recorder records only on its own thread, so this test uses the single-threaded runtime.
#[tokio::test]
async fn client_metrics_are_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    tenure::client::describe_metrics();
    let cluster = FakeCluster::new();
    let ttl = Duration::from_secs(60);
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().ttl(ttl)).expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(lease.release().await, Ok(true));
    lease.acquire(Wait::No).await.expect("it is free");
    let before = lease.remaining();
    cluster.clock().advance(ttl / 2);
    until("it is renewed", || lease.remaining() >= before).await;
    cluster.unknown("job");
    cluster.clock().advance(ttl / 2);
    until("a renewal fails", || matches!(lease.state(), HoldState::AtRisk { .. })).await;
    cluster.lose("job", Loss::Revoked);
    cluster.refuse("job", Code::Held);
    lease.acquire(Wait::No).await.expect_err("refused");
    cluster.unknown("job");
    lease.acquire(Wait::No).await.expect_err("unknown");
    let text = render.render();
    for line in [
        "tenure_client_held 0",
        "# HELP tenure_client_held Leases held",
        "tenure_client_acquires_total{outcome=\"held\"} 2",
        "tenure_client_acquires_total{outcome=\"refused\"} 1",
        "tenure_client_acquires_total{outcome=\"unknown\"} 1",
        "tenure_client_losses_total{reason=\"revoked\"} 1",
        "tenure_client_renew_slack_seconds_count 1",
        "tenure_client_renew_slack_seconds_sum 29.4",
        "tenure_client_renew_failures_total",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}

#[tokio::test]
async fn hand_over_of_an_ended_grant_is_a_loss() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let release = Release::new(lease.holder().clone(), token);
    let budget = RetryBudget::within(Duration::from_secs(1));
    Coordinator::release(&cluster, lease.name().clone(), release, budget)
        .await
        .expect("the cluster releases the lease without the manager");
    assert!(lease.is_held(), "the manager does not know yet");
    assert_eq!(lease.hand_over(None).await, Ok(false));
    assert!(matches!(lease.state(), HoldState::Lost { why: Loss::Released, .. }), "{:?}", lease.state());
    assert!(!lease.is_held());
}

/// Another handle of the same manager may have acquired the lease again.
#[tokio::test]
async fn guard_of_a_lost_grant_releases_no_later_grant() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a valid name");
    for drops in [true, false] {
        let guard = lease.guard(Wait::No).await.expect("the lease is free");
        cluster.lose("job", Loss::Expired);
        until("it is lost", || !guard.is_held()).await;
        let token = lease.acquire(Wait::No).await.expect("the lease is free again");
        match drops {
            true => drop(guard),
            false => assert_eq!(guard.release().await, Ok(false)),
        }
        // The manager runs a release in a task.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(lease.check().await, Ok(true));
        assert_eq!(lease.token(), Some(token));
        assert_eq!(lease.release().await, Ok(true));
    }
}

#[tokio::test]
async fn release_of_everything_names_what_may_still_be_held() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let leases = ["a", "b", "c"].map(|name| manager.lease(name).expect("a name"));
    for lease in &leases {
        lease.acquire(Wait::No).await.expect("it is free");
    }
    cluster.unknown("b");
    let failed = manager.release_all().await;
    assert!(matches!(&failed[..], [(name, CallError::Unknown { .. })] if name.as_str() == "b"), "{failed:?}");
    assert!(leases.iter().all(|lease| !lease.is_held()));
}

#[tokio::test]
async fn shutdown_names_what_may_still_be_held() {
    let cluster = FakeCluster::new();
    let (manager, other) = (cluster.manager(), cluster.manager());
    for name in ["a", "b", "c"] {
        manager.lease(name).expect("a name").acquire(Wait::No).await.expect("it is free");
    }
    cluster.unknown("b");
    let failed = manager.shutdown().await;
    assert!(matches!(&failed[..], [(name, CallError::Unknown { .. })] if name.as_str() == "b"), "{failed:?}");
    for name in ["a", "c"] {
        other.lease(name).expect("a name").acquire(Wait::No).await.expect("it was released");
    }
}

/// Of the claims, one has no answer, and one waits in the queue.
#[tokio::test(start_paused = true)]
async fn shutdown_names_the_claims_that_it_cannot_withdraw() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    let [held, unanswered, queued] = ["held", "unanswered", "queued"].map(|name| manager.lease(name).expect("a name"));
    held.acquire(Wait::No).await.expect("it is free");
    cluster.unknown("unanswered");
    let unknown = unanswered.acquire(Wait::No).await;
    assert!(matches!(unknown, Err(CallError::Unknown { .. })), "{unknown:?}");
    cluster.mark_held_elsewhere("queued");
    let waiting = wait_in_queue(&cluster, &queued, LONG).await;
    switch.set(Line::Cut);
    let failed = manager.shutdown().await;
    let mut names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["held", "queued", "unanswered"], "{failed:?}");
    let ended = waiting.await.expect("no panic");
    assert!(matches!(ended, Err(CallError::Unknown { .. })), "{ended:?}");
}

#[tokio::test]
async fn work_keeps_its_result_when_the_release_fails() {
    for through_the_manager in [false, true] {
        let cluster = FakeCluster::new();
        let manager = cluster.manager();
        let lease = manager.lease("job").expect("a name");
        let work = |_: Lease| async {
            cluster.unknown("job");
            7
        };
        let ended = match through_the_manager {
            true => manager.with("job", work).await,
            false => lease.with(Wait::No, work).await,
        };
        assert_eq!((ended, lease.is_held()), (Ok(7), false));
    }
}

#[tokio::test]
async fn lock_delay_refuses_others_after_a_revoke() {
    let (cluster, delay) = (FakeCluster::new(), Duration::from_secs(20));
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().lock_delay(delay)).expect("a name");
    let other = cluster.manager();
    lease.acquire(Wait::No).await.expect("it is free");
    cluster.lose("job", Loss::Revoked);
    cluster.clock().advance(delay - Duration::from_secs(1));
    let refused = other.lease("job").expect("a name").acquire(Wait::No).await.expect_err("it is delayed");
    assert_eq!(code(&refused), Some(Code::LockDelay));
    assert!(other.try_acquire("job").await.expect("an answer").is_none());
    cluster.clock().advance(Duration::from_secs(2));
    assert!(other.try_acquire("job").await.expect("an answer").is_some());
    let _unwanted = other.lease_with("unwanted", LeaseOptions::new().should_hold(|| false)).expect("a name");
    assert!(other.try_acquire("unwanted").await.expect("an answer").is_none());
}

/// The work under the first grant may still run.
#[tokio::test(start_paused = true)]
async fn acquire_after_an_undrained_release_gets_a_new_token() {
    let cluster = FakeCluster::new();
    let options = LeaseOptions::new().infinite().drain(Duration::from_millis(50));
    let lease = cluster.manager().lease_with("job", options).expect("a name");
    let work = lease.before_release(std::future::pending::<()>);
    let guard = lease.guard(Wait::No).await.expect("it is free");
    let token = guard.token();
    assert_eq!(code(&guard.release().await.expect_err("the work goes on")), Some(Code::NotDrained));
    drop(guard);
    // The manager would run a release in a task.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(cluster.manager().try_acquire("job").await.expect("an answer").is_none(), "it is not released");
    assert!(lease.acquire(Wait::No).await.expect("this holder has it") > token);
    drop(work);
    assert_eq!((lease.release().await, lease.release().await), (Ok(true), Ok(false)));
}

#[tokio::test(start_paused = true)]
async fn acquire_behind_another_one_ends_after_the_timeout() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a name");
    cluster.mark_held_elsewhere("job");
    let waiting = wait_in_queue(&cluster, &lease, Duration::from_secs(600)).await;
    let began = tokio::time::Instant::now();
    let refused = lease.acquire(Wait::No).await.expect_err("the other acquire goes on");
    assert_eq!((code(&refused), waiting.is_finished()), (Some(Code::WaitTimeout), false));
    let waited = began.elapsed();
    assert!((Duration::from_secs(5)..Duration::from_millis(5_200)).contains(&waited), "{waited:?}");
}

/// The clock jumps as after a suspend, and the timers of the manager do not.
#[tokio::test(start_paused = true)]
async fn loss_by_the_clock_is_signalled_within_100_ms() {
    let (cluster, ttl) = (FakeCluster::new(), Duration::from_secs(60));
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().ttl(ttl)).expect("a name");
    let lost = Arc::new(Mutex::new(false));
    let listener = lost.clone();
    lease.on_lost(move |_| *listener.lock().expect("plain") = true).detach();
    lease.acquire(Wait::No).await.expect("it is free");
    let (ended, stopping) = (lease.ended(), lease.stopping());
    // The manager plans its next check.
    tokio::time::sleep(Duration::from_millis(1)).await;
    cluster.clock().advance(ttl);
    let began = tokio::time::Instant::now();
    until("all are told", || ended.is_cancelled() && stopping.is_cancelled() && *lost.lock().expect("plain")).await;
    assert!(began.elapsed() <= Duration::from_millis(105), "{:?}", began.elapsed());
}

#[tokio::test]
async fn manager_starts_its_tasks_once() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let manager = FakeCluster::new().manager();
    let (one, other) = (manager.lease("a").expect("a name"), manager.lease("b").expect("a name"));
    one.acquire(Wait::No).await.expect("it is free");
    let running = tasks();
    other.acquire(Wait::No).await.expect("it is free");
    assert_eq!(one.release().await, Ok(true));
    one.acquire(Wait::No).await.expect("it is free");
    assert_eq!(tasks(), running);
}

/// The cluster has another grant of the same holder than this manager.
#[tokio::test]
async fn check_compares_tokens() {
    let (cluster, budget) = (FakeCluster::new(), RetryBudget::within(Duration::from_secs(1)));
    for (claims, releases, expected) in [(0, 0, Loss::Released), (1, 0, Loss::Forgotten), (1, 1, Loss::Forgotten)] {
        let lease = cluster.manager().lease("job").expect("a name");
        let token = lease.acquire(Wait::No).await.expect("it is free");
        let (name, holder) = (lease.name().clone(), lease.holder().clone());
        let release = Release::new(holder.clone(), token);
        Coordinator::release(&cluster, name.clone(), release, budget).await.expect("behind the manager's back");
        if claims > 0 {
            let claimed = cluster.acquire(name.clone(), Acquire::new(holder.clone()), budget).await;
            let token = claimed.expect("it is free").token;
            if releases > 0 {
                let release = Release::new(holder, token);
                Coordinator::release(&cluster, name, release, budget).await.expect("it is held");
            }
        }
        assert_eq!(lease.check().await, Ok(false));
        assert_eq!(lease.state(), HoldState::Lost { token, why: expected });
        cluster.lose("job", Loss::Revoked);
    }
}

#[tokio::test]
async fn guard_keeps_others_out_until_it_is_released() {
    let cluster = FakeCluster::new();
    let (manager, other) = (cluster.manager(), cluster.manager());
    let guard = manager.try_acquire("job").await.expect("an answer").expect("it is free");
    for manager in [&manager, &other] {
        assert!(manager.try_acquire("job").await.expect("an answer").is_none());
    }
    cluster.unknown("job");
    assert!(matches!(guard.release().await, Err(CallError::Unknown { .. })));
    cluster.mark_free("job");
    assert!(manager.try_acquire("job").await.expect("an answer").is_none(), "it may still be held");
    assert_eq!(guard.release().await, Ok(true), "it can be released again");
    assert_eq!(guard.release().await, Ok(false));
    let next = manager.try_acquire("job").await.expect("an answer").expect("it was released");
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await, Ok(false));
    drop(guard);
    assert!(next.is_held(), "the old guard ends nothing");
    let lease = other.lease("job").expect("a name");
    drop(next);
    lease.acquire(Wait::UpTo(LONG)).await.expect("a dropped guard gives it back");
}

#[tokio::test(start_paused = true)]
async fn release_waits_30_s_for_the_work_to_end() {
    for (seconds, ends_in_time) in [(29, true), (31, false)] {
        let cluster = FakeCluster::new();
        let lease = cluster.manager().lease_with("job", LeaseOptions::new().infinite()).expect("a name");
        let ended = Arc::new(Mutex::new(0));
        let count = ended.clone();
        let work = lease.before_release(move || {
            let count = count.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                *count.lock().expect("plain") += 1;
            }
        });
        lease.acquire(Wait::No).await.expect("it is free");
        let released = lease.release().await;
        match ends_in_time {
            true => assert_eq!(released, Ok(true)),
            false => assert_eq!(code(&released.expect_err("the work goes on")), Some(Code::NotDrained)),
        }
        assert_eq!((lease.is_held(), *ended.lock().expect("plain")), (false, usize::from(ends_in_time)));
        drop(work);
        cluster.lose("job", Loss::Expired);
        lease.acquire(Wait::No).await.expect("it is free");
        assert_eq!(lease.release().await, Ok(true), "no listener is left to wait for");
        assert_eq!(*ended.lock().expect("plain"), usize::from(ends_in_time));
    }
}

#[tokio::test(start_paused = true)]
async fn release_waits_for_listeners_after_one_that_panics() {
    let lease = FakeCluster::new().manager().lease_with("job", LeaseOptions::new().infinite()).expect("a name");
    let ended = Arc::new(Mutex::new(0));
    let in_future = lease.before_release(|| async { panic!("planted by a test, in the future of a listener") });
    let in_call = lease.before_release(|| -> std::future::Ready<()> { panic!("planted by a test, in a listener") });
    let count = ended.clone();
    let work = lease.before_release(move || {
        let count = count.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            *count.lock().expect("plain") += 1;
        }
    });
    lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!(lease.release().await, Ok(true));
    assert_eq!(*ended.lock().expect("plain"), 1, "the work ends before the release");
    drop((in_future, in_call, work));
}

#[tokio::test]
async fn lazy_release_frees_it_and_is_for_what_is_held() {
    let cluster = FakeCluster::new();
    let (one, other) = (cluster.manager(), cluster.manager());
    let (lease, next) = (one.lease("job").expect("a name"), other.lease("job").expect("a name"));
    lease.acquire(Wait::No).await.expect("it is free");
    lease.release_lazily();
    next.acquire(Wait::UpTo(LONG)).await.expect("it was released");
    assert!(!lease.is_held());
}

#[tokio::test]
async fn lease_is_wanted_unless_its_options_say_otherwise() {
    let manager = FakeCluster::new().manager();
    assert!(manager.lease("a").expect("a name").should_hold());
    for wanted in [true, false] {
        let options = LeaseOptions::new().should_hold(move || wanted);
        let lease = manager.lease_with("job", options).expect("a name");
        assert_eq!(lease.should_hold(), wanted);
        assert_eq!(lease.acquire(Wait::No).await.is_ok(), wanted);
        lease.release().await.expect("an answer");
    }
}

#[tokio::test]
async fn listener_is_told_of_each_acquire_until_it_goes() {
    let lease = FakeCluster::new().manager().lease("job").expect("a name");
    let told = Arc::new(Mutex::new(Vec::new()));
    let listen = |name: &'static str| {
        let told = told.clone();
        lease.after_acquire(move |_| told.lock().expect("plain").push(name))
    };
    let (goes, stays) = (listen("goes"), listen("stays"));
    lease.acquire(Wait::No).await.expect("it is free");
    until("both are told", || told.lock().expect("plain").len() == 2).await;
    assert_eq!(lease.release().await, Ok(true));
    drop(goes);
    lease.acquire(Wait::No).await.expect("it is free");
    until("one is told", || told.lock().expect("plain").len() > 2).await;
    assert_eq!(*told.lock().expect("plain"), ["goes", "stays", "stays"]);
    drop(stays);
}

/// The manager forgets handles that are gone, once it has many of them.
#[tokio::test]
async fn handles_of_one_name_are_one_lease_among_many() {
    let manager = FakeCluster::new().manager();
    let lease = manager.lease("job").expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    for n in 0..300 {
        manager.lease(format!("other-{n}")).expect("a name");
        assert_eq!(manager.lease("job").expect("a name").token(), Some(token), "{n} other handles are gone");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_repeats_a_failed_release() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    for line in [Line::Up, Line::Cut] {
        switch.set(Line::Up);
        let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
        let lease = manager.lease_with("job", LeaseOptions::new().infinite()).expect("a name");
        lease.acquire(Wait::No).await.expect("it is free");
        switch.set(Line::Cut);
        let unknown = lease.release().await.expect_err("the cluster does not answer");
        assert!(matches!(unknown, CallError::Unknown { .. }), "{unknown:?}");
        // The keeper forgets the lease, which has no grant here and no handle.
        drop(lease);
        tokio::time::sleep(Duration::from_secs(1)).await;
        switch.set(line);
        let failed = manager.shutdown().await;
        let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
        let (expected, is_free): (&[&str], _) = if line == Line::Up { (&[], true) } else { (&["job"], false) };
        assert_eq!(names, expected, "{line:?}: {failed:?}");
        let other = cluster.manager().try_acquire("job").await.expect("the cluster answers");
        assert_eq!(other.is_some(), is_free, "{line:?}");
        drop(other);
        cluster.mark_free("job");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_names_a_lease_that_was_not_drained() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let options = LeaseOptions::new().infinite().drain(Duration::from_millis(20));
    let lease = manager.lease_with("job", options).expect("valid options");
    lease.acquire(Wait::No).await.expect("it is free");
    lease.before_release(std::future::pending::<()>).detach();
    let refused = lease.release().await.expect_err("the listener does not end");
    assert_eq!(code(&refused), Some(Code::NotDrained));
    drop(lease);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let failed = manager.shutdown().await;
    assert!(
        matches!(failed.as_slice(), [(name, error)] if name.as_str() == "job" && code(error) == Some(Code::NotDrained)),
        "{failed:?}"
    );
}
