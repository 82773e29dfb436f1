//! Losing a lease: known in time, told once, with the reason.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::LeaseManager;
use tenure::client::{HoldState, LeaseOptions, Loss, ManagerOptions, Wait, WithError};
use tenure::clock::{Clock, Suspended};
use tenure::testing::{FakeCluster, Line, ManualClock, Switch};
use tokio::time::Instant;

use crate::steady::safety;
use crate::world::{LONG, TTL, World, over_both_ways, short, until};

over_both_ways!(
    a_partition_with_both_sides_renewing_has_one_holder_at_a_time,
    a_crashed_holders_lease_is_free_after_its_ttl,
    a_revoke_is_a_loss_with_its_reason,
    whoever_lost_it_by_its_own_clock_gets_a_new_token,
    a_release_by_another_handle_is_a_loss,
    an_expiry_that_the_cluster_reports_is_a_loss,
    check_finds_out_what_nobody_told,
    the_states_are_held_at_risk_lost,
    an_infinite_lease_lasts_and_can_be_revoked,
    work_stops_at_the_loss,
    work_that_makes_no_progress_is_not_kept,
    nothing_is_held_longer_than_it_may_be,
    the_grace_comes_before_the_deadline,
);

async fn a_partition_with_both_sides_renewing_has_one_holder_at_a_time(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short()).expect("a name");
    let before = lease.acquire(Wait::No).await.expect("it is free");
    let lost = Arc::new(Mutex::new(None));
    let seen = lost.clone();
    lease.on_lost(move |why| *seen.lock().expect("plain") = Some((why, Instant::now()))).detach();
    one.switch.set(Line::Cut);
    let next = other.manager.lease_with("job", short()).expect("a name");
    let after = next.acquire(Wait::UpTo(LONG)).await.expect("the other side cannot renew");
    let granted = Instant::now();
    safety!(!lease.is_held(), "the holder that is cut off did not stop first");
    safety!(after > before, "token {after} after {before}");
    one.switch.set(Line::Up);
    until("it was told", || lost.lock().expect("plain").is_some()).await;
    let (why, when) = lost.lock().expect("plain").expect("it was told");
    assert_eq!(why, Loss::Unreachable);
    assert!(when <= granted + Duration::from_millis(200), "{:?} later", when - granted);
    tokio::time::sleep(TTL * 2).await;
    safety!(!lease.is_held(), "a renewal of before revived the lease");
    assert!(next.is_held());
    assert_eq!(lease.state(), HoldState::Lost { token: before, why: Loss::Unreachable });
}

async fn a_crashed_holders_lease_is_free_after_its_ttl(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let begun = Instant::now();
    one.manager.lease_with("job", short()).expect("a name").acquire(Wait::No).await.expect("it is free");
    one.switch.set(Line::Cut);
    let next = other.manager.lease("job").expect("a name").acquire(Wait::UpTo(LONG)).await;
    assert!(next.is_ok(), "{next:?}");
    assert!(begun.elapsed() >= TTL, "never before: {:?}", begun.elapsed());
    assert!(begun.elapsed() < TTL + Duration::from_secs(2), "and not long after: {:?}", begun.elapsed());
}

async fn a_revoke_is_a_loss_with_its_reason(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    let gone = lease.gone();
    world.remote().revoke(lease.name(), "maintenance").await.expect("an answer");
    tokio::time::timeout(TTL, gone.cancelled()).await.expect("the next renewal tells");
    assert_eq!(lease.state(), HoldState::Lost { token, why: Loss::Revoked });
}

/// The cluster still counts it as held, by the same holder: it would give the same token again, and what the work of
/// before still writes would pass for the work of now.
async fn whoever_lost_it_by_its_own_clock_gets_a_new_token(world: &World) {
    let holder = world.holder();
    let stuck = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_stuck = stuck.clone();
    let options = short().renew_while(move || !is_stuck.load(std::sync::atomic::Ordering::SeqCst)).lock_delay(TTL);
    let lease = holder.manager.lease_with("job", options).expect("a name");
    let before = lease.acquire(Wait::No).await.expect("it is free");
    stuck.store(true, std::sync::atomic::Ordering::SeqCst);
    // The last renewal is the cluster's own: its time ends later than the holder's.
    let renew = tenure::api::Renew { holder: lease.holder().clone(), token: before, ttl_ms: None };
    until("it is lost", || {
        matches!(lease.state(), HoldState::Lost { .. }) || lease.remaining().is_some_and(|left| left < TTL / 9)
    })
    .await;
    world.remote().renew(lease.name(), &renew).await.expect("it is held");
    until("it is lost", || matches!(lease.state(), HoldState::Lost { why: Loss::Stalled, .. })).await;
    assert_eq!(world.remote().get(lease.name()).await.expect("an answer").token, before, "the cluster has it as held");
    let after = lease.acquire(Wait::No).await.expect("it was given back first, and so without a delay");
    assert!(after > before, "{after} {before}");
}

async fn a_release_by_another_handle_is_a_loss(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    let release = tenure::api::Release { holder: lease.holder().clone(), token };
    assert!(world.remote().release(lease.name(), &release).await.expect("an answer").released);
    until("the next renewal tells", || !lease.is_held()).await;
    assert_eq!(lease.state(), HoldState::Lost { token, why: Loss::Released });
}

/// A holder whose clock is slow beyond any drift believes for too long, and is told at its next renewal.
async fn an_expiry_that_the_cluster_reports_is_a_loss(world: &World) {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1));
    let holder = world.holder_with(ManagerOptions::new().clock(Arc::new(clock.clone())));
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let token = lease.acquire(Wait::No).await.expect("it is free");
    // Its clock stands still, and so it renews nothing.
    let other = world.holder();
    other.manager.lease("job").expect("a name").acquire(Wait::UpTo(LONG)).await.expect("it expires");
    assert!(lease.is_held(), "by its own clock");
    clock.advance(TTL / 2);
    until("the renewal tells", || !lease.is_held()).await;
    assert_eq!(lease.state(), HoldState::Lost { token, why: Loss::Expired });
}

async fn check_finds_out_what_nobody_told(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease("job").expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    world.remote().revoke(lease.name(), "").await.expect("an answer");
    assert!(lease.is_held(), "nobody told it");
    assert_eq!(lease.check().await, Ok(false));
    assert!(!lease.is_held());
    assert!(matches!(lease.state(), HoldState::Lost { why: Loss::Revoked, .. }));
}

async fn the_states_are_held_at_risk_lost(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short()).expect("a name");
    let mut states = lease.states();
    let seen = tokio::spawn(async move {
        let mut seen = vec![*states.borrow_and_update()];
        while !matches!(seen.last(), Some(HoldState::Lost { .. })) {
            states.changed().await.expect("the lease is there");
            seen.push(*states.borrow_and_update());
        }
        seen
    });
    let token = lease.acquire(Wait::No).await.expect("it is free");
    until("it was renewed", || matches!(lease.state(), HoldState::Held { left: Some(left), .. } if left > TTL / 2))
        .await;
    holder.switch.set(Line::Cut);
    let seen = tokio::time::timeout(LONG, seen).await.expect("it is lost").expect("nothing panics");
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
    assert!(lefts.is_sorted_by(|one, next| one >= next), "time runs out: {lefts:?}");
}

async fn an_infinite_lease_lasts_and_can_be_revoked(world: &World) {
    let holder = world.holder();
    let lease = holder.manager.lease_with("job", short().infinite()).expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    assert_eq!(lease.remaining(), Some(Duration::MAX));
    holder.switch.set(Line::Cut);
    tokio::time::sleep(TTL * 2).await;
    assert!(lease.is_held(), "no deadline passes");
    let shown = world.remote().get(lease.name()).await.expect("an answer");
    assert_eq!((shown.ttl_ms, shown.expires_in_ms), (None, None));
    holder.switch.set(Line::Up);
    world.remote().revoke(lease.name(), "").await.expect("an answer");
    assert_eq!(lease.check().await, Ok(false));
}

async fn work_stops_at_the_loss(world: &World) {
    let (one, other) = (world.holder(), world.holder());
    let lease = one.manager.lease_with("job", short()).expect("a name");
    let steps = Arc::new(Mutex::new(Vec::new()));
    let (taken, handle) = (steps.clone(), lease.clone());
    let working = tokio::spawn(async move {
        let work = handle.with(Wait::No, |lease| async move {
            loop {
                taken.lock().expect("plain").push((Instant::now(), lease.is_held()));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        work.await
    });
    until("it works", || !steps.lock().expect("plain").is_empty()).await;
    one.switch.set(Line::Cut);
    other.manager.lease("job").expect("a name").acquire(Wait::UpTo(LONG)).await.expect("it comes free");
    let granted = Instant::now();
    let ended: Result<(), WithError> = working.await.expect("nothing panics");
    assert_eq!(ended, Err(WithError::Lost(Loss::Unreachable)));
    let steps = steps.lock().expect("plain");
    assert!(steps.iter().all(|(at, held)| *held && *at <= granted), "no step without the lease");
}

async fn work_that_makes_no_progress_is_not_kept(world: &World) {
    let holder = world.holder();
    let goes_on = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let asked = goes_on.clone();
    let options = short().renew_while(move || asked.load(std::sync::atomic::Ordering::SeqCst));
    let lease = holder.manager.lease_with("job", options).expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    tokio::time::sleep(TTL * 2).await;
    assert!(lease.is_held());
    goes_on.store(false, std::sync::atomic::Ordering::SeqCst);
    let begun = Instant::now();
    until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
    assert!(matches!(lease.state(), HoldState::Lost { why: Loss::Stalled, .. }), "{:?}", lease.state());
    assert!(begun.elapsed() < TTL + Duration::from_millis(500), "{:?}", begun.elapsed());
}

async fn nothing_is_held_longer_than_it_may_be(world: &World) {
    let holder = world.holder();
    let longest = TTL * 2;
    let lease = holder.manager.lease_with("job", short().longest_hold(longest)).expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    let begun = Instant::now();
    until("it is lost", || matches!(lease.state(), HoldState::Lost { .. })).await;
    assert!(matches!(lease.state(), HoldState::Lost { why: Loss::HeldLongest, .. }), "{:?}", lease.state());
    assert!((TTL..longest + Duration::from_millis(150)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn the_grace_comes_before_the_deadline(world: &World) {
    let holder = world.holder();
    let grace = TTL / 3;
    let lease = holder.manager.lease_with("job", short().grace(grace)).expect("a name");
    lease.acquire(Wait::No).await.expect("it is free");
    holder.switch.set(Line::Cut);
    let (stopping, gone) = (lease.stopping(), lease.gone());
    tokio::time::timeout(LONG, stopping.cancelled()).await.expect("it gives up");
    let left = lease.remaining().expect("it is still held");
    assert!(left <= grace && left > grace / 3, "{left:?}");
    assert!(!gone.is_cancelled() && matches!(lease.state(), HoldState::Ending { why: Loss::Unreachable, .. }));
    holder.switch.set(Line::Up);
    tokio::time::timeout(LONG, gone.cancelled()).await.expect("what was given up is not taken up again");
    assert!(matches!(lease.state(), HoldState::Lost { why: Loss::Unreachable, .. }));
}

/// Follows tokio's time, which a test can pause, and starts at 100 s.
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

/// Requests hang, so a renewal can be under way at any moment, also when the grace begins and at the deadline.
#[tokio::test(start_paused = true)]
async fn hanging_renewals_change_neither_the_moment_nor_the_reason() {
    let second = Duration::from_secs(1);
    let (ttl, grace, deadline) = (60 * second, 10 * second, Duration::from_millis(59_400));
    for round in 0..20 {
        let switch = Switch::new(FakeCluster::new());
        let begun = Instant::now();
        let options = ManagerOptions::new().clock(Arc::new(PausedClock(begun)));
        let manager = LeaseManager::with_options(switch.clone(), options);
        let with_grace = LeaseOptions::new().ttl(ttl).grace(if round % 2 == 0 { grace } else { Duration::ZERO });
        let lease = manager.lease_with("job", with_grace).expect("a name");
        lease.acquire(Wait::No).await.expect("it is free");
        switch.set(Line::Cut);
        let mut states = lease.states();
        let mut is_ending = false;
        while !matches!(*states.borrow_and_update(), HoldState::Lost { .. }) {
            let changed = tokio::time::timeout(2 * ttl, states.changed()).await;
            changed.expect("it is lost in time").expect("the manager is there");
            is_ending |= matches!(*states.borrow(), HoldState::Ending { .. });
        }
        assert!(matches!(lease.state(), HoldState::Lost { why: Loss::Unreachable, .. }), "{:?}", lease.state());
        let lost = begun.elapsed();
        assert!((deadline..deadline + second / 100).contains(&lost), "round {round}: lost after {lost:?}");
        assert_eq!(is_ending, round % 2 == 0, "round {round}");
    }
}
