//! Waiters for the lease of a crashed holder.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Call, Client, token};
use crate::cluster::{Cluster, SOON};
use crate::figures::{self, percentile};
use crate::prober::Prober;
use crate::steady::{safety, steady};

steady!(
    waiter_gets_the_lease_of_a_crashed_holder,
    waiter_gets_the_lease_although_the_leader_dies,
    leader_that_dies_late_in_a_ttl_costs_one_tick,
);

/// The number of names. Each has a holder that never renews, and a waiter.
const NAMES: usize = 30;
const TTL: Duration = Duration::from_millis(2000);
/// The pause between two expiries: one short standstill of the machine delays one grant, and not all of them.
const APART: Duration = Duration::from_millis(70);
/// The documented limit for 95 % of the grants.
const LAG: Duration = Duration::from_millis(50);
/// After the end of a leader, a lease can live longer by the outage and by one tick.
const TICK: Duration = Duration::from_secs(1);

async fn waiter_gets_the_lease_of_a_crashed_holder() {
    let cluster = Cluster::start("").await;
    let mut lags = claim_all(&cluster.client, APART).await.join_all().await;
    figures::print("grant to a waiter behind the ttl", &mut lags);
    assert!(percentile(&lags, 95) <= LAG, "{lags:?}");
}

async fn waiter_gets_the_lease_although_the_leader_dies() {
    let mut cluster = Cluster::start("").await;
    let prober = Prober::start(cluster.client.clone()).await;
    let waiters = claim_all(&cluster.client, Duration::ZERO).await;
    tokio::time::sleep(TTL / 4).await;
    let leader = cluster.leader().await;
    let killed = Instant::now();
    cluster.kill(leader);
    prober.serves(&cluster.client).await;
    let outage = killed.elapsed();
    let mut lags = waiters.join_all().await;
    println!("the leader's end was an outage of {} ms", outage.as_millis());
    figures::print("grant to a waiter behind the ttl, the leader killed in between", &mut lags);
    assert!(percentile(&lags, 95) <= outage + TICK + LAG, "{lags:?}");
}

/// Only ticks write the time to the log before the leader dies. Without them, the next leader would continue from the
/// time of the grant.
async fn leader_that_dies_late_in_a_ttl_costs_one_tick() {
    let mut cluster = Cluster::start("").await;
    let leader = cluster.leader().await;
    let waiters = claim_all(&cluster.client, Duration::ZERO).await;
    tokio::time::sleep(TTL * 19 / 20).await;
    let killed = Instant::now();
    cluster.kill(leader);
    let prober = Prober::start(cluster.client.clone()).await;
    prober.serves(&cluster.client).await;
    let outage = killed.elapsed();
    let mut lags = waiters.join_all().await;
    println!("the leader's end was an outage of {} ms", outage.as_millis());
    figures::print("grant to a waiter behind the ttl, the leader killed at its end", &mut lags);
    assert!(percentile(&lags, 95) <= outage + TICK + LAG, "{lags:?}");
}

/// Acquires each name for one holder, and lets another holder wait for it. The claims are `apart` from each other.
/// Returns when all holders have their lease.
///
/// Each returned task yields the time from the end of the ttl to the grant of the waiter. The ttl counts from the time
/// at which the first claim was sent.
async fn claim_all(client: &Client, apart: Duration) -> JoinSet<Duration> {
    let mut claims = JoinSet::new();
    let mut waiters = JoinSet::new();
    for number in 0..NAMES {
        let (holding, waiting) = (client.clone(), client.clone());
        let (tell, held) = tokio::sync::oneshot::channel();
        claims.spawn(async move {
            tokio::time::sleep(apart * number as u32).await;
            let sent = Instant::now();
            let lease = holding.done(number, &Call::acquire(&name(number), "gone", TTL.as_millis() as u64)).await;
            tell.send((sent, token(&lease))).expect("the waiter runs");
        });
        waiters.spawn(async move {
            let (sent, old) = held.await.expect("the holder got the lease");
            let lease = waiting.done(number, &Call::wait(&name(number), "next", 60_000, SOON)).await;
            let granted = Instant::now();
            safety!(granted >= sent + TTL, "a lease expired {:?} before its ttl", sent + TTL - granted);
            assert_eq!(lease["holder"], "next");
            safety!(token(&lease) > old, "{lease} after {old}");
            granted - sent - TTL
        });
    }
    claims.join_all().await;
    waiters
}

fn name(number: usize) -> String {
    format!("abandoned-{number}")
}
