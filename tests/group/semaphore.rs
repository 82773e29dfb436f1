//! At most so many at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::api::Code;
use tenure::client::{CallError, LeaseManager, LeaseOptions, Wait};
use tenure::semaphore::{Permit, Semaphore, SemaphoreError};
use tenure::testing::FakeCluster;
use tenure::types::Metadata;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, SOON, TTL, soon};
use crate::steady::{safety, steady, strict};

strict!(permits_above_one_page_are_all_counted, permits_above_1_mib_are_all_counted);

steady!(
    never_are_more_than_n_in_it_though_many_want_to,
    permits_of_one_process_are_counted_one_by_one,
    another_number_of_permits_is_refused_as_such,
    permits_stay_while_they_are_used_and_are_free_when_their_process_is_dead,
);

impl Cluster {
    fn semaphore(&self, holder: &str, permits: u32) -> Semaphore {
        Semaphore::new(&self.manager(holder), "uploads", permits, LeaseOptions::new().ttl(TTL)).expect("valid")
    }
}

async fn never_are_more_than_n_in_it_though_many_want_to() {
    const PERMITS: usize = 3;
    let cluster = Cluster::start().await;
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for manager in 0..4 {
        let semaphore = cluster.semaphore(&format!("manager-{manager}"), PERMITS as u32);
        for _ in 0..3 {
            let (semaphore, inside, most) = (semaphore.clone(), inside.clone(), most.clone());
            tasks.spawn(async move {
                let mut tokens = Vec::new();
                for _ in 0..3 {
                    let permit = semaphore.acquire(Wait::UpTo(SOON)).await.expect("its turn comes");
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    assert!(permit.is_held());
                    tokens.push(permit.token());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(permit.release().await, Ok(true));
                }
                tokens
            });
        }
    }
    let tokens: Vec<_> = soon(tasks.join_all()).await.into_iter().flatten().collect();
    let most = most.load(Ordering::SeqCst);
    safety!(most <= PERMITS, "{most} permits at once, of {PERMITS}");
    assert_eq!(most, PERMITS, "as many as may");
    let distinct = tokens.iter().collect::<BTreeSet<_>>().len();
    safety!(distinct == 4 * 3 * 3, "{distinct} different tokens for {} permits", 4 * 3 * 3);
}

async fn permits_of_one_process_are_counted_one_by_one() {
    let cluster = Cluster::start().await;
    let semaphore = cluster.semaphore("a", 2);
    assert_eq!(semaphore.available().await, Ok(2));
    let first = semaphore.acquire(Wait::No).await.expect("free");
    let second = semaphore.acquire(Wait::No).await.expect("free");
    safety!(second.token() > first.token(), "{second:?} after {first:?}");
    let third = semaphore.acquire(Wait::No).await;
    assert!(matches!(third, Err(SemaphoreError::Call(CallError::Refused(problem))) if problem.code == Code::Held));
    let tokens: Vec<_> =
        semaphore.holders().await.expect("it answers").into_iter().map(|holder| holder.token).collect();
    assert_eq!((tokens, semaphore.available().await), (vec![first.token(), second.token()], Ok(0)));
    drop(first);
    let next = semaphore.acquire(Wait::UpTo(SOON)).await.expect("what is dropped is released");
    safety!(next.token() > second.token(), "{next:?} after {second:?}");
}

async fn another_number_of_permits_is_refused_as_such() {
    let cluster = Cluster::start().await;
    let _permit = cluster.semaphore("a", 2).acquire(Wait::No).await.expect("free");
    let refused = cluster.semaphore("b", 3).acquire(Wait::No).await;
    assert_eq!(refused.map(drop), Err(SemaphoreError::PermitsDiffer { asked: 3, present: Some(2) }));
    assert!(Semaphore::new(&cluster.manager("c"), "uploads", 0, LeaseOptions::new()).is_err());
}

async fn permits_stay_while_they_are_used_and_are_free_when_their_process_is_dead() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("a");
    let mortal = Semaphore::new(&manager, "uploads", 1, LeaseOptions::new().ttl(TTL)).expect("valid");
    let first = mortal.acquire(Wait::No).await.expect("free");
    let other = cluster.semaphore("b", 1);
    assert!(other.acquire(Wait::UpTo(TTL * 2)).await.is_err(), "it is renewed");
    faults.cut_off(true);
    let second = soon(other.acquire(Wait::UpTo(SOON))).await.expect("it expires");
    safety!(!first.is_held() && second.token() > first.token(), "{first:?}, and then {second:?}");
}

async fn permits_above_one_page_are_all_counted() {
    let cluster = FakeCluster::new();
    all_are_counted(&cluster.manager(), 1_050, LeaseOptions::new()).await;
}

async fn permits_above_1_mib_are_all_counted() {
    let cluster = Cluster::start().await;
    let metadata = Metadata::new([("note".to_owned(), "x".repeat(4_000))].into()).expect("it fits");
    all_are_counted(&cluster.manager("a"), 300, LeaseOptions::new().ttl(SOON).metadata(metadata)).await;
}

/// Takes so many permits. One answer of the cluster does not show them all.
async fn all_are_counted(manager: &LeaseManager, taken: usize, options: LeaseOptions) {
    const FREE: u32 = 5;
    // Its name begins with that of the semaphore.
    let _neighbour = manager.lease("uploads-2").expect("a name").guard(Wait::No).await.expect("free");
    let permits = taken as u32 + FREE;
    let semaphore = Semaphore::new(manager, "uploads", permits, options).expect("valid");
    let mut inside: Vec<Permit> = Vec::new();
    for _ in 0..taken {
        inside.push(semaphore.acquire(Wait::No).await.expect("there is a permit"));
    }
    assert_eq!(semaphore.available().await, Ok(FREE));
    let holders = semaphore.holders().await.expect("it answers");
    let tokens: Vec<_> = holders.iter().map(|holder| holder.token).collect();
    assert_eq!(tokens, inside.iter().map(|permit| permit.token()).collect::<Vec<_>>());
}
