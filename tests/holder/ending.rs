//! Releases and hand-overs concern what is held at their call, and nothing that comes later.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::client::{AcquireOptions, HoldState, LeaseOptions, Loss, Wait};
use tenure::testing::FakeCluster;

use crate::link::{ClaimFate, Fate, Link, TTL, Withheld};
use crate::runtimes::runtime;
use crate::world::{LONG, until, wait_in_queue};

/// A wait that is longer than each limit of a request.
const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn release_behind_a_waiting_acquire_has_nothing_to_end() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a name");
    cluster.mark_held_elsewhere("job");
    let waiting = wait_in_queue(&cluster, &lease, HOUR).await;
    let asked = async { (lease.release().await, lease.hand_over(None).await) };
    let ended = tokio::time::timeout(LONG, asked).await.expect("they do not wait for the acquire");
    assert_eq!(ended, (Ok(false), Ok(false)));
    assert!(!waiting.is_finished());
    cluster.mark_free("job");
    let acquired = tokio::time::timeout(LONG, waiting).await.expect("it is free");
    acquired.expect("no panic").expect("the claim has kept its place");
}

#[tokio::test(start_paused = true)]
async fn try_acquire_behind_a_waiting_acquire_is_none() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let lease = manager.lease("job").expect("a name");
    cluster.mark_held_elsewhere("job");
    let waiting = wait_in_queue(&cluster, &lease, HOUR).await;
    let tried = tokio::time::timeout(LONG, manager.try_acquire("job")).await.expect("it does not wait for the acquire");
    assert!(tried.expect("another holder is no error").is_none());
    assert!(!waiting.is_finished());
}

/// Another part of the program has acquired the lease again, and another holder waits for it.
#[tokio::test]
async fn guard_of_a_lost_grant_ends_no_later_grant() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease("job").expect("a name");
    let other = cluster.manager().lease("job").expect("a name");
    let guard = lease.guard(Wait::No).await.expect("it is free");
    cluster.lose("job", Loss::Expired);
    until("it is lost", || !guard.is_held()).await;
    let token = lease.acquire(Wait::No).await.expect("it is free again");
    let waiting = wait_in_queue(&cluster, &other, LONG).await;
    assert_eq!(guard.hand_over(None).await, Ok(false));
    guard.release_lazily();
    // The manager runs a release in a task.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((lease.token(), lease.check().await), (Some(token), Ok(true)));
    assert_eq!(lease.hand_over(None).await, Ok(true));
    waiting.await.expect("no panic").expect("the waiter gets it from its holder");
}

/// The runtime of the keeper stands still, so the acquire comes before the release that was requested earlier.
#[test]
fn background_release_ends_no_later_grant() {
    for way in ["the guard is dropped", "the guard requests it", "the lease requests it"] {
        let (keeper, program) = (runtime(), runtime());
        let cluster = FakeCluster::new();
        let manager = cluster.manager();
        let lease = manager.lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
        let guard = keeper.block_on(lease.guard(Wait::No)).expect("it is free");
        let first = guard.token();
        cluster.clock().advance(TTL);
        let _guard = match way {
            "the guard is dropped" => {
                drop(guard);
                None
            }
            "the guard requests it" => {
                guard.release_lazily();
                Some(guard)
            }
            _ => {
                lease.release_lazily();
                Some(guard)
            }
        };
        let next = program.block_on(lease.acquire(Wait::No)).expect("no other holder has it");
        assert!(next > first, "{way}: {next} after {first}");
        keeper.block_on(async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(lease.token(), Some(next), "{way}");
        assert_eq!(program.block_on(lease.check()), Ok(true), "{way}");
    }
}

/// No node has served the first attempt, or its outcome is unknown.
#[tokio::test(start_paused = true)]
async fn release_between_two_attempts_has_nothing_to_end() {
    for first in [ClaimFate::NotSent, ClaimFate::AnswerLost] {
        let link = Link::new();
        let lease = link.lease();
        link.failing_claims.lock().expect("plain").push_back(first);
        let acquiring = tokio::spawn({
            let lease = lease.clone();
            async move { lease.acquire(AcquireOptions::from(Wait::No).retries(1, HOUR)).await }
        });
        until("the first attempt is made", || link.claims.load(Ordering::SeqCst) == 1).await;
        let asked = async { (lease.release().await, lease.hand_over(None).await) };
        let ended = tokio::time::timeout(LONG, asked).await.expect("they do not wait for the acquire");
        assert_eq!(ended, (Ok(false), Ok(false)), "{first:?}");
        acquiring.await.expect("no panic").expect("the second attempt is granted");
    }
}

/// The answer to the claim came late, so the manager renews the grant before it counts the lease as held.
#[tokio::test(start_paused = true)]
async fn release_during_the_first_renewal_has_nothing_to_end() {
    let link = Link::new();
    let lease = link.lease();
    link.delay_next(TTL / 3 + Duration::from_millis(1));
    link.withheld.send_replace(Withheld { renewal_requests: true, ..Withheld::default() });
    let acquiring = tokio::spawn({
        let lease = lease.clone();
        async move { lease.acquire(Wait::No).await }
    });
    until("the renewal is sent", || !link.sent_renewals.lock().expect("plain").is_empty()).await;
    let released = tokio::time::timeout(LONG, lease.release()).await.expect("it does not wait for the acquire");
    assert_eq!(released, Ok(false));
    link.withheld.send_replace(Withheld::default());
    acquiring.await.expect("no panic").expect("the lease is renewed");
    assert!(lease.is_held());
}

/// The keeper sees the deadline before it runs the release that the guard has requested.
#[tokio::test(start_paused = true)]
async fn dropped_guard_frees_a_grant_whose_deadline_passes_before_the_release() {
    let cluster = FakeCluster::new();
    let lease = cluster.manager().lease_with("job", LeaseOptions::new().ttl(TTL)).expect("a name");
    let guard = lease.guard(Wait::No).await.expect("it is free");
    drop(guard);
    cluster.clock().advance(TTL * 995 / 1000);
    let other = cluster.manager().lease("job").expect("a name");
    let acquired = tokio::time::timeout(LONG, other.acquire(Wait::UpTo(HOUR))).await;
    acquired.expect("the manager releases it").expect("it is free again");
}

/// The coordinator panics in one renewal.
#[tokio::test(start_paused = true)]
async fn panic_in_one_renewal_ends_no_lease() {
    let link = Link::new();
    let lease = link.lease();
    lease.acquire(Wait::No).await.expect("it is free");
    link.panics_at_next_renewal.store(true, Ordering::SeqCst);
    link.cluster.clock().advance(TTL * 2 / 5);
    until("the renewal fails", || matches!(lease.state(), HoldState::AtRisk { failures: 1, .. })).await;
    link.cluster.clock().advance(TTL / 5);
    until("the next one succeeds", || lease.remaining() > Some(TTL * 9 / 10)).await;
}

/// The lines of a log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The coordinator panics in one of two releases in the background.
#[tokio::test(start_paused = true)]
async fn panic_in_one_release_costs_no_other_lease() {
    let written = Lines::default();
    let lines = written.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || lines.clone()).with_ansi(false).finish();
    let _logged_here = tracing::subscriber::set_default(subscriber);
    let link = Link::new();
    let manager = link.manager();
    let kept = manager.lease_with("kept", LeaseOptions::new().ttl(TTL)).expect("a name");
    kept.acquire(Wait::No).await.expect("it is free");
    link.withheld.send_replace(Withheld { release_requests: true, ..Withheld::default() });
    link.lose_next_release(Fate::Panics);
    for name in ["one", "two"] {
        drop(manager.try_acquire(name).await.expect("an answer").expect("it is free"));
    }
    until("both releases are sent", || link.releases.load(Ordering::SeqCst) == 2).await;
    link.withheld.send_replace(Withheld::default());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let other = link.cluster.manager();
    let mut held = Vec::new();
    for name in ["one", "two"] {
        if other.try_acquire(name).await.expect("an answer").is_none() {
            held.push(name);
        }
    }
    assert_eq!(held.len(), 1, "the release without a panic is done: {held:?}");
    let lines = String::from_utf8(written.0.lock().expect("no panic").clone()).expect("log lines are UTF-8");
    let panicked = lines.lines().find(|line| line.contains("request of the lease manager panicked"));
    let panicked = panicked.expect("the panic is logged");
    assert!(panicked.contains(&format!("lease={}", held[0])), "{panicked}");
    link.cluster.clock().advance(TTL * 2 / 5);
    until("the third lease is renewed", || kept.remaining() > Some(TTL * 9 / 10)).await;
}
