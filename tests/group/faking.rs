//! Elections, groups and semaphores on the fake cluster.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::api::Code;
use tenure::client::{CallError, Coordinator, LeaseManager, LeaseOptions, Loss, ManagerOptions, RetryBudget, Wait};
use tenure::election::{Candidacy, ESTABLISHED_KEY, Election, ElectionOptions, EstablishError, ResignError};
use tenure::group::{Group, GroupError, MemberOptions};
use tenure::semaphore::Semaphore;
use tenure::testing::{FakeCluster, Line, Switch};
use tenure::types::{InvalidValue, Metadata};

use crate::cluster::{LONG_TTL, NEVER, SOON, until};

pub fn candidate(manager: &LeaseManager, options: ElectionOptions) -> Election {
    Election::new(manager, "leader", options).expect("the options are valid")
}

fn code(error: &CallError) -> Option<Code> {
    match error {
        CallError::Refused(problem) => Some(problem.code),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_campaign_that_its_budget_holds_back() {
    let manager = FakeCluster::new().manager();
    let options = ElectionOptions::new().budget(NonZeroU32::MIN, NEVER);
    let election = candidate(&manager, options);
    election.campaign().await.expect("elected").resign().await.expect("an answer");
    let campaign = tokio::spawn({
        let election = election.clone();
        async move { election.campaign().await.map(drop) }
    });
    let mut candidacy = election.candidacy();
    candidacy.wait_for(|now| matches!(now, Candidacy::HeldBack { .. })).await.expect("the candidate exists");
    assert!(manager.shutdown().await.is_empty());
    let ended = tokio::time::timeout(NEVER / 2, campaign).await.expect("the campaign has ended").expect("no panic");
    assert_eq!(ended, Err(CallError::ShutDown));
}

/// Both campaigns begin before the first election.
#[tokio::test(start_paused = true)]
async fn clones_of_a_candidate_share_its_budget() {
    let options = ElectionOptions::new().budget(NonZeroU32::MIN, NEVER);
    let election = candidate(&FakeCluster::new().manager(), options);
    let campaign = || {
        let clone = election.clone();
        tokio::spawn(async move { clone.campaign().await })
    };
    let (first, second) = (campaign(), campaign());
    let elected = tokio::time::timeout(SOON, first).await.expect("the lease is free").expect("no panic");
    let leadership = elected.expect("elected");
    let mut candidacy = election.candidacy();
    let held_back = candidacy.wait_for(|now| matches!(now, Candidacy::HeldBack { .. }));
    tokio::time::timeout(SOON, held_back).await.expect("the budget is used up").expect("the candidate exists");
    assert_eq!(leadership.resign().await, Ok(true));
    drop(leadership);
    let again = tokio::time::timeout(LONG_TTL * 2, second).await;
    assert!(again.is_err(), "elected again within the window: {again:?}");
}

/// The lease is held during the test.
#[tokio::test(start_paused = true)]
async fn candidate_rejoins_the_queue_at_its_end_after_60_s() {
    let cluster = FakeCluster::new();
    cluster.mark_held_elsewhere("leader");
    let (manager, other) = (cluster.manager(), cluster.manager().lease("leader").expect("a name"));
    let queue = async || {
        let asked = cluster.explain(other.name().clone(), manager.holder().clone(), RetryBudget::within(SOON)).await;
        let explained = asked.expect("an answer");
        (explained.next.map(|first| first.holder), explained.waiters)
    };
    let seconds_pass = async |seconds: u32| {
        for _ in 0..seconds {
            cluster.clock().advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let election = candidate(&manager, ElectionOptions::new());
    let campaign = tokio::spawn(async move { election.campaign().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let longer = other.clone();
    let waiting = tokio::spawn(async move { longer.acquire(Wait::UpTo(NEVER)).await });
    seconds_pass(59).await;
    assert_eq!(queue().await, (Some(manager.holder().to_string()), 2), "after 59 s");
    seconds_pass(3).await;
    assert_eq!(queue().await, (Some(other.holder().to_string()), 2), "after 62 s");
    assert!(!campaign.is_finished() && !waiting.is_finished());
}

#[tokio::test(start_paused = true)]
async fn resignation_waits_for_the_work_for_its_drain_time() {
    let cluster = FakeCluster::new();
    let options = ElectionOptions::new().drain(Duration::from_millis(50));
    let leadership = candidate(&cluster.manager(), options).campaign().await.expect("elected");
    leadership.before_resign(std::future::pending::<()>).detach();
    let began = tokio::time::Instant::now();
    let refused = leadership.resign().await;
    assert!(matches!(&refused, Err(ResignError::Call(error)) if code(error) == Some(Code::NotDrained)), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(cluster.manager().try_acquire("leader").await.expect("an answer").is_none(), "the work goes on");
}

#[tokio::test(start_paused = true)]
async fn resignation_comes_after_the_end_of_the_work() {
    let cluster = FakeCluster::new();
    let leadership = Arc::new(candidate(&cluster.manager(), ElectionOptions::new()).campaign().await.expect("elected"));
    let ended = Arc::new(AtomicBool::new(false));
    let (done, leader) = (ended.clone(), Arc::downgrade(&leadership));
    let work = leadership.before_resign(move || {
        let (done, leader) = (done.clone(), leader.clone());
        async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let still_leads = leader.upgrade().is_some_and(|leadership| leadership.is_leader());
            done.store(still_leads, Ordering::SeqCst);
        }
    });
    let other = cluster.manager();
    let successor = async {
        let _leadership = candidate(&other, ElectionOptions::new()).campaign().await.expect("elected");
        ended.load(Ordering::SeqCst)
    };
    let (resigned, work_had_ended) = tokio::join!(leadership.resign(), successor);
    assert_eq!((resigned, work_had_ended), (Ok(true), true), "the work ended while its leader led");
    drop(work);
}

/// The candidate leaves in the pause after a claim that was granted and not answered.
#[tokio::test(start_paused = true)]
async fn dropped_campaign_resolves_a_claim_without_an_answer() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let within = Duration::from_secs(10);
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new().operation_timeout(within));
    let election = candidate(&manager, ElectionOptions::new());
    switch.set(Line::Deaf);
    let mut campaign = Box::pin(election.campaign());
    // A claim waits for 60 s.
    let unanswered = within + Duration::from_millis(60_100);
    assert!(tokio::time::timeout(unanswered, &mut campaign).await.is_err(), "its claim has no answer");
    switch.set(Line::Up);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut campaign).await.is_err(), "it pauses");
    let other = cluster.manager().lease("leader").expect("a name");
    assert!(other.acquire(Wait::No).await.is_err(), "the claim was granted");
    drop(campaign);
    let freed = async {
        while other.acquire(Wait::No).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(within, freed).await.expect("the manager releases the lease");
}

/// The caller has no handle that could leave the group.
#[tokio::test(start_paused = true)]
async fn join_without_an_answer_leaves_the_group() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    let often = Duration::from_millis(10);
    let group = Group::watch(&cluster.manager(), "workers", often).await.expect("an answer");
    // The join waits for its lease, so that the reads before its claim are answered.
    cluster.mark_held_elsewhere("workers:a");
    let joining = tokio::spawn({
        let manager = manager.clone();
        async move { Group::join(&manager, "workers", MemberOptions::new("a").ttl(LONG_TTL)).await.map(drop) }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    switch.set(Line::Deaf);
    cluster.mark_free("workers:a");
    until("the claim is granted", || group.snapshot().all.len() == 1).await;
    switch.set(Line::Up);
    let joined = tokio::time::timeout(LONG_TTL * 2, joining).await.expect("the request times out").expect("no panic");
    assert!(matches!(joined, Err(GroupError::Call(CallError::Unknown { .. }))), "{joined:?}");
    until("the manager leaves the group", || group.snapshot().all.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn restarted_member_waits_for_the_longer_ttl_of_its_dead_lease() {
    let cluster = FakeCluster::new();
    let long = Duration::from_secs(60);
    let restarted = cluster.manager();
    let switch = Switch::new(cluster.clone());
    let crashed = cluster.manager_through(switch.clone(), ManagerOptions::new());
    let member = Group::join(&crashed, "workers", MemberOptions::new("a").ttl(long)).await.expect("the id is free");
    switch.set(Line::Cut);
    cluster.clock().advance(Duration::from_secs(1));
    let again = tokio::spawn(async move {
        let options = MemberOptions::new("a").ttl(Duration::from_secs(5));
        Group::join(&restarted, "workers", options).await.map(drop)
    });
    for _ in 0..70 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        cluster.clock().advance(Duration::from_secs(1));
    }
    let joined = tokio::time::timeout(long, again).await.expect("the dead lease has expired");
    assert_eq!(joined.expect("no panic"), Ok(()));
    drop(member);
}

#[tokio::test(start_paused = true)]
async fn cut_off_leader_has_its_grace_to_stop() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    let options = ElectionOptions::new().ttl(Duration::from_secs(60)).grace(Duration::from_secs(10));
    let leadership = candidate(&manager, options).campaign().await.expect("elected");
    let (stopping, lost) = (leadership.stopping(), leadership.lost());
    switch.set(Line::Cut);
    cluster.clock().advance(Duration::from_secs(50));
    until("the leader must stop", || stopping.is_cancelled()).await;
    assert!(leadership.is_leader() && !lost.is_cancelled());
    cluster.clock().advance(Duration::from_secs(10));
    until("the leadership is lost", || lost.is_cancelled()).await;
}

#[tokio::test(start_paused = true)]
async fn cut_off_permit_has_its_grace_to_stop() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    let options = LeaseOptions::new().ttl(Duration::from_secs(60)).grace(Duration::from_secs(10));
    let semaphore = Semaphore::new(&manager, "uploads", 1, options).expect("the options are valid");
    let permit = semaphore.acquire(Wait::No).await.expect("a permit is free");
    let (stopping, ended) = (permit.stopping(), permit.ended());
    switch.set(Line::Cut);
    cluster.clock().advance(Duration::from_secs(50));
    until("the work must stop", || stopping.is_cancelled()).await;
    assert!(permit.is_held() && !ended.is_cancelled());
    cluster.clock().advance(Duration::from_secs(10));
    until("the permit is lost", || ended.is_cancelled()).await;
}

#[tokio::test]
async fn lost_leader_is_not_established() {
    let cluster = FakeCluster::new();
    let leadership = candidate(&cluster.manager(), ElectionOptions::new()).campaign().await.expect("elected");
    leadership.establish(|_| async { Ok::<_, &str>(()) }).await.expect("published");
    assert!(leadership.is_established());
    cluster.lose("leader", Loss::Revoked);
    assert!(!leadership.is_established());
}

/// Another part of the program has an `Election` of its own, to observe.
#[tokio::test]
async fn candidate_keeps_its_options_beside_an_observer() {
    let manager = FakeCluster::new().manager();
    let metadata = Metadata::new([("address".to_owned(), "a:1".to_owned())].into()).expect("within its limits");
    let election = candidate(&manager, ElectionOptions::new().ttl(LONG_TTL * 2).metadata(metadata));
    let observing = candidate(&manager, ElectionOptions::new());
    let _leadership = election.campaign().await.expect("elected");
    let remaining = manager.lease("leader").expect("a name").remaining();
    assert!(remaining > Some(LONG_TTL), "{remaining:?}");
    let leader = observing.current().await.expect("an answer").leader.expect("there is a leader");
    assert_eq!(leader.metadata.get("address").map(String::as_str), Some("a:1"));
}

/// The cluster accepts the keys of the library from any client.
#[tokio::test]
async fn mark_of_another_leadership_establishes_no_leader() {
    let cluster = FakeCluster::new();
    let election = candidate(&cluster.manager(), ElectionOptions::new());
    let earlier = election.campaign().await.expect("elected");
    let mark = [(ESTABLISHED_KEY.to_owned(), earlier.token().to_string())];
    assert_eq!(earlier.resign().await, Ok(true));
    let metadata = Metadata::new(mark.into()).expect("within its limits");
    let options = LeaseOptions::new().metadata(metadata);
    let lease = cluster.manager().lease_with("leader", options).expect("a name");
    let token = lease.acquire(Wait::No).await.expect("the lease is free");
    let leader = election.current().await.expect("an answer").leader.expect("there is a leader");
    assert_eq!((leader.token, leader.is_established), (token, false));
}

/// The establishment has no event.
#[tokio::test(start_paused = true)]
async fn established_leader_is_seen_within_a_second_by_default() {
    let cluster = FakeCluster::new();
    let leadership = candidate(&cluster.manager(), ElectionOptions::new()).campaign().await.expect("elected");
    let mut observer = candidate(&cluster.manager(), ElectionOptions::new()).observe();
    let elected = observer.next().await.leader.expect("there is a leader");
    assert!(!elected.is_established);
    leadership.establish(|_| async { Ok::<_, &str>(()) }).await.expect("published");
    let seen = tokio::time::timeout(Duration::from_millis(1_100), observer.next()).await;
    assert!(seen.expect("the observer reads each second").leader.expect("there is a leader").is_established);
}

/// The change has no event.
#[tokio::test(start_paused = true)]
async fn readiness_is_seen_within_a_second_by_default() {
    let cluster = FakeCluster::new();
    let member = Group::join(&cluster.manager(), "workers", MemberOptions::new("a")).await.expect("the member joins");
    let other = Group::join(&cluster.manager(), "workers", MemberOptions::new("b")).await.expect("the member joins");
    // The events of the joins trigger no read after this time.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(other.snapshot().ready.len(), 2);
    member.set_ready(false).await.expect("an answer");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!((other.snapshot().ready.len(), other.snapshot().all.len()), (1, 2));
}

#[tokio::test]
async fn lock_delay_follows_a_revoked_leader() {
    let cluster = FakeCluster::new();
    let options = ElectionOptions::new().lock_delay(Duration::from_secs(20));
    let _leadership = candidate(&cluster.manager(), options).campaign().await.expect("elected");
    cluster.lose("leader", Loss::Revoked);
    let other = cluster.manager().lease("leader").expect("a name");
    let refused = other.acquire(Wait::No).await.expect_err("it is delayed");
    assert_eq!(code(&refused), Some(Code::LockDelay));
    cluster.clock().advance(Duration::from_secs(21));
    other.acquire(Wait::No).await.expect("the delay is over");
}

#[tokio::test(start_paused = true)]
async fn campaign_waits_while_a_resigned_leadership_exists() {
    let election = candidate(&FakeCluster::new().manager(), ElectionOptions::new());
    let leadership = election.campaign().await.expect("elected");
    assert_eq!(leadership.resign().await, Ok(true));
    let campaign = tokio::spawn({
        let election = election.clone();
        async move { election.campaign().await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!campaign.is_finished(), "a second leadership exists beside the first");
    drop(leadership);
    let elected = tokio::time::timeout(SOON, campaign).await.expect("the lease is free").expect("no panic");
    assert!(elected.expect("elected").is_leader());
}

#[tokio::test(start_paused = true)]
async fn candidate_waits_until_its_campaign_ends() {
    let cluster = FakeCluster::new();
    cluster.mark_held_elsewhere("leader");
    let manager = cluster.manager();
    let election = candidate(&manager, ElectionOptions::new());
    let candidacy = || *election.candidacy().borrow();
    assert_eq!(candidacy(), Candidacy::Idle);
    let mut campaign = Box::pin(election.campaign());
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut campaign).await.is_err(), "another candidate leads");
    assert_eq!(candidacy(), Candidacy::Waiting);
    drop(campaign);
    assert_eq!(candidacy(), Candidacy::Idle, "after a drop");
    cluster.mark_free("leader");
    let leadership = election.campaign().await.expect("elected");
    assert_eq!(candidacy(), Candidacy::Idle, "after the election");
    drop(leadership);
    assert!(manager.shutdown().await.is_empty());
    assert_eq!(election.campaign().await.map(drop), Err(CallError::ShutDown));
    assert_eq!(candidacy(), Candidacy::Idle, "after the shutdown");
}

/// Two parts of a program have a `Semaphore` each.
#[tokio::test]
async fn semaphores_of_one_manager_share_no_permit() {
    let manager = FakeCluster::new().manager();
    let semaphore = || Semaphore::new(&manager, "uploads", 2, LeaseOptions::new()).expect("the options are valid");
    let first = semaphore().acquire(Wait::No).await.expect("a permit is free");
    let second = semaphore().acquire(Wait::No).await.expect("another permit is free");
    assert!(second.token() > first.token(), "{second:?} after {first:?}");
}

#[tokio::test(start_paused = true)]
async fn campaign_goes_on_after_an_unknown_outcome() {
    let cluster = FakeCluster::new();
    cluster.unknown("leader");
    let election = candidate(&cluster.manager(), ElectionOptions::new());
    let campaign = tokio::spawn(async move { election.campaign().await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!campaign.is_finished());
    cluster.mark_free("leader");
    assert!(campaign.await.expect("no panic").expect("elected").is_leader());
}

#[tokio::test]
async fn resignation_without_an_answer_can_be_repeated() {
    let cluster = FakeCluster::new();
    let leadership = candidate(&cluster.manager(), ElectionOptions::new()).campaign().await.expect("elected");
    cluster.unknown("leader");
    let unknown = leadership.resign().await;
    assert!(matches!(unknown, Err(ResignError::Call(CallError::Unknown { .. }))), "{unknown:?}");
    cluster.mark_free("leader");
    assert_eq!((leadership.resign().await, leadership.resign().await), (Ok(true), Ok(false)));
    assert!(cluster.manager().try_acquire("leader").await.expect("an answer").is_some());
}

#[tokio::test]
async fn keys_of_the_library_are_refused() {
    let manager = FakeCluster::new().manager();
    let metadata = Metadata::new([("tenure.x".to_owned(), String::new())].into()).expect("within its limits");
    let refused = Election::new(&manager, "leader", ElectionOptions::new().metadata(metadata.clone())).map(drop);
    assert_eq!(refused, Err(InvalidValue::ReservedKey("tenure.x".to_owned())));
    let refused = Group::join(&manager, "workers", MemberOptions::new("a").metadata(metadata)).await.map(drop);
    assert_eq!(refused, Err(GroupError::Invalid(InvalidValue::ReservedKey("tenure.x".to_owned()))));
}

#[tokio::test]
async fn dropped_group_ends_its_task() {
    let manager = FakeCluster::new().manager();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let group = Group::watch(&manager, "workers", NEVER).await.expect("an answer");
    assert!(tasks() > before);
    drop(group);
    until("the task ends", || tasks() == before).await;
}

#[tokio::test(start_paused = true)]
async fn closed_group_has_ended_its_task() {
    let manager = FakeCluster::new().manager();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let group = Group::watch(&manager, "workers", NEVER).await.expect("an answer");
    assert!(tasks() > before);
    group.close().await;
    assert_eq!(tasks(), before);
    let options = MemberOptions::new("a").refresh(NEVER);
    let member = Group::join(&manager, "workers", options).await.expect("the member joins");
    // The tasks of the requests end.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let joined = tasks();
    assert_eq!(member.leave().await, Ok(true));
    assert!(tasks() < joined, "{} tasks of {joined}", tasks());
}

/// A lease of the group keeps its list of members.
#[tokio::test(start_paused = true)]
async fn changes_end_with_their_group() {
    let manager = FakeCluster::new().manager();
    for closes in [true, false] {
        let group = Group::watch(&manager, "workers", NEVER).await.expect("an answer");
        let mut changes = group.changes();
        let lease = group.lease("shard", LeaseOptions::new()).expect("a name");
        match closes {
            true => group.close().await,
            false => drop(group),
        }
        let ended = tokio::time::timeout(Duration::from_secs(1), changes.next()).await;
        assert_eq!(ended, Ok(None), "closed: {closes}");
        assert!(!lease.should_hold());
    }
}

/// The clock of the fake cluster stands still.
#[tokio::test]
async fn refresh_shows_a_member_that_joined_at_the_same_time() {
    let cluster = FakeCluster::new();
    let group = Group::watch(&cluster.manager(), "workers", NEVER).await.expect("an answer");
    let member = Group::join(&cluster.manager(), "workers", MemberOptions::new("a")).await.expect("the member joins");
    group.refresh().await.expect("an answer");
    assert_eq!((group.snapshot().all.len(), member.snapshot().all.len()), (1, 1));
}

#[tokio::test]
async fn live_member_keeps_its_token_when_it_rejoins() {
    let manager = FakeCluster::new().manager();
    let mut member = Group::join(&manager, "workers", MemberOptions::new("a")).await.expect("the member joins");
    let lost = member.lost();
    let token = member.snapshot().me.expect("there is a member").token;
    member.rejoin().await.expect("it is a member");
    assert_eq!(member.snapshot().me.expect("there is a member").token, token);
    assert!(member.is_member() && !lost.is_cancelled());
}

/// The list of members still contains the member: no read ran since the loss.
#[tokio::test(start_paused = true)]
async fn member_owns_no_names_from_the_moment_of_its_loss() {
    let (cluster, ttl) = (FakeCluster::new(), Duration::from_secs(60));
    let options = MemberOptions::new("a").ttl(ttl).refresh(NEVER);
    let mut member = Group::join(&cluster.manager(), "workers", options).await.expect("the member joins");
    let lease = member.lease("shard", LeaseOptions::new()).expect("a name");
    for expires in [false, true] {
        assert!(lease.should_hold(), "it is the only member");
        match expires {
            true => cluster.clock().advance(ttl),
            false => cluster.lose("workers:a", Loss::Revoked),
        }
        assert!(!lease.should_hold(), "expires: {expires}");
        let refused = lease.acquire(Wait::No).await.expect_err("the name belongs to no member");
        assert_eq!(code(&refused), Some(Code::ShouldNotHold), "expires: {expires}");
        member.rejoin().await.expect("the member joins again");
    }
    assert!(lease.should_hold());
}

/// The manager has not seen the deadline yet.
#[tokio::test(start_paused = true)]
async fn change_after_the_deadline_names_the_reason_of_the_loss() {
    let cluster = FakeCluster::new();
    let options = MemberOptions::new("a").ttl(LONG_TTL);
    let member = Group::join(&cluster.manager(), "workers", options).await.expect("the member joins");
    cluster.clock().advance(LONG_TTL);
    let lost = member.set_ready(false).await;
    assert!(matches!(lost, Err(GroupError::Lost(Loss::Suspended | Loss::Unreachable))), "{lost:?}");
    let options = ElectionOptions::new().ttl(LONG_TTL);
    let leadership = candidate(&cluster.manager(), options).campaign().await.expect("elected");
    let lost = leadership
        .establish(|_| async {
            cluster.clock().advance(LONG_TTL);
            Ok::<_, &str>(())
        })
        .await;
    assert!(matches!(lost, Err(EstablishError::Lost(Loss::Suspended | Loss::Unreachable))), "{lost:?}");
}

/// The hand-over is refused a second later: no candidate waits.
#[tokio::test(start_paused = true)]
async fn establishment_during_a_refused_hand_over_is_published() {
    let options = ElectionOptions::new().ttl(LONG_TTL);
    let leadership = candidate(&FakeCluster::new().manager(), options).campaign().await.expect("elected");
    let _slow = leadership.before_resign(|| tokio::time::sleep(Duration::from_secs(1)));
    let established = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        leadership.establish(|_| async { Ok::<_, &str>(()) }).await
    };
    let (handed_over, established) = tokio::join!(leadership.hand_over(None), established);
    assert!(handed_over.is_err(), "{handed_over:?}");
    assert_eq!(established, Ok(()));
    assert!(leadership.is_established());
}

/// The manager refuses the second guard itself.
#[tokio::test(start_paused = true)]
async fn id_of_a_member_of_the_same_process_is_taken() {
    let manager = FakeCluster::new().manager();
    let options = || MemberOptions::new("a").ttl(LONG_TTL);
    let member = Group::join(&manager, "workers", options()).await.expect("the id is free");
    let twin = Group::join(&manager, "workers", options()).await.map(drop);
    assert!(matches!(&twin, Err(GroupError::IdTaken { id, .. }) if id == "a"), "{twin:?}");
    assert!(member.is_member());
}

#[tokio::test]
async fn minimum_hold_binds_no_lost_leader() {
    let cluster = FakeCluster::new();
    let options = ElectionOptions::new().minimum_hold(LONG_TTL);
    let leadership = candidate(&cluster.manager(), options).campaign().await.expect("elected");
    cluster.lose("leader", Loss::Revoked);
    assert_eq!((leadership.resign().await, leadership.hand_over(None).await), (Ok(false), Ok(false)));
}

#[tokio::test]
async fn failed_change_of_readiness_is_not_remembered() {
    let cluster = FakeCluster::new();
    let options = MemberOptions::new("a").ready(false);
    let mut member = Group::join(&cluster.manager(), "workers", options).await.expect("the member joins");
    cluster.lose("workers:a", Loss::Revoked);
    assert_eq!(member.set_ready(true).await, Err(GroupError::Lost(Loss::Revoked)));
    member.rejoin().await.expect("the member joins again");
    assert!(!member.snapshot().me.expect("there is a member").is_ready);
}
