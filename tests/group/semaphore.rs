//! Semaphores: the limit on concurrent permits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::api::Code;
use tenure::client::{CallError, LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tenure::semaphore::{Permit, Semaphore, SemaphoreError};
use tenure::testing::{FakeCluster, Line, Switch};
use tenure::types::Metadata;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, LONG_TTL, SOON, TTL, soon};
use crate::steady::{safety, steady, strict};

strict!(permits_above_one_page_are_all_counted, permits_above_1_mib_are_all_counted);

steady!(
    at_most_n_permits_exist_under_contention,
    permits_of_one_process_are_counted_separately,
    different_number_of_permits_is_refused,
    permits_of_a_dead_process_expire,
    permit_without_an_answer_is_released,
);

impl Cluster {
    fn semaphore(&self, holder: &str, permits: u32) -> Semaphore {
        Semaphore::new(&self.manager(holder), "uploads", permits, LeaseOptions::new().ttl(LONG_TTL))
            .expect("the value is valid")
    }
}

async fn at_most_n_permits_exist_under_contention() {
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
                    let permit = semaphore.acquire(Wait::UpTo(SOON)).await.expect("the waiter is granted");
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
    assert_eq!(most, PERMITS, "all permits are in use");
    let distinct = tokens.iter().collect::<BTreeSet<_>>().len();
    safety!(distinct == 4 * 3 * 3, "{distinct} different tokens for {} permits", 4 * 3 * 3);
}

/// The next acquire has another holder, so it does not find this permit.
async fn permit_without_an_answer_is_released() {
    let cluster = FakeCluster::new();
    let switch = Switch::new(cluster.clone());
    let options = ManagerOptions::new().operation_timeout(Duration::from_secs(1));
    let manager = cluster.manager_through(switch.clone(), options);
    let of =
        |manager| Semaphore::new(manager, "uploads", 1, LeaseOptions::new().infinite()).expect("the value is valid");
    let (semaphore, other) = (of(&manager), of(&cluster.manager()));
    let available = async |permits| {
        while other.available().await != Ok(permits) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    switch.set(Line::Deaf);
    let acquiring = tokio::spawn(async move { semaphore.acquire(Wait::No).await.map(drop) });
    soon(available(0)).await;
    switch.set(Line::Up);
    let acquired = acquiring.await.expect("no panic");
    assert!(matches!(acquired, Err(SemaphoreError::Call(CallError::Unknown { .. }))), "{acquired:?}");
    soon(available(1)).await;
}

async fn permits_of_one_process_are_counted_separately() {
    let cluster = Cluster::start().await;
    let semaphore = cluster.semaphore("a", 2);
    assert_eq!(semaphore.available().await, Ok(2));
    let first = semaphore.acquire(Wait::No).await.expect("a permit is free");
    let second = semaphore.acquire(Wait::No).await.expect("a permit is free");
    safety!(second.token() > first.token(), "{second:?} after {first:?}");
    let third = semaphore.acquire(Wait::No).await;
    assert!(matches!(third, Err(SemaphoreError::Call(CallError::Refused(problem))) if problem.code == Code::Held));
    let tokens: Vec<_> =
        semaphore.holders().await.expect("the cluster answers").into_iter().map(|holder| holder.token).collect();
    assert_eq!((tokens, semaphore.available().await), (vec![first.token(), second.token()], Ok(0)));
    drop(first);
    let next = semaphore.acquire(Wait::UpTo(SOON)).await.expect("dropping a permit releases it");
    safety!(next.token() > second.token(), "{next:?} after {second:?}");
}

async fn different_number_of_permits_is_refused() {
    let cluster = Cluster::start().await;
    let _permit = cluster.semaphore("a", 2).acquire(Wait::No).await.expect("a permit is free");
    let refused = cluster.semaphore("b", 3).acquire(Wait::No).await;
    assert_eq!(refused.map(drop), Err(SemaphoreError::PermitsDiffer { asked: 3, present: Some(2) }));
    assert!(Semaphore::new(&cluster.manager("c"), "uploads", 0, LeaseOptions::new()).is_err());
}

async fn permits_of_a_dead_process_expire() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("a");
    let mortal = Semaphore::new(&manager, "uploads", 1, LeaseOptions::new().ttl(TTL)).expect("the value is valid");
    let first = mortal.acquire(Wait::No).await.expect("a permit is free");
    let other = cluster.semaphore("b", 1);
    assert!(other.acquire(Wait::UpTo(TTL * 2)).await.is_err(), "the permit is renewed");
    faults.cut_off(true);
    let second = soon(other.acquire(Wait::UpTo(SOON))).await.expect("the lease expires");
    safety!(!first.is_held() && second.token() > first.token(), "{first:?}, and then {second:?}");
}

async fn permits_above_one_page_are_all_counted() {
    let cluster = FakeCluster::new();
    all_are_counted(&cluster.manager(), 1_050, LeaseOptions::new()).await;
}

async fn permits_above_1_mib_are_all_counted() {
    let cluster = Cluster::start().await;
    let metadata =
        Metadata::new([("note".to_owned(), "x".repeat(4_000))].into()).expect("the metadata is within its limit");
    all_are_counted(&cluster.manager("a"), 300, LeaseOptions::new().ttl(SOON).metadata(metadata)).await;
}

/// Acquires `taken` permits and checks the counts. One answer of the cluster cannot list them all.
async fn all_are_counted(manager: &LeaseManager, taken: usize, options: LeaseOptions) {
    const FREE: u32 = 5;
    // The name of this lease starts with the name of the semaphore.
    let _neighbour = manager.lease("uploads-2").expect("a valid name").guard(Wait::No).await.expect("a permit is free");
    let permits = taken as u32 + FREE;
    let semaphore = Semaphore::new(manager, "uploads", permits, options).expect("the value is valid");
    let mut inside: Vec<Permit> = Vec::new();
    for _ in 0..taken {
        inside.push(semaphore.acquire(Wait::No).await.expect("there is a permit"));
    }
    assert_eq!(semaphore.available().await, Ok(FREE));
    let holders = semaphore.holders().await.expect("the cluster answers");
    let tokens: Vec<_> = holders.iter().map(|holder| holder.token).collect();
    assert_eq!(tokens, inside.iter().map(|permit| permit.token()).collect::<Vec<_>>());
}
