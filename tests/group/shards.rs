//! Shards: one member at a time works on a shard, the member to which it belongs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::client::LeaseOptions;
use tenure::group::{Group, GroupError, MemberOptions, Membership, Shard, Shards};
use tenure::token::FencingToken;
use tenure::types::LeaseName;

use crate::cluster::{Cluster, LONG_TTL, soon, until};
use crate::steady::{safety, steady, strict};

strict!(
    at_most_10_000_shards_are_kept,
    draining_shard_is_held_until_its_work_ends,
    ended_work_restarts_and_stuck_work_is_dropped
);
steady!(shards_move_drained_and_never_overlap, work_on_a_revoked_shard_is_dropped,);

/// The current work on shards, and the violations so far.
#[derive(Default)]
struct Board {
    working: BTreeMap<LeaseName, (String, FencingToken)>,
    last: BTreeMap<LeaseName, FencingToken>,
    drained: usize,
    wrong: Vec<String>,
}

type SharedBoard = Arc<Mutex<Board>>;

fn names() -> Vec<LeaseName> {
    (0..12).map(|n| LeaseName::new(format!("shard-{n}")).expect("the value is valid")).collect()
}

async fn join(cluster: &Cluster, id: &str) -> Membership {
    let options = MemberOptions::new(id).ttl(LONG_TTL).refresh(Duration::from_millis(50));
    soon(Group::join(&cluster.manager(id), "workers", options)).await.expect("the member joins")
}

/// Works on a shard, and ends shortly after `leaving` is cancelled.
async fn work(board: SharedBoard, id: String, shard: Shard) {
    let name = shard.lease.name().clone();
    {
        let mut board = board.lock().expect("not poisoned");
        if let Some((other, _)) = board.working.insert(name.clone(), (id.clone(), shard.token)) {
            board.wrong.push(format!("{name}: {id} started while {other} worked"));
        }
        if board.last.insert(name.clone(), shard.token).is_some_and(|last| last >= shard.token) {
            board.wrong.push(format!("{name}: the token of {id} is not higher than the last one"));
        }
    }
    shard.leaving.cancelled().await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    let mut board = board.lock().expect("not poisoned");
    board.working.remove(&name);
    board.drained += 1;
    if !shard.lease.is_held() {
        board.wrong.push(format!("{name}: {id} lost the lease during the drain"));
    }
}

fn keep(member: &Membership, board: &SharedBoard) -> Shards {
    let (board, id) = (board.clone(), member.id().to_owned());
    let options = LeaseOptions::new().ttl(LONG_TTL);
    member
        .keep_assigned(names(), options, move |shard| work(board.clone(), id.clone(), shard))
        .expect("the value is valid")
}

/// Whether each shard is worked on by the member to which it belongs.
fn is_settled(board: &SharedBoard, group: &Group) -> bool {
    let placement = group.placement();
    let board = board.lock().expect("not poisoned");
    let is_at_home = |name: &LeaseName| {
        let owner = placement.owner(name.as_str());
        owner.is_some_and(|owner| board.working.get(name).is_some_and(|(id, _)| *id == owner.id))
    };
    names().iter().all(is_at_home)
}

async fn shards_move_drained_and_never_overlap() {
    let cluster = Cluster::start().await;
    let board = SharedBoard::default();
    let a = join(&cluster, "a").await;
    let shards_of_a = keep(&a, &board);
    until("a works on all", || is_settled(&board, &a)).await;
    assert_eq!(shards_of_a.held(), {
        let mut all = names();
        all.sort();
        all
    });

    let b = join(&cluster, "b").await;
    let shards_of_b = keep(&b, &board);
    until("both members work on their shards", || is_settled(&board, &b) && is_settled(&board, &a)).await;
    let moved = shards_of_b.held().len();
    assert!((1..12).contains(&moved), "{moved}");
    assert_eq!(
        board.lock().expect("not poisoned").drained,
        moved,
        "the first member drained other shards than the moved ones"
    );

    a.set_ready(false).await.expect("the cluster accepts it");
    until("b works on all", || is_settled(&board, &a)).await;
    assert!(shards_of_a.held().is_empty());

    soon(shards_of_b.stop()).await;
    assert!(board.lock().expect("not poisoned").working.is_empty(), "stop waits for the work");
    soon(shards_of_a.stop()).await;
    let board = board.lock().expect("not poisoned");
    safety!(board.wrong.is_empty(), "{:?}", board.wrong);
    assert_eq!(board.drained, 12 + 12, "each member drained each shard once");
}

async fn ended_work_restarts_and_stuck_work_is_dropped() {
    let cluster = Cluster::start().await;
    let a = soon(Group::join(&cluster.manager("a"), "workers", MemberOptions::new("a").ttl(LONG_TTL))).await;
    let a = a.expect("the member joins");
    let begun = Arc::new(Mutex::new(0));
    let count = begun.clone();
    let options = LeaseOptions::new().ttl(LONG_TTL).drain(Duration::from_millis(50));
    let one = [LeaseName::new("stubborn").expect("the value is valid")];
    let kept = Instant::now();
    let shards = a.keep_assigned(one, options, move |_| {
        let turn = {
            let mut begun = count.lock().expect("not poisoned");
            *begun += 1;
            *begun
        };
        assert!(turn != 3, "planted by a test");
        async move {
            match turn {
                1 => {}
                2 => panic!("planted by a test"),
                _ => std::future::pending().await,
            }
        }
    });
    let shards = shards.expect("the value is valid");
    until("the work starts a fourth time", || *begun.lock().expect("not poisoned") == 4).await;
    assert!(kept.elapsed() >= 3 * Duration::from_millis(500), "a pause is too short: {:?}", kept.elapsed());
    soon(shards.stop()).await;
    let name = LeaseName::new("stubborn").expect("the value is valid");
    assert!(
        cluster.remote().explain(&name, None).await.expect("the cluster answers").held.is_empty(),
        "the lease was not released"
    );
}

async fn draining_shard_is_held_until_its_work_ends() {
    let cluster = Cluster::start().await;
    let (a, b) = (join(&cluster, "a").await, join(&cluster, "b").await);
    let name = LeaseName::new("slow").expect("the value is valid");
    a.set_ready(true).await.expect("the cluster accepts it");
    b.set_ready(false).await.expect("the cluster accepts it");
    let (leaving, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let (left, ended) = (leaving.clone(), end.clone());
    let options = LeaseOptions::new().ttl(Duration::from_secs(60)).drain(Duration::from_secs(30));
    let shards = a.keep_assigned([name.clone()], options, move |shard| {
        let (left, ended) = (left.clone(), ended.clone());
        async move {
            shard.leaving.cancelled().await;
            left.fetch_add(1, Ordering::SeqCst);
            ended.notified().await;
        }
    });
    let shards = shards.expect("the value is valid");
    let only = vec![name];
    until("a works on the shard", || shards.held() == only).await;
    b.set_ready(true).await.expect("the cluster accepts it");
    a.set_ready(false).await.expect("the cluster accepts it");
    until("the work is told to end", || leaving.load(Ordering::SeqCst) == 1).await;
    assert_eq!(shards.held(), only, "the lease is held during the drain");
    end.notify_one();
    until("the shard is released", || shards.held().is_empty()).await;
    soon(shards.stop()).await;
}

/// Counts its drops.
struct DropCounter(Arc<AtomicUsize>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

async fn work_on_a_revoked_shard_is_dropped() {
    let cluster = Cluster::start().await;
    let a = join(&cluster, "a").await;
    // Of each start: its token, and how much work was dropped before.
    let (starts, dropped) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (begun, counter) = (starts.clone(), dropped.clone());
    let name = LeaseName::new("shard").expect("the value is valid");
    // The next renewal learns of the revocation.
    let options = LeaseOptions::new().ttl(Duration::from_secs(6)).drain(Duration::from_millis(50));
    let shards = a.keep_assigned([name.clone()], options, move |shard| {
        begun.lock().expect("not poisoned").push((shard.token, counter.load(Ordering::SeqCst)));
        let work = DropCounter(counter.clone());
        async move {
            std::future::pending::<()>().await;
            drop(work);
        }
    });
    let shards = shards.expect("the value is valid");
    let started = || starts.lock().expect("not poisoned").len();
    until("the work starts", || started() == 1).await;
    cluster.remote().revoke(&name, "a test").await.expect("the cluster answers");
    until("the work is dropped", || dropped.load(Ordering::SeqCst) == 1).await;
    until("the work starts again", || started() == 2).await;
    soon(shards.stop()).await;
    let starts = starts.lock().expect("not poisoned");
    assert!(starts[1].0 > starts[0].0, "{starts:?}");
    assert_eq!(starts.iter().map(|(_, dropped)| *dropped).collect::<Vec<_>>(), [0, 1]);
}

async fn at_most_10_000_shards_are_kept() {
    let cluster = Cluster::start().await;
    // No name belongs to a member that is not ready, so no lease is acquired.
    let options = MemberOptions::new("a").ttl(LONG_TTL).ready(false);
    let a = soon(Group::join(&cluster.manager("a"), "workers", options)).await.expect("the member joins");
    let keep = |count: usize| {
        let names = (0..count).map(|n| LeaseName::new(format!("shard-{n}")).expect("the value is valid"));
        a.keep_assigned(names, LeaseOptions::new(), |_| std::future::pending())
    };
    let shards = keep(10_000).expect("10,000 shards are allowed");
    soon(shards.stop()).await;
    let refused = keep(10_001).err();
    assert!(matches!(refused, Some(GroupError::TooManyShards { shards: 10_001 })), "{refused:?}");
}
