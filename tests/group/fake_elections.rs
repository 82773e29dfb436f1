//! Elections on the fake cluster: budgets, minimum times, observers and the mark of an established leader.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure::client::{CallError, LeaseOptions};
use tenure::election::{Candidacy, ElectionOptions, EstablishError, ResignError};
use tenure::group::{Group, GroupError, MemberOptions};
use tenure::testing::FakeCluster;
use tenure::types::Metadata;

use crate::cluster::{LONG_TTL, SOON};
use crate::faking::candidate;

const SECOND: Duration = Duration::from_secs(1);

/// A suspend advances the clock of the manager, and no timer of Tokio.
#[tokio::test(start_paused = true)]
async fn held_back_candidate_campaigns_when_its_window_ends() {
    let cluster = FakeCluster::new();
    let options = ElectionOptions::new().budget(NonZeroU32::MIN, 600 * SECOND);
    let election = candidate(&cluster.manager(), options);
    election.campaign().await.expect("elected").resign().await.expect("an answer");
    cluster.clock().advance(100 * SECOND);
    let mut candidacy = election.candidacy();
    let campaign = tokio::spawn(async move { election.campaign().await });
    let is_held_back = |now: &Candidacy| matches!(now, Candidacy::HeldBack { .. });
    let waited = tokio::time::timeout(SOON, candidacy.wait_for(is_held_back)).await.expect("the budget is used up");
    assert_eq!(*waited.expect("the candidate exists"), Candidacy::HeldBack { left: 500 * SECOND });
    cluster.clock().advance(499 * SECOND);
    tokio::time::sleep(10 * SECOND).await;
    assert!(!campaign.is_finished(), "a second of the window is left");
    cluster.clock().advance(SECOND);
    let elected = tokio::time::timeout(SECOND, campaign).await.expect("the window is over").expect("no panic");
    assert!(elected.expect("elected").is_leader());
}

#[tokio::test(start_paused = true)]
async fn observer_is_silent_while_the_leader_stays() {
    let election = candidate(&FakeCluster::new().manager(), ElectionOptions::new());
    let leadership = election.campaign().await.expect("elected");
    let mut observer = election.observe();
    let seen = tokio::time::timeout(SOON, observer.next()).await.expect("there is a leader");
    assert_eq!(seen.leader.map(|leader| leader.token), Some(leadership.token()));
    let read = observer.as_of();
    let repeated = tokio::time::timeout(10 * SECOND, observer.next()).await;
    assert!(repeated.is_err(), "the leader is the same: {repeated:?}");
    assert!(observer.as_of() > read, "the observer has read again");
}

#[tokio::test]
async fn early_resignation_names_the_rest_of_the_minimum_time() {
    let cluster = FakeCluster::new();
    let options = ElectionOptions::new().ttl(120 * SECOND).minimum_hold(60 * SECOND);
    let leadership = candidate(&cluster.manager(), options).campaign().await.expect("elected");
    cluster.clock().advance(20 * SECOND);
    let early: Result<bool, ResignError> = Err(ResignError::TooEarly { left: 40 * SECOND });
    assert_eq!((leadership.resign().await, leadership.hand_over(None).await), (early.clone(), early));
    cluster.clock().advance(40 * SECOND);
    let refused = leadership.hand_over(None).await;
    assert!(matches!(refused, Err(ResignError::Call(_))), "no candidate waits: {refused:?}");
    assert_eq!(leadership.resign().await, Ok(true));
}

#[tokio::test]
async fn change_of_metadata_without_an_answer_is_not_published() {
    let cluster = FakeCluster::new();
    let election = candidate(&cluster.manager(), ElectionOptions::new());
    let leadership = election.campaign().await.expect("elected");
    let establish = async || leadership.establish(|_| async { Ok::<_, &str>(()) }).await;
    let current = async || election.current().await.expect("an answer").leader.expect("there is a leader");
    cluster.unknown("leader");
    let unknown = establish().await;
    assert!(matches!(unknown, Err(EstablishError::NotPublished(CallError::Unknown { .. }))), "{unknown:?}");
    cluster.mark_free("leader");
    assert!(!leadership.is_established() && !current().await.is_established);
    assert_eq!(establish().await, Ok(()));
    assert!(leadership.is_established() && current().await.is_established);
    let options = MemberOptions::new("a").ready(false);
    let member = Group::join(&cluster.manager(), "workers", options).await.expect("the member joins");
    cluster.unknown("workers:a");
    let unknown = member.set_ready(true).await;
    assert!(matches!(unknown, Err(GroupError::Call(CallError::Unknown { .. }))), "{unknown:?}");
    cluster.mark_free("workers:a");
    member.refresh().await.expect("an answer");
    assert!(!member.snapshot().me.expect("there is a member").is_ready);
    assert_eq!(member.set_ready(true).await, Ok(()));
    assert!(member.snapshot().me.expect("there is a member").is_ready);
}

/// Another part of the program sets options for the lease while the candidate waits for the end of a leadership in this
/// process.
#[tokio::test(start_paused = true)]
async fn queued_candidate_keeps_its_options() {
    let manager = FakeCluster::new().manager();
    let leading = candidate(&manager, ElectionOptions::new()).campaign().await.expect("elected");
    let metadata = Metadata::new([("address".to_owned(), "b:1".to_owned())].into()).expect("within its limits");
    let election = candidate(&manager, ElectionOptions::new().metadata(metadata));
    let campaign = tokio::spawn({
        let election = election.clone();
        async move { election.campaign().await }
    });
    tokio::time::sleep(SECOND).await;
    manager.lease_with("leader", LeaseOptions::new().ttl(LONG_TTL)).expect("valid options");
    assert!(!campaign.is_finished(), "it waits");
    assert_eq!(leading.resign().await, Ok(true));
    drop(leading);
    let elected = tokio::time::timeout(SOON, campaign).await.expect("the lease is free").expect("no panic");
    let _leadership = elected.expect("elected");
    let leader = election.current().await.expect("an answer").leader.expect("there is a leader");
    assert_eq!(leader.metadata.get("address").map(String::as_str), Some("b:1"));
}
