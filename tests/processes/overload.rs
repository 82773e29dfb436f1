//! Far more requests than the cluster can serve: what is held stays held, everything is answered in time, memory does
//! not grow, and when it is over it is over.
//!
//! The nodes share one processor and the clients have the others, so that what is offered is more than can be served.
//! `TENURE_OVERLOAD` makes the flood last longer, in seconds.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tenure::client::{Lease, LeaseManager, LeaseOptions, Wait};

use crate::cluster::{Cluster, NODES, SOON};
use crate::figures::{self, percentile};
use crate::flood::{Flood, Line, Tally, token};

/// Where three nodes and a build share a processor, an election timeout below a second measures the scheduler.
const TIMINGS: &str =
    "[raft]\nheartbeat_interval_ms = 250\nelection_timeout_min_ms = 1000\nelection_timeout_max_ms = 1500\n";
/// Clients of the closed loop that measures what can be served, and for how long it does.
const MEASURING: usize = 192;
const MEASURED: Duration = Duration::from_secs(4);
/// Clients of the flood, and how many times more claims they mean to send than can be served.
const CLIENTS: usize = 6_000;
const TIMES: usize = 10;
/// The least that must really be offered: below that the machine was too busy to show anything.
const LEAST_TIMES: usize = 2;
/// Leases that a holder keeps meanwhile.
const HELD: usize = 300;
const TTL: Duration = Duration::from_secs(6);

/// Everything is answered within this.
const ANSWERED: Duration = Duration::from_secs(3);
/// 99 of 100 renewals are answered within this.
const RENEWED: Duration = Duration::from_millis(1_000);
/// Resident memory of a node, at most, and by how much it may grow.
const MEMORY: u64 = 400 << 20;
const GROWTH: u64 = 250 << 20;
/// A single claim takes less than this again, so long after the flood.
const NORMAL: Duration = Duration::from_millis(50);
const RECOVERED: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_claims_costs_nobody_a_lease() {
    let time = std::env::var("TENURE_OVERLOAD").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(20);
    let cluster = start_on_one_processor().await;
    let nodes: Vec<String> = cluster.client.endpoints().split(',').map(|url| url.replace("http://", "")).collect();
    let capacity = capacity(&nodes).await;
    let holder = LeaseManager::connect(&cluster.client.endpoints()).expect("addresses of nodes");
    let held = hold(&holder).await;
    let (leader, term, before) = (cluster.leader().await, cluster.term(1).await, memory(&cluster));

    let flood = Flood {
        nodes: nodes.clone(),
        clients: CLIENTS,
        per_second: Some(TIMES * capacity),
        time: Duration::from_secs(time),
    };
    let flooded = tokio::spawn(flood.run());
    let mut seen = watch(&cluster, &held, &nodes, Duration::from_secs(time)).await;
    let tally = flooded.await.expect("the flood does not panic");
    let recovered = recover(&nodes[0]).await;
    print(&tally, &mut seen, capacity, time, &before, recovered);

    assert!(tally.offered() >= LEAST_TIMES * capacity * time as usize, "the machine is too busy to show anything");
    assert_eq!((tally.unanswered, tally.without_retry_after), (0, 0));
    assert!(tally.other.is_empty(), "served or refused as too busy, and nothing else: {:?}", tally.other);
    assert!(!tally.served.is_empty() && !tally.refused.is_empty(), "some of both");
    let slowest = tally.served.iter().chain(&tally.refused).chain(&tally.released).max().expect("some were answered");
    assert!(*slowest <= ANSWERED, "{slowest:?}");
    assert_eq!(seen.lost, 0, "leases were lost");
    assert_eq!(seen.not_renewed, 0, "renewals were refused");
    assert!(percentile(&seen.renewals, 99) <= RENEWED, "{:?}", percentile(&seen.renewals, 99));
    assert_eq!((cluster.leader().await, cluster.term(1).await), (leader, term), "an election");
    for (id, (before, most)) in NODES.into_iter().zip(before.iter().zip(seen.memory)) {
        assert!(most <= MEMORY && most <= before + GROWTH, "node {id}: {before} bytes before, {most} at most");
    }
    assert!(recovered <= RECOVERED, "{recovered:?}");
    assert!(holder.shutdown().await.is_empty(), "what was held is given back");
}

/// The nodes on the first processor that this test may use, everything else on the others.
async fn start_on_one_processor() -> Cluster {
    let all = sched_getaffinity(None).expect("a thread knows its processors");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("there is one");
    let (mut one, mut rest) = (CpuSet::new(), all);
    one.set(first);
    if all.count() > 1 {
        rest.unset(first);
    }
    // Processes and threads are born with the processors of the thread that starts them.
    sched_setaffinity(None, &one).expect("fewer than it has");
    let cluster = Cluster::start(TIMINGS).await;
    sched_setaffinity(None, &rest).expect("fewer than it had");
    cluster
}

/// Claims with their releases that can be served each second.
async fn capacity(nodes: &[String]) -> usize {
    let flood = Flood { nodes: nodes.to_vec(), clients: MEASURING, per_second: None, time: MEASURED };
    let tally = flood.run().await;
    assert_eq!((tally.unanswered, tally.refused.len(), tally.other.len()), (0, 0, 0), "this is no overload");
    tally.released.len() / MEASURED.as_secs() as usize
}

async fn hold(holder: &LeaseManager) -> Vec<Lease> {
    let options = LeaseOptions::new().ttl(TTL);
    let lease = |n| holder.lease_with(&format!("held-{n}"), options.clone()).expect("a name");
    let held: Vec<Lease> = (0..HELD).map(lease).collect();
    let acquired = futures_util::future::join_all(held.iter().map(|lease| lease.acquire(Wait::No))).await;
    assert!(acquired.iter().all(Result::is_ok), "they are free: {acquired:?}");
    held
}

/// What was seen beside the flood.
struct Seen {
    /// Of single renewals, one every few milliseconds at each node.
    renewals: Vec<Duration>,
    not_renewed: usize,
    /// Leases of the holder that were lost, and the least time that one of them had left.
    lost: usize,
    least_left: Duration,
    /// Most memory of each node.
    memory: Vec<u64>,
}

async fn watch(cluster: &Cluster, held: &[Lease], nodes: &[String], time: Duration) -> Seen {
    const LOOK: Duration = Duration::from_millis(100);
    let until = Instant::now() + time;
    let renewers: Vec<_> = nodes.iter().map(|node| tokio::spawn(renew(node.clone(), until))).collect();
    let mut seen =
        Seen { renewals: Vec::new(), not_renewed: 0, lost: 0, least_left: TTL, memory: vec![0; NODES.len()] };
    let mut lost = vec![false; held.len()];
    while Instant::now() < until {
        tokio::time::sleep(LOOK).await;
        for (lost, lease) in lost.iter_mut().zip(held) {
            *lost |= !lease.is_held();
            seen.least_left = seen.least_left.min(lease.remaining().unwrap_or_default());
        }
        seen.memory = seen.memory.iter().zip(memory(cluster)).map(|(most, now)| now.max(*most)).collect();
    }
    seen.lost = lost.into_iter().filter(|lost| *lost).count();
    for renewer in renewers {
        let (renewals, not_renewed) = renewer.await.expect("a renewer does not panic");
        seen.renewals.extend(renewals);
        seen.not_renewed += not_renewed;
    }
    seen.renewals.sort();
    seen
}

/// Renews a lease of its own through one node, again and again.
async fn renew(node: String, until: Instant) -> (Vec<Duration>, usize) {
    const PAUSE: Duration = Duration::from_millis(20);
    let mut line = Line::open(&node).await.expect("a node takes connections");
    let name = format!("renewed-{}", node.replace(':', "-"));
    let began = Instant::now();
    let token = loop {
        let body = format!(r#"{{"holder":"renewer","ttl_ms":{}}}"#, TTL.as_millis());
        let answer = line.post(&format!("leases/{name}/acquire"), &body).await.expect("it is answered");
        if answer.status == 200 {
            break token(&answer).to_owned();
        }
        assert!(began.elapsed() < SOON, "not granted after {SOON:?}: {}", answer.body);
        tokio::time::sleep(PAUSE).await;
    };
    let (mut times, mut not_renewed) = (Vec::new(), 0);
    let body = format!(r#"{{"holder":"renewer","token":"{token}"}}"#);
    while Instant::now() < until {
        let sent = Instant::now();
        let answer = line.post(&format!("leases/{name}/renew"), &body).await.expect("it is answered");
        times.push(sent.elapsed());
        not_renewed += usize::from(answer.status != 200);
        tokio::time::sleep(PAUSE).await;
    }
    (times, not_renewed)
}

/// How long after the flood single claims take as long as they always do.
async fn recover(node: &str) -> Duration {
    const IN_A_ROW: usize = 10;
    let began = Instant::now();
    let mut line = Line::open(node).await.expect("a node takes connections");
    let (mut normal, mut turn) = (0, 0);
    while normal < IN_A_ROW {
        assert!(began.elapsed() < SOON, "claims still take long after {SOON:?}");
        turn += 1;
        let sent = Instant::now();
        let body = r#"{"holder":"later","ttl_ms":1000}"#;
        let answer = line.post(&format!("leases/later-{turn}/acquire"), body).await.expect("it is answered");
        normal = if answer.status == 200 && sent.elapsed() < NORMAL { normal + 1 } else { 0 };
    }
    began.elapsed()
}

/// Resident memory of each node, in bytes.
fn memory(cluster: &Cluster) -> Vec<u64> {
    NODES.iter().map(|id| figures::memory(cluster.nodes[id].id())).collect()
}

fn print(tally: &Tally, seen: &mut Seen, capacity: usize, time: u64, before: &[u64], recovered: Duration) {
    let rate = |count: usize| count / time as usize;
    let (offered, served, refused) = (rate(tally.offered()), rate(tally.released.len()), rate(tally.refused.len()));
    println!(
        "{capacity} pairs/s can be served; for {time} s {CLIENTS} clients offered {offered} claims/s ({:.1} times that): \
         {served} pairs/s served, {refused} claims/s refused, {} unanswered",
        offered as f64 / capacity as f64,
        tally.unanswered
    );
    for (what, samples) in
        [("served claims", &tally.served), ("refusals", &tally.refused), ("releases", &tally.released)]
    {
        if !samples.is_empty() {
            figures::print(what, &mut samples.clone());
        }
    }
    figures::print("single renewals", &mut seen.renewals);
    let mib = |bytes: &[u64]| bytes.iter().map(|bytes| (bytes >> 20).to_string()).collect::<Vec<_>>().join(", ");
    println!(
        "{HELD} leases held with a ttl of {TTL:?}: {} lost, least time left {:?}; memory {} MiB before, {} MiB at most; \
         normal again after {recovered:?}",
        seen.lost,
        seen.least_left,
        mib(before),
        mib(&seen.memory)
    );
}
