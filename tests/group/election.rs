//! One leader at a time, seen as such.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tenure::api::Code;
use tenure::client::{CallError, Loss};
use tenure::election::{
    Candidacy, Election, ElectionOptions, EstablishError, LeaderView, Leadership, Observer, ResignError,
};
use tenure::types::{HolderId, Metadata};

use crate::cluster::{Cluster, NEVER, SOON, TTL, soon};
use crate::steady::{safety, steady};

steady!(
    of_two_candidates_one_leads,
    when_the_leader_dies_a_successor_with_a_higher_token_leads_after_the_ttl,
    after_a_resignation_the_successor_leads_at_once,
    leadership_is_handed_over_to_the_candidate_that_is_named,
    a_leader_is_established_only_after_its_resources_are_fenced,
    whoever_was_deposed_cannot_establish_itself_and_takes_nothing_from_the_next,
    an_observer_sees_leaders_in_the_order_of_their_tokens,
    an_observer_that_missed_events_tells_the_present_leader_and_no_earlier_one,
    an_observer_that_hears_nothing_looks_by_itself,
    a_leader_does_not_resign_before_its_minimum_hold_unless_forced,
    a_candidate_whose_budget_is_used_up_stays_out_of_the_queue_and_says_so,
    a_campaign_that_is_dropped_gives_up_its_place,
    a_campaign_outlives_an_outage_and_ends_when_its_manager_does,
    campaign_outlasts_each_refusal_that_waiting_mends,
);

fn options() -> ElectionOptions {
    ElectionOptions::new().ttl(TTL).refresh(NEVER)
}

impl Cluster {
    fn candidate(&self, holder: &str) -> Election {
        Election::new(&self.manager(holder), "leader", options()).expect("valid")
    }
}

/// Waits in the queue, and is known to be there.
async fn waiting(cluster: &Cluster, election: &Election, holder: &str) -> tokio::task::JoinHandle<Leadership> {
    let campaign = election.clone();
    let task = tokio::spawn(async move { campaign.campaign().await.expect("elected in the end") });
    soon(async {
        let name = election.name();
        while !cluster.remote().queue(name).await.expect("it answers").waiters.iter().any(|w| w.holder == holder) {}
    })
    .await;
    task
}

async fn leads(observer: &mut Observer, holder: &str) -> LeaderView {
    soon(async {
        loop {
            let view = observer.next().await;
            if view.leader.as_ref().is_some_and(|leader| leader.holder == holder) {
                return view;
            }
        }
    })
    .await
}

async fn of_two_candidates_one_leads() {
    let cluster = Cluster::start().await;
    let (a, b) = (cluster.candidate("a"), cluster.candidate("b"));
    let leadership = soon(a.campaign()).await.expect("elected");
    assert!(leadership.is_leader());
    let other = tokio::time::timeout(TTL * 2, b.campaign()).await;
    assert!(other.is_err(), "it waits for longer than the ttl, because the leader renews");
    assert!(leadership.is_leader());
    assert_eq!(b.current().await.expect("it answers").leader.expect("a leader").holder, "a");
}

async fn when_the_leader_dies_a_successor_with_a_higher_token_leads_after_the_ttl() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("a");
    let a = Election::new(&manager, "leader", options()).expect("valid");
    let first = soon(a.campaign()).await.expect("elected");
    let successor = waiting(&cluster, &cluster.candidate("b"), "b").await;
    faults.cut_off(true);
    let died = Instant::now();
    let lost = soon(first.while_leading(std::future::pending::<()>())).await;
    assert_eq!(lost, Err(Loss::Unreachable));
    let second = soon(successor).await.expect("it did not panic");
    safety!(!first.is_leader() && second.token() > first.token(), "{first:?} and then {second:?}");
    assert!(second.is_leader());
    assert!(died.elapsed() > TTL / 2, "the last renewal was at most about a third of the ttl ago");
    assert!(died.elapsed() < TTL + Duration::from_secs(5), "{:?}", died.elapsed());
}

async fn after_a_resignation_the_successor_leads_at_once() {
    let cluster = Cluster::start().await;
    let long = options().ttl(Duration::from_secs(600));
    let a = Election::new(&cluster.manager("a"), "leader", long).expect("valid");
    let first = soon(a.campaign()).await.expect("elected");
    let successor = waiting(&cluster, &cluster.candidate("b"), "b").await;
    assert_eq!(first.resign().await, Ok(true));
    assert!(!first.is_leader());
    let second = soon(successor).await.expect("it did not panic");
    safety!(second.token() > first.token(), "{second:?} after {first:?}");
    assert_eq!(first.resign().await, Ok(false), "nothing to give back");
}

async fn leadership_is_handed_over_to_the_candidate_that_is_named() {
    let cluster = Cluster::start().await;
    let first = soon(cluster.candidate("a").campaign()).await.expect("elected");
    let b = waiting(&cluster, &cluster.candidate("b"), "b").await;
    let c = waiting(&cluster, &cluster.candidate("c"), "c").await;
    let nobody = first.hand_over(Some(HolderId::new("nobody").expect("valid"))).await;
    assert!(matches!(nobody, Err(ResignError::Call(_))) && first.is_leader(), "{nobody:?}");
    assert_eq!(first.hand_over(Some(HolderId::new("c").expect("valid"))).await, Ok(true));
    let second = soon(c).await.expect("it did not panic");
    safety!(second.token() > first.token() && !first.is_leader(), "{first:?} and then {second:?}");
    assert!(second.is_leader());
    assert!(!b.is_finished());
    second.resign().await.expect("it answers");
    assert!(soon(b).await.expect("it did not panic").is_leader());
}

async fn a_leader_is_established_only_after_its_resources_are_fenced() {
    let cluster = Cluster::start().await;
    let metadata = Metadata::new([("address".to_owned(), "10.0.0.1".to_owned())].into()).expect("small");
    let options = options().metadata(metadata).refresh(Duration::from_millis(10));
    let election = Election::new(&cluster.manager("a"), "leader", options).expect("valid");
    let mut observer = election.observe();
    let leadership = soon(election.campaign()).await.expect("elected");
    let elected = leads(&mut observer, "a").await.leader.expect("a leader");
    assert!(!elected.is_established);
    let failed = leadership.establish(|_| async { Err::<(), _>("the database is down") }).await;
    assert_eq!(failed, Err(EstablishError::Fencing("the database is down")));
    assert!(!leadership.is_established() && leadership.is_leader());
    assert!(!election.current().await.expect("it answers").leader.expect("a leader").is_established);
    let fenced = leadership.establish(|token| async move { Ok::<_, &str>(token) }).await;
    assert_eq!(fenced, Ok(leadership.token()));
    let established = leads(&mut observer, "a").await.leader.expect("a leader");
    assert!(established.is_established && established.token == elected.token);
    assert_eq!(established.metadata["address"], "10.0.0.1");
    assert_eq!(established.metadata.len(), 1, "the library's own keys are not the user's");
    leadership.resign().await.expect("it answers");
    assert_eq!(soon(observer.next()).await.leader, None);
    let again = soon(cluster.candidate("b").campaign()).await.expect("elected");
    assert!(!leads(&mut observer, "b").await.leader.expect("a leader").is_established, "a mark is not inherited");
    drop(again);
}

async fn whoever_was_deposed_cannot_establish_itself_and_takes_nothing_from_the_next() {
    let cluster = Cluster::start().await;
    let a = cluster.candidate("a");
    let first = soon(a.campaign()).await.expect("elected");
    let successor = waiting(&cluster, &cluster.candidate("b"), "b").await;
    cluster.remote().revoke(a.name(), "a test").await.expect("it answers");
    let second = soon(successor).await.expect("it did not panic");
    // It has not heard of it yet, unless it renewed just now.
    let refused = first.establish(|_| async { Ok::<_, &str>(()) }).await;
    assert_eq!(refused, Err(EstablishError::Lost(Loss::Revoked)));
    safety!(!first.is_leader(), "{first:?} was revoked");
    assert!(second.is_leader());
    let leader = a.current().await.expect("it answers").leader.expect("a leader");
    assert_eq!((leader.token, leader.is_established), (second.token(), false));
}

async fn an_observer_sees_leaders_in_the_order_of_their_tokens() {
    let cluster = Cluster::start().await;
    // A stream is opened after the first look, and what happens in between is not heard: the refresh makes it good.
    let often = options().refresh(Duration::from_millis(200));
    let mut observer = Election::new(&cluster.manager("watcher"), "leader", often).expect("valid").observe();
    assert_eq!(soon(observer.next()).await.leader, None);
    let mut seen = Vec::new();
    for holder in ["a", "b", "a", "c"] {
        let leadership = soon(cluster.candidate(holder).campaign()).await.expect("elected");
        let leader = leads(&mut observer, holder).await.leader.expect("a leader");
        assert_eq!(leader.token, leadership.token());
        seen.push(leader.token);
        leadership.resign().await.expect("it answers");
    }
    safety!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
}

async fn an_observer_that_missed_events_tells_the_present_leader_and_no_earlier_one() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("watcher");
    let mut observer = Election::new(&manager, "leader", options()).expect("valid").observe();
    let first = soon(cluster.candidate("a").campaign()).await.expect("elected");
    leads(&mut observer, "a").await;
    faults.stream_failed.store(true, Ordering::SeqCst);
    first.resign().await.expect("it answers");
    let second = soon(cluster.candidate("b").campaign()).await.expect("elected");
    let unheard = tokio::time::timeout(Duration::from_millis(300), observer.next()).await;
    assert!(unheard.is_err(), "the control: without events and before the refresh it hears nothing");
    faults.compacted.notify_one();
    let view = soon(observer.next()).await.leader.expect("a leader");
    assert_eq!((view.holder.as_str(), view.token), ("b", second.token()));
    // And it hears again what comes after that.
    faults.stream_failed.store(false, Ordering::SeqCst);
    faults.compacted.notify_one();
    let _ = tokio::time::timeout(Duration::from_millis(300), observer.next()).await;
    second.resign().await.expect("it answers");
    let third = soon(cluster.candidate("c").campaign()).await.expect("elected");
    assert_eq!(leads(&mut observer, "c").await.leader.expect("a leader").token, third.token());
}

async fn an_observer_that_hears_nothing_looks_by_itself() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("watcher");
    faults.stream_failed.store(true, Ordering::SeqCst);
    let often = options().refresh(Duration::from_millis(50));
    let mut observer = Election::new(&manager, "leader", often).expect("valid").observe();
    assert_eq!(soon(observer.next()).await.leader, None);
    let _leadership = soon(cluster.candidate("a").campaign()).await.expect("elected");
    leads(&mut observer, "a").await;
    faults.cut_off(true);
    let before = observer.as_of();
    assert!(tokio::time::timeout(TTL, observer.next()).await.is_err(), "cut off, it tells nothing");
    assert!(observer.as_of().expect("it had looked").elapsed() > TTL / 2 && observer.as_of() >= before);
}

async fn a_leader_does_not_resign_before_its_minimum_hold_unless_forced() {
    let cluster = Cluster::start().await;
    let options = options().minimum_hold(SOON);
    let election = Election::new(&cluster.manager("a"), "leader", options).expect("valid");
    let leadership = soon(election.campaign()).await.expect("elected");
    assert!(matches!(leadership.resign().await, Err(ResignError::TooEarly { left }) if left > SOON / 2));
    assert!(matches!(leadership.hand_over(None).await, Err(ResignError::TooEarly { .. })));
    assert!(leadership.is_leader());
    assert_eq!(leadership.resign_now().await, Ok(true));
    let short = ElectionOptions::new().ttl(TTL).minimum_hold(Duration::from_millis(1));
    let election = Election::new(&cluster.manager("b"), "leader", short).expect("valid");
    let leadership = soon(election.campaign()).await.expect("elected");
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(leadership.resign().await, Ok(true), "the time is over");
}

async fn a_candidate_whose_budget_is_used_up_stays_out_of_the_queue_and_says_so() {
    let cluster = Cluster::start().await;
    let window = Duration::from_secs(2);
    let options = options().budget(NonZeroU32::new(2).expect("not 0"), window);
    let election = Election::new(&cluster.manager("a"), "leader", options).expect("valid");
    let begun = Instant::now();
    for _ in 0..2 {
        soon(election.campaign()).await.expect("elected").resign().await.expect("it answers");
    }
    assert!(begun.elapsed() < window, "the first two are at once");
    let campaign = tokio::time::timeout(Duration::from_millis(100), election.campaign());
    let mut candidacy = election.candidacy();
    let said = async { candidacy.wait_for(|now| matches!(now, Candidacy::HeldBack { .. })).await.is_ok() };
    let (held_back, said) = soon(async { tokio::join!(campaign, said) }).await;
    assert!(said);
    assert!(held_back.is_err());
    assert_eq!(*election.candidacy().borrow(), Candidacy::Idle, "the campaign was dropped");
    let other = soon(cluster.candidate("b").campaign()).await.expect("nobody is before it");
    other.resign().await.expect("it answers");
    let third = soon(election.campaign()).await.expect("elected");
    assert!(begun.elapsed() >= window && third.is_leader());
}

async fn a_campaign_that_is_dropped_gives_up_its_place() {
    let cluster = Cluster::start().await;
    let first = soon(cluster.candidate("a").campaign()).await.expect("elected");
    let b = cluster.candidate("b");
    let campaign = waiting(&cluster, &b, "b").await;
    let c = waiting(&cluster, &cluster.candidate("c"), "c").await;
    campaign.abort();
    soon(async { while cluster.remote().queue(b.name()).await.expect("it answers").waiters.len() > 1 {} }).await;
    first.resign().await.expect("it answers");
    assert!(soon(c).await.expect("it did not panic").is_leader());
}

async fn a_campaign_outlives_an_outage_and_ends_when_its_manager_does() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("a");
    let election = Election::new(&manager, "leader", options()).expect("valid");
    faults.cut_off(true);
    let campaign = tokio::spawn({
        let election = election.clone();
        async move { election.campaign().await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    faults.cut_off(false);
    let leadership = soon(campaign).await.expect("it did not panic").expect("elected");
    manager.shutdown().await;
    assert!(!leadership.is_leader());
    drop(leadership);
    assert!(soon(election.campaign()).await.is_err());
}

async fn campaign_outlasts_each_refusal_that_waiting_mends() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("a");
    let election = Election::new(&manager, "leader", options()).expect("valid");
    let refuse = |code: Option<Code>| *faults.refusal.lock().expect("plain") = code;
    for code in [
        Code::Held,
        Code::LockDelay,
        Code::WaitTimeout,
        Code::WaitAbandoned,
        Code::QueueFull,
        Code::LeaseFull,
        Code::TooManyLeases,
        Code::Lost,
    ] {
        refuse(Some(code));
        let before = faults.refused.load(Ordering::SeqCst);
        let campaign = election.clone();
        let campaign = tokio::spawn(async move { campaign.campaign().await });
        soon(async {
            while faults.refused.load(Ordering::SeqCst) < before + 2 && !campaign.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        refuse(None);
        let leadership = soon(campaign).await.expect("it did not panic");
        let leadership = leadership.unwrap_or_else(|error| panic!("{code:?} ended the campaign: {error}"));
        leadership.resign().await.expect("it answers");
    }
    for code in [Code::Invalid, Code::LimitDiffers, Code::TooLarge, Code::Unsupported] {
        refuse(Some(code));
        let ended = soon(election.campaign()).await.map(drop);
        assert!(matches!(&ended, Err(CallError::Refused(problem)) if problem.code == code), "{code:?}: {ended:?}");
    }
}
