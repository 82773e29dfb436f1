//! Shards on the fake cluster: claims without an answer, the queue, and the loss of the membership.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::client::{Coordinator, LeaseManager, LeaseOptions, ManagerOptions, RetryBudget, Wait};
use tenure::group::{Group, MemberOptions, Membership, Shards};
use tenure::testing::{FakeCluster, Line, Switch};
use tenure::types::LeaseName;

use crate::cluster::{LONG_TTL, NEVER, SOON};

const SECOND: Duration = Duration::from_secs(1);

async fn join(manager: &LeaseManager, ttl: Duration) -> Membership {
    let options = MemberOptions::new("a").ttl(ttl).refresh(NEVER);
    Group::join(manager, "workers", options).await.expect("the member joins")
}

/// Keeps one shard. Returns how often its work was told to end.
fn keep(member: &Membership) -> (Shards, Arc<AtomicUsize>) {
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let name = LeaseName::new("shard").expect("a name");
    let shards = member.keep_assigned([name], LeaseOptions::new().infinite(), move |shard| {
        let count = count.clone();
        async move {
            shard.leaving.cancelled().await;
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (shards.expect("valid options"), told)
}

/// The first holder in the queue of the shard, and the number of waiters.
async fn queue(cluster: &FakeCluster) -> (Option<String>, u32) {
    let name = LeaseName::new("shard").expect("a name");
    let asked = cluster.explain(name, cluster.manager().holder().clone(), RetryBudget::within(SOON)).await;
    let explained = asked.expect("an answer");
    (explained.next.map(|first| first.holder), explained.waiters)
}

/// The shard moves away between the end of a claim without an answer and the next claim.
#[tokio::test(start_paused = true)]
async fn shard_that_was_granted_without_an_answer_is_released() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    let member = join(&manager, LONG_TTL).await;
    cluster.mark_held_elsewhere("shard");
    let (shards, _) = keep(&member);
    tokio::time::sleep(SECOND).await;
    switch.set(Line::Deaf);
    cluster.mark_free("shard");
    tokio::time::sleep(SECOND).await;
    switch.set(Line::Up);
    let other = cluster.manager();
    assert!(other.try_acquire("shard").await.expect("an answer").is_none(), "control: the claim was granted");
    // The claim ends 35 s after its start, and the next one would follow half a second later.
    tokio::time::sleep(33 * SECOND + SECOND / 10).await;
    member.set_ready(false).await.expect("an answer");
    tokio::time::sleep(SECOND).await;
    assert!(other.try_acquire("shard").await.expect("an answer").is_some(), "no process works on the shard");
    shards.stop().await;
}

#[tokio::test(start_paused = true)]
async fn shard_that_moves_away_leaves_the_queue() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let member = join(&manager, LONG_TTL).await;
    cluster.mark_held_elsewhere("shard");
    let (shards, _) = keep(&member);
    tokio::time::sleep(SECOND).await;
    assert_eq!(queue(&cluster).await, (Some(manager.holder().to_string()), 1));
    member.set_ready(false).await.expect("an answer");
    tokio::time::sleep(SECOND).await;
    assert_eq!(queue(&cluster).await, (None, 0));
    shards.stop().await;
}

/// The process cannot read the list of members, which still contains it.
#[tokio::test(start_paused = true)]
async fn work_on_a_shard_ends_with_the_membership() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let manager = cluster.manager_through(switch.clone(), ManagerOptions::new());
    let ttl = 10 * SECOND;
    let member = join(&manager, ttl).await;
    let (shards, told) = keep(&member);
    tokio::time::sleep(SECOND).await;
    assert_eq!((shards.held().len(), told.load(Ordering::SeqCst)), (1, 0));
    switch.set(Line::Cut);
    cluster.clock().advance(ttl);
    tokio::time::sleep(SECOND).await;
    assert_eq!(told.load(Ordering::SeqCst), 1, "the lost member owns no names");
}

#[tokio::test(start_paused = true)]
async fn shard_waits_30_s_in_the_queue_at_a_time() {
    let cluster = FakeCluster::new();
    let manager = cluster.manager();
    let member = join(&manager, LONG_TTL).await;
    cluster.mark_held_elsewhere("shard");
    let (shards, _) = keep(&member);
    tokio::time::sleep(SECOND).await;
    let other = cluster.manager().lease("shard").expect("a name");
    let longer = other.clone();
    let waiting = tokio::spawn(async move { longer.acquire(Wait::UpTo(NEVER)).await });
    let seconds_pass = async |seconds: u32| {
        for _ in 0..seconds {
            cluster.clock().advance(SECOND);
            tokio::time::sleep(SECOND).await;
        }
    };
    seconds_pass(29).await;
    assert_eq!(queue(&cluster).await, (Some(manager.holder().to_string()), 2), "after 29 s");
    seconds_pass(4).await;
    assert_eq!(queue(&cluster).await, (Some(other.holder().to_string()), 2), "after 33 s");
    assert!(!waiting.is_finished());
    shards.stop().await;
}

/// Another part of the program sets other options for the lease before the claim.
#[tokio::test(start_paused = true)]
async fn shard_keeps_its_options_beside_another_handle() {
    let manager = FakeCluster::new().manager();
    let member = join(&manager, LONG_TTL).await;
    let (shards, _) = keep(&member);
    let lease = manager.lease_with("shard", LeaseOptions::new().ttl(LONG_TTL)).expect("valid options");
    tokio::time::sleep(SECOND).await;
    assert_eq!((shards.held().len(), lease.remaining()), (1, Some(Duration::MAX)), "its lease is infinite");
    shards.stop().await;
}
