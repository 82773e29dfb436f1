//! Losses: detected in time and reported once with the reason.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::LeaseManager;
use tenure::api::TtlMs;
use tenure::client::{HoldState, LeaseOptions, Loss, ManagerOptions, Wait, WithError};
use tenure::clock::{Clock, Suspended};
use tenure::testing::{FakeCluster, Line, ManualClock, Switch};
use tokio::time::Instant;

use crate::steady::safety;
use crate::world::{LONG, LONG_TTL, TTL, World, over_both_transports, short, until};

over_both_transports!(
    partition_has_one_holder_at_a_time,
    crashed_holders_lease_is_free_after_its_ttl,
    revoke_is_a_loss_with_its_reason,
    holder_lost_by_its_clock_gets_a_new_token,
    release_by_another_client_is_a_loss,
    expiry_reported_by_the_cluster_is_a_loss,
    check_detects_a_revoke,
    states_are_held_at_risk_lost,
    infinite_lease_lasts_until_revoked,
    work_stops_at_the_loss,
    stalled_work_loses_its_lease,
    longest_hold_ends_the_lease,
    grace_begins_before_the_deadline,
);

async fn partition_has_one_holder_at_a_time(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short()).expect("a valid name");
    let before = lease.acquire(Wait::No).await.expect("the lease is free");
    let lost = Arc::new(Mutex::new(None));
    let seen = lost.clone();
    lease.on_lost(move |why| *seen.lock().expect("not poisoned") = Some((why, Instant::now()))).detach();
    one.switch.set(Line::Cut);
    let next = other.manager.lease_with("job", short()).expect("a valid name");
    let after = next.acquire(Wait::UpTo(LONG)).await.expect("the other side cannot renew");
    let granted = Instant::now();
    safety!(!lease.is_held(), "the partitioned holder did not stop first");
    safety!(after > before, "token {after} after {before}");
    one.switch.set(Line::Up);
    until("the listener is called", || lost.lock().expect("not poisoned").is_some()).await;
    let (why, when) = lost.lock().expect("not poisoned").expect("the listener was called");
    assert_eq!(why, Loss::Unreachable);
    assert!(when <= granted + Duration::from_millis(200), "{:?} later", when - granted);
    tokio::time::sleep(TTL * 2).await;
    safety!(!lease.is_held(), "an old renewal revived the lease");
    assert!(next.is_held());
    assert_eq!(lease.state(), HoldState::Lost { token: before, why: Loss::Unreachable });
}

async fn crashed_holders_lease_is_free_after_its_ttl(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let begun = Instant::now();
    one.manager.lease_with("job", short()).expect("a valid name").acquire(Wait::No).await.expect("the lease is free");
    one.switch.set(Line::Cut);
    let next = other.manager.lease("job").expect("a valid name").acquire(Wait::UpTo(LONG)).await;
    assert!(next.is_ok(), "{next:?}");
    assert!(begun.elapsed() >= TTL, "the lease expired too early: {:?}", begun.elapsed());
    assert!(begun.elapsed() < TTL + Duration::from_secs(2), "the lease expired too late: {:?}", begun.elapsed());
}

async fn revoke_is_a_loss_with_its_reason(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short().ttl(LONG_TTL)).expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let ended = lease.ended();
    world.remote().revoke(lease.name(), "maintenance").await.expect("the cluster answers");
    // Without that renewal, the lease would be lost at its deadline, for another reason.
    tokio::time::timeout(LONG, ended.cancelled()).await.expect("the next renewal reports the loss");
    assert_eq!(lease.state(), HoldState::Lost { token, why: Loss::Revoked });
}

/// The cluster still counts the lease as held by the same holder, and would return the same token to a new claim. The
/// resource could then not distinguish writes of the old work from writes of the new work.
async fn holder_lost_by_its_clock_gets_a_new_token(world: &World) {
    let holder = world.holder();
    let stuck = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_stuck = stuck.clone();
    let options = short().ttl(LONG_TTL).lock_delay(LONG_TTL);
    let options = options.renew_while(move || !is_stuck.load(std::sync::atomic::Ordering::SeqCst));
    let lease = holder.manager.lease_with("job", options).expect("a valid name");
    let before = lease.acquire(Wait::No).await.expect("the lease is free");
    stuck.store(true, std::sync::atomic::Ordering::SeqCst);
    // This renewal bypasses the manager, so the lease expires at the cluster after the holder's deadline.
    let renew = tenure::api::Renew::new(lease.holder().clone(), before);
    until("it is lost", || {
        matches!(lease.state(), HoldState::Lost { .. }) || lease.remaining().is_some_and(|left| left < LONG_TTL / 2)
    })
    .await;
    world.remote().renew(lease.name(), &renew).await.expect("the lease is held");
    until("it is lost", || matches!(lease.state(), HoldState::Lost { why: Loss::Stalled, .. })).await;
    assert_eq!(
        world.remote().get(lease.name()).await.expect("the cluster answers").token,
        before,
        "the cluster still counts the lease as held"
    );
    let after =
        lease.acquire(Wait::No).await.expect("the manager released the old token first, so no lock delay applies");
    assert!(after > before, "{after} {before}");
}

async fn release_by_another_client_is_a_loss(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short().ttl(LONG_TTL)).expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let release = tenure::api::Release::new(lease.holder().clone(), token);
    assert!(world.remote().release(lease.name(), &release).await.expect("the cluster answers").released);
    until("the next renewal reports the loss", || !lease.is_held()).await;
    assert_eq!(lease.state(), HoldState::Lost { token, why: Loss::Released });
}

/// A holder whose clock is slower than the drift margin counts the lease as held for too long. Its next renewal reports
/// the expiry.
async fn expiry_reported_by_the_cluster_is_a_loss(world: &World) {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1));
    let holder = world.holder_with(ManagerOptions::new().clock(Arc::new(clock.clone())));
    let lease = holder.manager.lease_with("job", short()).expect("a valid name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    // The holder's clock stands still, so the holder sends no renewal.
    let other = world.holder();
    other.manager.lease("job").expect("a valid name").acquire(Wait::UpTo(LONG)).await.expect("the lease expires");
    assert!(lease.is_held(), "the holder's clock has not passed the deadline");
    clock.advance(TTL / 2);
    until("the renewal reports the loss", || !lease.is_held()).await;
    assert_eq!(lease.state(), HoldState::Lost { token, why: Loss::Expired });
}

async fn check_detects_a_revoke(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease("job").expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    world.remote().revoke(lease.name(), "").await.expect("the cluster answers");
    assert!(lease.is_held(), "the holder has no answer about the revoke yet");
    assert_eq!(lease.check().await, Ok(false));
    assert!(!lease.is_held());
    assert!(matches!(lease.state(), HoldState::Lost { why: Loss::Revoked, .. }));
}

async fn states_are_held_at_risk_lost(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short().ttl(LONG_TTL)).expect("a valid name");
    let mut states = lease.states();
    let seen = tokio::spawn(async move {
        let mut seen = vec![*states.borrow_and_update()];
        while !matches!(seen.last(), Some(HoldState::Lost { .. })) {
            states.changed().await.expect("the lease handle exists");
            seen.push(*states.borrow_and_update());
        }
        seen
    });
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    until(
        "the lease is renewed",
        || matches!(lease.state(), HoldState::Held { left: Some(left), .. } if left > LONG_TTL / 2),
    )
    .await;
    holder.switch.set(Line::Cut);
    let seen = tokio::time::timeout(LONG, seen).await.expect("the lease is lost").expect("the task did not panic");
    let kinds = |state: &HoldState| std::mem::discriminant(state);
    let mut order: Vec<_> = seen.iter().map(kinds).collect();
    order.dedup();
    let (left, why, failures) = (None, Loss::Unreachable, 1);
    let expected = [
        HoldState::Idle,
        HoldState::Held { token, left },
        HoldState::AtRisk { token, left, failures },
        HoldState::Lost { token, why },
    ];
    assert_eq!(order, expected.iter().map(kinds).collect::<Vec<_>>(), "{seen:?}");
    assert_eq!(seen.last(), Some(&HoldState::Lost { token, why }));
    let left = |state: &HoldState| if let HoldState::AtRisk { left, .. } = state { *left } else { None };
    let lefts: Vec<Duration> = seen.iter().filter_map(left).collect();
    assert!(lefts.is_sorted_by(|one, next| one >= next), "the remaining time rises: {lefts:?}");
}

async fn infinite_lease_lasts_until_revoked(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short().infinite()).expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    assert_eq!(lease.remaining(), Some(Duration::MAX));
    holder.switch.set(Line::Cut);
    tokio::time::sleep(TTL * 2).await;
    assert!(lease.is_held(), "an infinite lease has no deadline");
    let shown = world.remote().get(lease.name()).await.expect("the cluster answers");
    assert_eq!((shown.ttl_ms, shown.expires_in_ms), (TtlMs::Infinite, None));
    holder.switch.set(Line::Up);
    world.remote().revoke(lease.name(), "").await.expect("the cluster answers");
    assert_eq!(lease.check().await, Ok(false));
}

async fn work_stops_at_the_loss(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short()).expect("a valid name");
    let steps = Arc::new(Mutex::new(Vec::new()));
    let (taken, handle) = (steps.clone(), lease.clone());
    let working = tokio::spawn(async move {
        let work = handle.with(Wait::No, |lease| async move {
            loop {
                taken.lock().expect("not poisoned").push((Instant::now(), lease.is_held()));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        work.await
    });
    until("the work runs", || !steps.lock().expect("not poisoned").is_empty()).await;
    one.switch.set(Line::Cut);
    other.manager.lease("job").expect("a valid name").acquire(Wait::UpTo(LONG)).await.expect("the lease expires");
    let granted = Instant::now();
    let ended: Result<(), WithError> = working.await.expect("the task did not panic");
    assert_eq!(ended, Err(WithError::Lost(Loss::Unreachable)));
    let steps = steps.lock().expect("not poisoned");
    assert!(steps.iter().all(|(at, held)| *held && *at <= granted), "the work ran without the lease");
}

async fn stalled_work_loses_its_lease(world: &World) {
    let holder = world.holder();
    let goes_on = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let asked = goes_on.clone();
    let options = short().renew_while(move || asked.load(std::sync::atomic::Ordering::SeqCst));
    let lease = holder.manager.lease_with("job", options).expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    tokio::time::sleep(TTL * 2).await;
    assert!(lease.is_held());
    goes_on.store(false, std::sync::atomic::Ordering::SeqCst);
    let begun = Instant::now();
    until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
    assert!(matches!(lease.state(), HoldState::Lost { why: Loss::Stalled, .. }), "{:?}", lease.state());
    assert!(begun.elapsed() < TTL + Duration::from_millis(500), "{:?}", begun.elapsed());
}

async fn longest_hold_ends_the_lease(world: &World) {
    let holder = world.holder();
    let longest = TTL * 2;
    let lease = holder.manager.lease_with("job", short().longest_hold(longest)).expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    let begun = Instant::now();
    until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
    assert!(matches!(lease.state(), HoldState::Lost { why: Loss::HeldLongest, .. }), "{:?}", lease.state());
    assert!((TTL..longest + Duration::from_millis(150)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn grace_begins_before_the_deadline(world: &World) {
    let holder = world.holder();
    let grace = LONG_TTL / 3;
    let lease = holder.manager.lease_with("job", short().ttl(LONG_TTL).grace(grace)).expect("a valid name");
    lease.acquire(Wait::No).await.expect("the lease is free");
    holder.switch.set(Line::Cut);
    let (stopping, ended) = (lease.stopping(), lease.ended());
    tokio::time::timeout(LONG, stopping.cancelled()).await.expect("the renewals stop");
    let left = lease.remaining().expect("the lease is still held");
    assert!(left <= grace && left > grace / 3, "{left:?}");
    assert!(!ended.is_cancelled() && matches!(lease.state(), HoldState::Ending { why: Loss::Unreachable, .. }));
    holder.switch.set(Line::Up);
    tokio::time::timeout(LONG, ended.cancelled()).await.expect("the manager does not resume the renewals");
    assert!(matches!(lease.state(), HoldState::Lost { why: Loss::Unreachable, .. }));
}

/// A clock on Tokio's time, which a test can pause. It starts at 100 s.
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn elapsed(&self) -> Duration {
        self.0.elapsed() + Duration::from_secs(100)
    }

    fn suspended(&self) -> Suspended {
        Suspended::default()
    }

    fn wall_ms(&self) -> u64 {
        0
    }
}

/// Requests hang, so a renewal can be in flight at any moment, also when the grace begins and at the deadline.
#[tokio::test(start_paused = true)]
async fn hanging_renewals_do_not_change_the_loss() {
    let second = Duration::from_secs(1);
    let (ttl, grace, deadline) = (60 * second, 10 * second, Duration::from_millis(59_400));
    for round in 0..20 {
        let switch = Switch::new(FakeCluster::new());
        let begun = Instant::now();
        let options = ManagerOptions::new().clock(Arc::new(PausedClock(begun)));
        let manager = LeaseManager::with_options(switch.clone(), options).expect("valid options");
        let with_grace = LeaseOptions::new().ttl(ttl).grace(if round % 2 == 0 { grace } else { Duration::ZERO });
        let lease = manager.lease_with("job", with_grace).expect("a valid name");
        lease.acquire(Wait::No).await.expect("the lease is free");
        switch.set(Line::Cut);
        let mut states = lease.states();
        let mut is_ending = false;
        while !matches!(*states.borrow_and_update(), HoldState::Lost { .. }) {
            let changed = tokio::time::timeout(2 * ttl, states.changed()).await;
            changed.expect("the lease is lost in time").expect("the manager exists");
            is_ending |= matches!(*states.borrow(), HoldState::Ending { .. });
        }
        assert!(matches!(lease.state(), HoldState::Lost { why: Loss::Unreachable, .. }), "{:?}", lease.state());
        let lost = begun.elapsed();
        assert!((deadline..deadline + second / 100).contains(&lost), "round {round}: lost after {lost:?}");
        assert_eq!(is_ending, round % 2 == 0, "round {round}");
    }
}
