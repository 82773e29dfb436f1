//! Each shard is worked on by one member, the one that it belongs to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::client::LeaseOptions;
use tenure::group::{Group, GroupError, MemberOptions, Membership, Shard, Shards};
use tenure::token::FencingToken;
use tenure::types::LeaseName;

use crate::cluster::{Cluster, TTL, soon, until};
use crate::steady::{safety, steady, strict};

strict!(ten_thousand_shards_are_kept_and_no_more);
steady!(
    shards_move_to_a_joiner_and_back_drained_and_never_worked_on_twice,
    work_that_ends_or_panics_is_begun_again_and_work_that_will_not_end_is_dropped,
);

/// Who works on what, and whatever went wrong with it.
#[derive(Default)]
struct Board {
    working: BTreeMap<LeaseName, (String, FencingToken)>,
    last: BTreeMap<LeaseName, FencingToken>,
    drained: usize,
    wrong: Vec<String>,
}

type Shared = Arc<Mutex<Board>>;

fn names() -> Vec<LeaseName> {
    (0..12).map(|n| LeaseName::new(format!("shard-{n}")).expect("valid")).collect()
}

async fn join(cluster: &Cluster, id: &str) -> Membership {
    let options = MemberOptions::new(id).ttl(TTL).refresh(Duration::from_millis(50));
    soon(Group::join(&cluster.manager(id), "workers", options)).await.expect("it joins")
}

/// Ends a short time after it is asked to.
async fn work(board: Shared, id: String, shard: Shard) {
    let name = shard.lease.name().clone();
    {
        let mut board = board.lock().expect("fine");
        if let Some((other, _)) = board.working.insert(name.clone(), (id.clone(), shard.token)) {
            board.wrong.push(format!("{name}: {id} began while {other} worked"));
        }
        if board.last.insert(name.clone(), shard.token).is_some_and(|last| last >= shard.token) {
            board.wrong.push(format!("{name}: the token of {id} is not above the last"));
        }
    }
    shard.leaving.cancelled().await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    let mut board = board.lock().expect("fine");
    board.working.remove(&name);
    board.drained += 1;
    if !shard.lease.is_held() {
        board.wrong.push(format!("{name}: {id} lost it while it drained"));
    }
}

fn keep(member: &Membership, board: &Shared) -> Shards {
    let (board, id) = (board.clone(), member.id().to_owned());
    let options = LeaseOptions::new().ttl(TTL);
    member.keep_assigned(names(), options, move |shard| work(board.clone(), id.clone(), shard)).expect("valid")
}

/// Whether every shard is worked on, and by the member that it belongs to.
fn is_settled(board: &Shared, group: &Group) -> bool {
    let placement = group.placement();
    let board = board.lock().expect("fine");
    let is_at_home = |name: &LeaseName| {
        let owner = placement.owner(name.as_str());
        owner.is_some_and(|owner| board.working.get(name).is_some_and(|(id, _)| *id == owner.id))
    };
    names().iter().all(is_at_home)
}

async fn shards_move_to_a_joiner_and_back_drained_and_never_worked_on_twice() {
    let cluster = Cluster::start().await;
    let board = Shared::default();
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
    until("both work on their own", || is_settled(&board, &b) && is_settled(&board, &a)).await;
    let moved = shards_of_b.held().len();
    assert!((1..12).contains(&moved), "{moved}");
    assert_eq!(board.lock().expect("fine").drained, moved, "only what the joiner got was given up");

    a.set_ready(false).await.expect("it is said");
    until("b works on all", || is_settled(&board, &a)).await;
    assert!(shards_of_a.held().is_empty());

    soon(shards_of_b.stop()).await;
    assert!(board.lock().expect("fine").working.is_empty(), "stop waits for the work");
    soon(shards_of_a.stop()).await;
    let board = board.lock().expect("fine");
    safety!(board.wrong.is_empty(), "{:?}", board.wrong);
    assert_eq!(board.drained, 12 + 12, "each was left once by a and once by b");
}

async fn work_that_ends_or_panics_is_begun_again_and_work_that_will_not_end_is_dropped() {
    let cluster = Cluster::start().await;
    let a = join(&cluster, "a").await;
    let begun = Arc::new(Mutex::new(0));
    let count = begun.clone();
    let options = LeaseOptions::new().ttl(TTL).drain(Duration::from_millis(50));
    let one = [LeaseName::new("stubborn").expect("valid")];
    let shards = a.keep_assigned(one, options, move |_| {
        let turn = {
            let mut begun = count.lock().expect("fine");
            *begun += 1;
            *begun
        };
        async move {
            match turn {
                1 => {}
                2 => panic!("a test's own panic"),
                _ => std::future::pending().await,
            }
        }
    });
    let shards = shards.expect("valid");
    until("it is begun a third time", || *begun.lock().expect("fine") == 3).await;
    soon(shards.stop()).await;
    let name = LeaseName::new("stubborn").expect("valid");
    assert!(cluster.remote().explain(&name, None).await.expect("it answers").held.is_empty(), "it was released");
}

async fn ten_thousand_shards_are_kept_and_no_more() {
    let cluster = Cluster::start().await;
    // Nothing is placed on a member that is not ready, so no lease is asked for.
    let options = MemberOptions::new("a").ttl(TTL).ready(false);
    let a = soon(Group::join(&cluster.manager("a"), "workers", options)).await.expect("it joins");
    let keep = |count: usize| {
        let names = (0..count).map(|n| LeaseName::new(format!("shard-{n}")).expect("valid"));
        a.keep_assigned(names, LeaseOptions::new(), |_| std::future::pending())
    };
    let shards = keep(10_000).expect("it is at the bound");
    soon(shards.stop()).await;
    let refused = keep(10_001).err();
    assert!(matches!(refused, Some(GroupError::TooManyShards { shards: 10_001 })), "{refused:?}");
}
