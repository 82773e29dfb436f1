//! The coordinator over a node in the same process works the same on the leader and on a follower.

use std::time::Duration;

use futures_util::future::join_all;
use tenure::api::{
    Acquire, Code, Event, EventId, EventKind, HandOver, LeaseInfo, LostReason, MAX_RENEW_ITEMS, Problem, Release,
    RenewBatch, RenewItem, Standing, TtlMs,
};
use tenure::client::{CallError, Coordinator, Events, RetryBudget};
use tenure::config::TtlPolicy;
use tenure::lease::Command;
use tenure::node::{Forward, Local, Node, Request};
use tenure::token::FencingToken;

use crate::steady::strict;
use crate::trio::{Plan, SOON, holder, name};

strict!(
    operations_work_at_the_leader_and_at_a_follower,
    held_leases_of_many_pages_are_complete,
    resumed_watch_delivers_each_transition_once,
    ttl_policy_of_a_node_applies_in_process,
);

const BUDGET: RetryBudget = RetryBudget::new(Duration::from_secs(4), Duration::from_secs(10));

fn claim(by: &str) -> Acquire {
    Acquire::new(holder(by)).ttl(Duration::from_secs(60))
}

fn waiting(by: &str, wait_ms: u64) -> Acquire {
    claim(by).wait(Duration::from_millis(wait_ms))
}

async fn acquire(at: &Local, lease: &str, by: &str) -> LeaseInfo {
    at.acquire(name(lease), claim(by), BUDGET).await.expect("granted")
}

fn refused<T: std::fmt::Debug>(answer: Result<T, CallError>) -> Box<Problem> {
    match answer {
        Err(CallError::Refused(problem)) => problem,
        other => panic!("{other:?}"),
    }
}

fn release(of: &LeaseInfo) -> Release {
    Release::new(holder(&of.holder), of.token)
}

async fn operations_work_at_the_leader_and_at_a_follower() {
    let trio = Plan::new(&[]).start().await;
    let (leader, follower) = trio.leader_and_follower().await;
    for (node, prefix) in [(leader, "leader"), (follower, "follower")] {
        let at = Local::new(node.clone());
        claims(&at, &format!("{prefix}:claims")).await;
        waits(&at, &format!("{prefix}:waits")).await;
        renewals(&at, &format!("{prefix}:renewals")).await;
    }
    trio.shutdown().await;
}

async fn claims(at: &Local, job: &str) {
    let lease = acquire(at, job, "a").await;
    assert_eq!((lease.name.as_str(), lease.holder.as_str(), lease.ttl_ms), (job, "a", TtlMs::Millis(60_000)));
    assert_eq!(acquire(at, job, "a").await.token, lease.token, "the same holder keeps its token");
    let held = refused(at.acquire(name(job), claim("b"), BUDGET).await);
    assert_eq!((held.code, held.holder.as_deref(), held.token), (Code::Held, Some("a"), Some(lease.token)));
    let short = claim("b").ttl(TtlMs::Millis(1));
    assert_eq!(refused(at.acquire(name(job), short, BUDGET).await).code, Code::Invalid);

    let explained = at.explain(name(job), holder("a"), BUDGET).await.expect("an answer");
    assert!(matches!(explained.standing, Some(Standing::Holds { .. })), "{explained:?}");
    let foreign = Release::new(holder("b"), lease.token);
    assert!(!at.release(name(job), foreign, BUDGET).await.expect("an answer").released);
    assert!(at.release(name(job), release(&lease), BUDGET).await.expect("an answer").released);
    assert!(!at.release(name(job), release(&lease), BUDGET).await.expect("an answer").released);
    let explained = at.explain(name(job), holder("a"), BUDGET).await.expect("an answer");
    assert!(matches!(explained.standing, Some(Standing::Ended { .. })), "{explained:?}");
}

async fn waits(at: &Local, job: &str) {
    let lease = acquire(at, job, "a").await;
    assert_eq!(refused(at.acquire(name(job), waiting("b", 50), BUDGET).await).code, Code::WaitTimeout);
    // The budget does not include the wait: a wait longer than the budget still succeeds.
    let budget = RetryBudget::within(Duration::from_secs(2));
    let wait = at.acquire(name(job), waiting("b", 30_000), budget);
    let give = async {
        while at.explain(name(job), holder("b"), BUDGET).await.expect("an answer").waiters == 0 {}
        let to_stranger = HandOver::new(holder("a"), lease.token).to(holder("c"));
        assert_eq!(refused(at.hand_over(name(job), to_stranger, BUDGET).await).code, Code::NoSuchWaiter);
        let to_next = HandOver::new(holder("a"), lease.token);
        at.hand_over(name(job), to_next, BUDGET).await.expect("handed over")
    };
    let (granted, given) = tokio::join!(wait, give);
    let granted = granted.expect("granted");
    assert_eq!((granted.token, granted.holder.as_str()), (given.token, "b"));
    assert!(granted.token > lease.token);
    let wait = at.acquire(name(job), waiting("c", 30_000), budget);
    let leave = async {
        while at.explain(name(job), holder("c"), BUDGET).await.expect("an answer").waiters == 0 {}
        at.release(name(job), release(&granted), BUDGET).await.expect("an answer")
    };
    let (granted, released) = tokio::join!(wait, leave);
    assert!(granted.is_ok() && released.released);
}

async fn renewals(at: &Local, job: &str) {
    let (kept, lost) = (acquire(at, job, "a").await, acquire(at, &format!("{job}:lost"), "a").await);
    at.release(name(&lost.name), release(&lost), BUDGET).await.expect("an answer");
    let item = |name_of: &str, token| RenewItem::new(name(name_of), token);
    let never = FencingToken::new(0, 1);
    let leases = vec![item(&kept.name, kept.token), item(&lost.name, lost.token), item("never", never)];
    let renewed = at.renew(RenewBatch::new(holder("a"), leases), BUDGET).await.expect("an answer");
    let why: Vec<_> = renewed.results.iter().map(|one| one.problem.as_ref().and_then(|lost| lost.why)).collect();
    assert_eq!(why, [None, Some(LostReason::Released), Some(LostReason::Unknown)]);
    assert_eq!(renewed.results[0].lease.as_ref().map(|lease| (lease.token, lease.renewals)), Some((kept.token, 1)));
    assert_eq!(renewed.results[1].name, lost.name);

    let too_many = (0..=MAX_RENEW_ITEMS).map(|number| item(&format!("n{number}"), never)).collect();
    let answer = at.renew(RenewBatch::new(holder("a"), too_many), BUDGET).await;
    assert_eq!(refused(answer).code, Code::TooLarge);
    let short = item(&kept.name, kept.token).ttl(TtlMs::Millis(1));
    let answer = at.renew(RenewBatch::new(holder("a"), vec![short]), BUDGET).await;
    assert_eq!(refused(answer).code, Code::Invalid);
}

async fn held_leases_of_many_pages_are_complete() {
    let trio = Plan::new(&[]).start().await;
    let (_, follower) = trio.leader_and_follower().await;
    let at = Local::new(follower.clone());
    let names: Vec<String> = (0..2_100).map(|number| format!("many:{number:04}")).collect();
    join_all(names.iter().map(|job| acquire(&at, job, "a"))).await;
    let lone = acquire(&at, "other", "a").await;
    let ended = acquire(&at, "many:ended", "a").await;
    at.release(name("many:ended"), release(&ended), BUDGET).await.expect("an answer");
    let held = at.held("many:".to_owned(), BUDGET).await.expect("an answer");
    assert_eq!(held.iter().map(|lease| lease.name.clone()).collect::<Vec<_>>(), names);
    assert_eq!(at.held("oth".to_owned(), BUDGET).await.expect("an answer")[0].token, lone.token);
    assert_eq!(at.held("nothing".to_owned(), BUDGET).await.expect("an answer"), []);
    trio.shutdown().await;
}

async fn take(events: &mut dyn Events, count: usize) -> Vec<(Event, EventId)> {
    let mut taken = Vec::new();
    for _ in 0..count {
        let event =
            tokio::time::timeout(SOON, events.next()).await.expect("the event arrives").expect("no event is missing");
        taken.push((event, events.position().expect("a position")));
    }
    taken
}

async fn revoke(node: &Node, job: &str) {
    let revoke = Request::Change(Command::Revoke { name: name(job), reason: "test".to_owned() });
    node.request(revoke, Forward::Once).await.expect("an answer");
}

async fn resumed_watch_delivers_each_transition_once() {
    let trio = Plan::new(&[]).start().await;
    let (leader, follower) = trio.leader_and_follower().await;
    let (at, there) = (Local::new(follower.clone()), Local::new(leader.clone()));
    let begin = EventId { index: 0, part: None };
    let mut live = at.watch("pool".to_owned(), Some(begin));
    assert_eq!(live.position(), Some(begin));
    for by in ["a", "b", "c"] {
        let counted = claim(by).limit(3);
        there.acquire(name("pool"), counted, BUDGET).await.expect("granted");
        acquire(&there, &format!("beside:{by}"), by).await;
    }
    // The revoke is one entry with three transitions.
    revoke(leader, "pool").await;
    let last = acquire(&there, "pool", "d").await;
    let all = take(&mut *live, 7).await;
    use EventKind::{Granted, Revoked};
    let kinds: Vec<EventKind> = all.iter().map(|(event, _)| event.event).collect();
    assert_eq!(kinds, [Granted, Granted, Granted, Revoked, Revoked, Revoked, Granted]);
    let parts: Vec<Option<u32>> = all[3..6].iter().map(|(_, place)| place.part).collect();
    assert_eq!(parts, [Some(0), Some(1), None], "the position after the last transition is after the entry");
    assert_eq!(all[6].1, EventId { index: last.index, part: None });
    for seen in 0..all.len() {
        // The watch resumes at the other node: positions are the same on all nodes.
        let mut resumed = there.watch("pool".to_owned(), Some(all[seen].1));
        assert_eq!(take(&mut *resumed, all.len() - seen - 1).await, all[seen + 1..], "resumed after {seen}");
    }
    // A dropped `next` loses no event, and filtered events advance the position.
    let mut now = at.watch("pool".to_owned(), None);
    let none = tokio::time::timeout(Duration::from_millis(20), now.next()).await;
    assert!(none.is_err());
    let other = acquire(&there, "beside:d", "d").await;
    let returned = acquire(&there, "pool:2", "d").await;
    assert_eq!(take(&mut *now, 1).await[0].0.token, returned.token);
    assert!(now.position().expect("a position").index > other.index);

    trio.shutdown().await;
    assert!(matches!(now.next().await, Err(CallError::Unavailable(_))), "the node has stopped");
}

async fn ttl_policy_of_a_node_applies_in_process() {
    let plan = Plan::new(&[]);
    let data = plan.data().join("alone");
    let mut ttl = TtlPolicy::default();
    (ttl.default_ms, ttl.min_ms, ttl.max_ms, ttl.infinite) = (5_000, 1_000, 60_000, false);
    let alone = Node::builder("alone").id(1).member(1, plan.http(1), "127.0.0.1:1").data(data).ttl(ttl);
    let node = alone.peer_listener(crate::trio::listener().await).start().await.expect("the node starts");
    let at = Local::new(node.clone());
    let infinite = claim("a").ttl(TtlMs::Infinite);
    let problem = refused(at.acquire(name("job"), infinite, BUDGET).await);
    assert!(problem.detail.contains("60000 ms"), "{problem:?}");
    let granted = at.acquire(name("job"), Acquire::new(holder("a")), BUDGET).await.expect("granted");
    assert_eq!(granted.ttl_ms, TtlMs::Millis(5_000));
    node.shutdown().await;
}
