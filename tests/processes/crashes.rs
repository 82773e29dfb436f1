//! Tests of SIGKILL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::{Call, Client, token};
use crate::cluster::{Cluster, NODES, SOON};
use crate::figures;
use crate::prober::Prober;
use crate::steady::{safety, steady};

steady!(leases_outlive_kill_9_of_the_leader, kill_9_of_all_three_loses_nothing);

/// The number of leader kills, unless `TENURE_KILLS` sets it.
const KILLS: usize = 4;
const HOLDERS: usize = 20;
const LEASES_EACH: usize = 5;
/// A delay of the machine between two renewals costs no lease.
const TTL_MS: u64 = 6000;
const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest allowed gap in service after a kill. An election takes at most 900 ms; the rest is a reserve for busy
/// machines.
const LONGEST_GAP: Duration = Duration::from_secs(5);

/// The counters of all clients of a test.
#[derive(Default)]
struct Counts {
    renewals: AtomicU64,
    grants: AtomicU64,
}

async fn leases_outlive_kill_9_of_the_leader() {
    let kills = std::env::var("TENURE_KILLS").map_or(KILLS, |kills| kills.parse().expect("TENURE_KILLS is a number"));
    let mut cluster = Cluster::start("").await;
    let (stop, counts) = (CancellationToken::new(), Arc::<Counts>::default());
    let mut clients = JoinSet::new();
    let mut held = BTreeMap::new();
    for number in 0..HOLDERS * LEASES_EACH {
        let (name, holder) = (format!("held-{number}"), format!("holder-{}", number % HOLDERS));
        let token = cluster.client.acquire(&name, &holder, TTL_MS).await;
        held.insert(name.clone(), (holder.clone(), token));
        clients.spawn(renew_until_stopped(
            cluster.client.clone(),
            number,
            name,
            holder,
            token,
            stop.clone(),
            counts.clone(),
        ));
    }
    let mut acquirers = JoinSet::new();
    for number in 0..4 {
        acquirers.spawn(acquire_and_release(cluster.client.clone(), number, stop.clone(), counts.clone()));
        acquirers.spawn(acquire_more(cluster.client.clone(), number, stop.clone(), counts.clone()));
    }
    let prober = Prober::start(cluster.client.clone()).await;
    let mut gaps = Vec::new();
    for _ in 0..kills {
        let leader = cluster.leader().await;
        let term = cluster.term(leader).await;
        let killed = Instant::now();
        cluster.kill(leader);
        let next = cluster.leader().await;
        assert!(cluster.term(next).await > term, "the killed node was the leader");
        prober.serves(&cluster.client).await;
        // Long enough for a renewal of each lease by the new leader.
        tokio::time::sleep(RENEWAL_INTERVAL).await;
        gaps.push(prober.longest_pause(killed));
        cluster.launch(leader);
        cluster.ready(leader).await;
        cluster.caught_up(leader).await;
    }
    stop.cancel();
    clients.join_all().await;
    let taken = acquirers.join_all().await;
    for (name, (holder, token)) in held.iter().chain(taken.iter().flatten()) {
        is_held(&cluster.client, name, holder, *token).await;
    }
    let (renewals, grants) = (counts.renewals.load(Ordering::Relaxed), counts.grants.load(Ordering::Relaxed));
    assert!(renewals > (kills * HOLDERS * LEASES_EACH) as u64 && grants > kills as u64, "{renewals}, {grants}");
    println!("{kills} kills, {renewals} renewals and {grants} grants acknowledged, none lost");
    figures::print("gap in service after kill -9 of the leader", &mut gaps);
    assert!(gaps.iter().all(|gap| *gap < LONGEST_GAP), "{gaps:?}");
}

/// Renews a lease until `stop`. A refused renewal fails the test.
async fn renew_until_stopped(
    client: Client,
    number: usize,
    name: String,
    holder: String,
    first: u64,
    stop: CancellationToken,
    counts: Arc<Counts>,
) {
    while !stop.is_cancelled() {
        tokio::time::sleep(RENEWAL_INTERVAL).await;
        let lease = client.done(number, &Call::renew(&name, &holder, first)).await;
        safety!(token(&lease) == first, "a renewal changed token {first}: {lease}");
        counts.renewals.fetch_add(1, Ordering::Relaxed);
    }
}

type HeldLeases = BTreeMap<String, (String, u64)>;

/// Acquires and releases one name repeatedly. Each token must be higher than the last. It holds no lease at the end.
async fn acquire_and_release(
    client: Client,
    number: usize,
    stop: CancellationToken,
    counts: Arc<Counts>,
) -> HeldLeases {
    let (name, holder) = (format!("taken-{number}"), format!("taker-{number}"));
    let mut highest = 0;
    while !stop.is_cancelled() {
        let token = token(&client.done(number, &Call::acquire(&name, &holder, 60_000)).await);
        safety!(token > highest, "{name}: token {token} after {highest}");
        highest = token;
        counts.grants.fetch_add(1, Ordering::Relaxed);
        client.done(number, &Call::release(&name, &holder, token)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    HeldLeases::new()
}

/// Acquires one name after the other. Returns all acknowledged grants.
async fn acquire_more(client: Client, number: usize, stop: CancellationToken, counts: Arc<Counts>) -> HeldLeases {
    let holder = format!("collector-{number}");
    let mut held = HeldLeases::new();
    while !stop.is_cancelled() {
        let name = format!("kept-{number}-{}", held.len());
        let lease = client.done(number, &Call::acquire(&name, &holder, 600_000)).await;
        held.insert(name, (holder.clone(), token(&lease)));
        counts.grants.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    held
}

async fn is_held(client: &Client, name: &str, holder: &str, expected: u64) -> Value {
    let lease = client.done(0, &Call::get(format!("/v1/leases/{name}"))).await;
    let found = (lease["state"].as_str(), lease["holder"].as_str(), token(&lease));
    safety!(found == (Some("active"), Some(holder), expected), "{holder} has token {expected}: {lease}");
    lease
}

/// The number of leases without a renewal after the crash.
const LEFT_ALONE: usize = 50;
const LEFT_TTL: Duration = Duration::from_secs(3);
/// The longest time between two writes of cluster time to the log.
const TICK: Duration = Duration::from_secs(1);

async fn kill_9_of_all_three_loses_nothing() {
    let mut cluster = Cluster::start("").await;
    let client = cluster.client.clone();
    let mut kept = HeldLeases::new();
    for number in 0..200 {
        let name = format!("kept-{number}");
        let token = client.acquire(&name, "a", 600_000).await;
        kept.insert(name, ("a".to_owned(), token));
    }
    let mut left = Vec::new();
    for number in 0..LEFT_ALONE {
        let name = format!("left-{number}");
        let token = client.acquire(&name, "a", LEFT_TTL.as_millis() as u64).await;
        let sent = Instant::now();
        client.done(number, &Call::renew(&name, "a", token)).await;
        left.push((name, token, sent, Instant::now()));
    }
    let began = Instant::now();
    for id in NODES {
        cluster.kill(id);
    }
    cluster.launch_all().await;
    cluster.leader().await;
    for (name, (holder, token)) in &kept {
        is_held(&client, name, holder, *token).await;
        client.done(0, &Call::renew(name, holder, *token)).await;
    }
    let outage = began.elapsed();
    let mut expires = JoinSet::new();
    for (name, token, sent, acknowledged) in left {
        expires.spawn(expiry(client.clone(), name, token, sent, acknowledged + LEFT_TTL + outage + TICK));
    }
    let mut late = expires.join_all().await;
    println!("all three nodes down for {} ms, until every lease was read", outage.as_millis());
    figures::print("lease ended behind its ttl", &mut late);
}

/// Checks that a lease stays held for its ttl after the last renewal was sent, and expires soon after. The next grant
/// has a higher token. Returns the time from the end of the ttl to the next grant.
async fn expiry(client: Client, name: String, old: u64, sent: Instant, at_latest: Instant) -> Duration {
    let claim = Call::wait(&name, "b", 60_000, SOON);
    // If the lease has ended before this claim, the claim is granted at once.
    let at_latest = at_latest.max(Instant::now());
    let lease = client.done(0, &claim).await;
    let granted = Instant::now();
    safety!(granted >= sent + LEFT_TTL, "{name} expired {:?} too early", sent + LEFT_TTL - granted);
    assert!(granted < at_latest + Duration::from_millis(500), "{name} expired late by {:?}", granted - at_latest);
    safety!(token(&lease) > old, "{name}: token {} after {old}", token(&lease));
    granted - sent - LEFT_TTL
}
