//! Leader election and its observers.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tenure::api::Code;
use tenure::client::{CallError, Loss};
use tenure::election::{
    Candidacy, Election, ElectionOptions, EstablishError, LeaderView, Leadership, Observer, ResignError,
};
use tenure::types::{HolderId, Metadata};

use crate::cluster::{Cluster, LONG_TTL, NEVER, SOON, TTL, soon};
use crate::steady::{safety, steady, strict};

strict!(late_answer_dates_an_observed_leader_before_its_end);
steady!(
    one_of_two_candidates_leads,
    dead_leader_is_replaced_after_its_ttl,
    successor_leads_at_once_after_a_resignation,
    hand_over_elects_the_named_candidate,
    leader_is_established_only_after_fencing,
    deposed_leader_cannot_establish_itself,
    observer_sees_leaders_in_token_order,
    observer_that_missed_events_shows_the_current_leader,
    observer_without_events_reads_after_refresh,
    minimum_hold_delays_resign_but_not_resign_now,
    exhausted_budget_keeps_a_candidate_out_of_the_queue,
    dropped_campaign_leaves_the_queue,
    campaign_survives_an_outage_and_ends_with_its_manager,
    campaign_outlasts_each_refusal_that_waiting_mends,
);

fn options() -> ElectionOptions {
    ElectionOptions::new().ttl(LONG_TTL).refresh(NEVER)
}

impl Cluster {
    fn candidate(&self, holder: &str) -> Election {
        Election::new(&self.manager(holder), "leader", options()).expect("the value is valid")
    }
}

/// Starts a campaign and waits until its claim is in the queue.
async fn waiting(cluster: &Cluster, election: &Election, holder: &str) -> tokio::task::JoinHandle<Leadership> {
    let campaign = election.clone();
    let task = tokio::spawn(async move { campaign.campaign().await.expect("the candidate is elected") });
    soon(async {
        let name = election.name();
        while !cluster
            .remote()
            .queue(name)
            .await
            .expect("the cluster answers")
            .waiters
            .iter()
            .any(|w| w.holder == holder)
        {}
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

async fn one_of_two_candidates_leads() {
    let cluster = Cluster::start().await;
    let candidate = |holder| Election::new(&cluster.manager(holder), "leader", options().ttl(TTL));
    let (a, b) = (candidate("a").expect("the value is valid"), candidate("b").expect("the value is valid"));
    let leadership = soon(a.campaign()).await.expect("elected");
    assert!(leadership.is_leader());
    let other = tokio::time::timeout(TTL * 2, b.campaign()).await;
    assert!(other.is_err(), "the candidate waits for longer than the ttl, because the leader renews its lease");
    assert!(leadership.is_leader());
    assert_eq!(b.current().await.expect("the cluster answers").leader.expect("there is a leader").holder, "a");
}

async fn dead_leader_is_replaced_after_its_ttl() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("a");
    let a = Election::new(&manager, "leader", options().ttl(TTL)).expect("the value is valid");
    let first = soon(a.campaign()).await.expect("elected");
    let successor = waiting(&cluster, &cluster.candidate("b"), "b").await;
    faults.cut_off(true);
    let died = Instant::now();
    let lost = soon(first.while_leading(std::future::pending::<()>())).await;
    assert_eq!(lost, Err(Loss::Unreachable));
    let second = soon(successor).await.expect("the task did not panic");
    safety!(!first.is_leader() && second.token() > first.token(), "{first:?} and then {second:?}");
    assert!(second.is_leader());
    assert!(died.elapsed() > TTL / 2, "the successor led before the lease expired");
    assert!(died.elapsed() < TTL + Duration::from_secs(5), "{:?}", died.elapsed());
}

async fn successor_leads_at_once_after_a_resignation() {
    let cluster = Cluster::start().await;
    let long = options().ttl(Duration::from_secs(600));
    let a = Election::new(&cluster.manager("a"), "leader", long).expect("the value is valid");
    let first = soon(a.campaign()).await.expect("elected");
    let successor = waiting(&cluster, &cluster.candidate("b"), "b").await;
    assert_eq!(first.resign().await, Ok(true));
    assert!(!first.is_leader());
    let second = soon(successor).await.expect("the task did not panic");
    safety!(second.token() > first.token(), "{second:?} after {first:?}");
    assert_eq!(first.resign().await, Ok(false), "the leadership has ended already");
}

async fn hand_over_elects_the_named_candidate() {
    let cluster = Cluster::start().await;
    let first = soon(cluster.candidate("a").campaign()).await.expect("elected");
    let b = waiting(&cluster, &cluster.candidate("b"), "b").await;
    let c = waiting(&cluster, &cluster.candidate("c"), "c").await;
    let refused = first.hand_over(Some(HolderId::new("no-candidate").expect("the value is valid"))).await;
    assert!(matches!(refused, Err(ResignError::Call(_))) && first.is_leader(), "{refused:?}");
    assert_eq!(first.hand_over(Some(HolderId::new("c").expect("the value is valid"))).await, Ok(true));
    let second = soon(c).await.expect("the task did not panic");
    safety!(second.token() > first.token() && !first.is_leader(), "{first:?} and then {second:?}");
    assert!(second.is_leader());
    assert!(!b.is_finished());
    second.resign().await.expect("the cluster answers");
    assert!(soon(b).await.expect("the task did not panic").is_leader());
}

async fn leader_is_established_only_after_fencing() {
    let cluster = Cluster::start().await;
    let metadata = Metadata::new([("address".to_owned(), "10.0.0.1".to_owned())].into())
        .expect("the metadata is within its limit");
    let options = options().metadata(metadata).refresh(Duration::from_millis(10));
    let election = Election::new(&cluster.manager("a"), "leader", options).expect("the value is valid");
    let mut observer = election.observe();
    let leadership = soon(election.campaign()).await.expect("elected");
    let elected = leads(&mut observer, "a").await.leader.expect("there is a leader");
    assert!(!elected.is_established);
    let failed = leadership.establish(|_| async { Err::<(), _>("the database is down") }).await;
    assert_eq!(failed, Err(EstablishError::Fencing("the database is down")));
    assert!(!leadership.is_established() && leadership.is_leader());
    assert!(!election.current().await.expect("the cluster answers").leader.expect("there is a leader").is_established);
    let fenced = leadership.establish(|token| async move { Ok::<_, &str>(token) }).await;
    assert_eq!(fenced, Ok(leadership.token()));
    let established = leads(&mut observer, "a").await.leader.expect("there is a leader");
    assert!(established.is_established && established.token == elected.token);
    assert_eq!(established.metadata["address"], "10.0.0.1");
    assert_eq!(established.metadata.len(), 1, "the metadata shows keys of the library");
    leadership.resign().await.expect("the cluster answers");
    assert_eq!(soon(observer.next()).await.leader, None);
    let again = soon(cluster.candidate("b").campaign()).await.expect("elected");
    assert!(
        !leads(&mut observer, "b").await.leader.expect("there is a leader").is_established,
        "the new leader inherited the mark"
    );
    drop(again);
}

async fn deposed_leader_cannot_establish_itself() {
    let cluster = Cluster::start().await;
    let a = cluster.candidate("a");
    let first = soon(a.campaign()).await.expect("elected");
    let successor = waiting(&cluster, &cluster.candidate("b"), "b").await;
    cluster.remote().revoke(a.name(), "a test").await.expect("the cluster answers");
    let second = soon(successor).await.expect("the task did not panic");
    // The old leader does not know of the revoke yet, unless it renewed in between.
    let refused = first.establish(|_| async { Ok::<_, &str>(()) }).await;
    assert_eq!(refused, Err(EstablishError::Lost(Loss::Revoked)));
    safety!(!first.is_leader(), "{first:?} was revoked");
    assert!(second.is_leader());
    let leader = a.current().await.expect("the cluster answers").leader.expect("there is a leader");
    assert_eq!((leader.token, leader.is_established), (second.token(), false));
}

async fn observer_sees_leaders_in_token_order() {
    let cluster = Cluster::start().await;
    // The stream opens after the first read, so it can miss an event in between. The refresh covers that case.
    let often = options().refresh(Duration::from_millis(200));
    let mut observer =
        Election::new(&cluster.manager("watcher"), "leader", often).expect("the value is valid").observe();
    assert_eq!(soon(observer.next()).await.leader, None);
    let mut seen = Vec::new();
    for holder in ["a", "b", "a", "c"] {
        let leadership = soon(cluster.candidate(holder).campaign()).await.expect("elected");
        let leader = leads(&mut observer, holder).await.leader.expect("there is a leader");
        assert_eq!(leader.token, leadership.token());
        seen.push(leader.token);
        leadership.resign().await.expect("the cluster answers");
    }
    safety!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
}

async fn observer_that_missed_events_shows_the_current_leader() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("watcher");
    let mut observer = Election::new(&manager, "leader", options()).expect("the value is valid").observe();
    let first = soon(cluster.candidate("a").campaign()).await.expect("elected");
    leads(&mut observer, "a").await;
    faults.stream_failed.store(true, Ordering::SeqCst);
    first.resign().await.expect("the cluster answers");
    let second = soon(cluster.candidate("b").campaign()).await.expect("elected");
    let unheard = tokio::time::timeout(Duration::from_millis(300), observer.next()).await;
    assert!(unheard.is_err(), "control: the observer sees no change without events and before the refresh");
    faults.compacted.notify_one();
    let view = soon(observer.next()).await.leader.expect("there is a leader");
    assert_eq!((view.holder.as_str(), view.token), ("b", second.token()));
    // The observer also sees later events.
    faults.stream_failed.store(false, Ordering::SeqCst);
    faults.compacted.notify_one();
    let _ = tokio::time::timeout(Duration::from_millis(300), observer.next()).await;
    second.resign().await.expect("the cluster answers");
    let third = soon(cluster.candidate("c").campaign()).await.expect("elected");
    assert_eq!(leads(&mut observer, "c").await.leader.expect("there is a leader").token, third.token());
}

async fn observer_without_events_reads_after_refresh() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("watcher");
    faults.stream_failed.store(true, Ordering::SeqCst);
    let often = options().refresh(Duration::from_millis(50));
    let mut observer = Election::new(&manager, "leader", often).expect("the value is valid").observe();
    assert_eq!(soon(observer.next()).await.leader, None);
    let _leadership = soon(cluster.candidate("a").campaign()).await.expect("elected");
    leads(&mut observer, "a").await;
    faults.cut_off(true);
    let before = observer.as_of();
    assert!(tokio::time::timeout(TTL, observer.next()).await.is_err(), "an observer without a cluster returned a view");
    assert!(observer.as_of().expect("there was a read").elapsed() > TTL / 2 && observer.as_of() >= before);
}

/// Another candidate is elected after the cluster has answered the read, and before the answer arrives.
async fn late_answer_dates_an_observed_leader_before_its_end() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.patient("watcher");
    let mut observer = Election::new(&manager, "leader", options()).expect("the value is valid").observe();
    let first = soon(cluster.candidate("a").campaign()).await.expect("elected");
    let mut read = faults.withhold_next_read();
    let replaced = async {
        read.answered().await;
        let answered = tokio::time::Instant::now();
        first.resign().await.expect("the cluster answers");
        let second = cluster.candidate("b").campaign().await.expect("elected");
        read.release();
        (answered, second)
    };
    let (view, (answered, _second)) = soon(async { tokio::join!(observer.next(), replaced) }).await;
    assert_eq!(view.leader.expect("there was a leader").holder, "a", "control: the read came before the change");
    let as_of = observer.as_of().expect("there was a read");
    assert!(as_of <= answered, "the result was read {:?} before its time", as_of - answered);
}

async fn minimum_hold_delays_resign_but_not_resign_now() {
    let cluster = Cluster::start().await;
    let options = options().minimum_hold(SOON);
    let election = Election::new(&cluster.manager("a"), "leader", options).expect("the value is valid");
    let leadership = soon(election.campaign()).await.expect("elected");
    assert!(matches!(leadership.resign().await, Err(ResignError::TooEarly { left }) if left > SOON / 2));
    assert!(matches!(leadership.hand_over(None).await, Err(ResignError::TooEarly { .. })));
    assert!(leadership.is_leader());
    assert_eq!(leadership.resign_now().await, Ok(true));
    let short = ElectionOptions::new().ttl(TTL).minimum_hold(Duration::from_millis(1));
    let election = Election::new(&cluster.manager("b"), "leader", short).expect("the value is valid");
    let leadership = soon(election.campaign()).await.expect("elected");
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(leadership.resign().await, Ok(true), "the minimum hold is over");
}

async fn exhausted_budget_keeps_a_candidate_out_of_the_queue() {
    let cluster = Cluster::start().await;
    let window = Duration::from_secs(5);
    let options = options().budget(NonZeroU32::new(2).expect("not 0"), window);
    let election = Election::new(&cluster.manager("a"), "leader", options).expect("the value is valid");
    let begun = Instant::now();
    for _ in 0..2 {
        soon(election.campaign()).await.expect("elected").resign().await.expect("the cluster answers");
    }
    assert!(begun.elapsed() < window, "the first two elections need no wait");
    let mut candidacy = election.candidacy();
    let said = async { candidacy.wait_for(|now| matches!(now, Candidacy::HeldBack { .. })).await.is_ok() };
    let is_held_back = soon(async {
        tokio::select! {
            _ = election.campaign() => false,
            said = said => said,
        }
    });
    assert!(is_held_back.await, "the candidate is elected again within the window");
    assert_eq!(*election.candidacy().borrow(), Candidacy::Idle, "the campaign was dropped");
    let other = soon(cluster.candidate("b").campaign()).await.expect("the queue is empty");
    other.resign().await.expect("the cluster answers");
    let third = soon(election.campaign()).await.expect("elected");
    assert!(begun.elapsed() >= window && third.is_leader());
}

async fn dropped_campaign_leaves_the_queue() {
    let cluster = Cluster::start().await;
    let first = soon(cluster.candidate("a").campaign()).await.expect("elected");
    let b = cluster.candidate("b");
    let campaign = waiting(&cluster, &b, "b").await;
    let c = waiting(&cluster, &cluster.candidate("c"), "c").await;
    campaign.abort();
    soon(async { while cluster.remote().queue(b.name()).await.expect("the cluster answers").waiters.len() > 1 {} })
        .await;
    first.resign().await.expect("the cluster answers");
    assert!(soon(c).await.expect("the task did not panic").is_leader());
}

async fn campaign_survives_an_outage_and_ends_with_its_manager() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("a");
    let election = Election::new(&manager, "leader", options()).expect("the value is valid");
    faults.cut_off(true);
    let campaign = tokio::spawn({
        let election = election.clone();
        async move { election.campaign().await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    faults.cut_off(false);
    let leadership = soon(campaign).await.expect("the task did not panic").expect("elected");
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
        let (before, begun) = (faults.refused.load(Ordering::SeqCst), Instant::now());
        let campaign = election.clone();
        let campaign = tokio::spawn(async move { campaign.campaign().await });
        soon(async {
            while faults.refused.load(Ordering::SeqCst) < before + 2 && !campaign.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let refused_twice = begun.elapsed();
        refuse(None);
        let leadership = soon(campaign).await.expect("it did not panic");
        let leadership = leadership.unwrap_or_else(|error| panic!("{code:?} ended the campaign: {error}"));
        let pauses = code == Code::WaitTimeout || refused_twice >= Duration::from_millis(500);
        assert!(pauses, "{code:?} is followed by a claim within {refused_twice:?}");
        leadership.resign().await.expect("it answers");
    }
    for code in [Code::Invalid, Code::LimitDiffers, Code::TooLarge, Code::Unsupported] {
        refuse(Some(code));
        let ended = soon(election.campaign()).await.map(drop);
        assert!(matches!(&ended, Err(CallError::Refused(problem)) if problem.code == code), "{code:?}: {ended:?}");
    }
}
