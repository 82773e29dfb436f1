//! Sends far more acquires than the cluster can serve. Held leases stay held, each request has an answer in time, the
//! memory stays bounded, and the cluster recovers after the load.
//!
//! There are two kinds of overload. With slow followers, few entries commit, and the processors have time to refuse
//! requests. With one processor for all nodes, refusals and grants compete for it. `TENURE_OVERLOAD` sets the duration
//! of the load in seconds.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tenure::client::{Lease, LeaseManager, LeaseOptions, Wait};

use crate::cluster::{Cluster, NODES, SOON, place};
use crate::figures::{self, percentile};
use crate::flood::{Connection, Flood, FloodResults, token};
use crate::slow::Slow;
use crate::steady::{needs, steady};

steady!(tenfold_load_on_slow_followers_costs_no_lease, processor_overload_costs_no_lease,);

/// With three nodes and a build on one processor, an election timeout below one second would measure the scheduler.
const TIMINGS: &str =
    "[raft]\nheartbeat_interval_ms = 250\nelection_timeout_min_ms = 1000\nelection_timeout_max_ms = 1500\n";
/// The clients of the closed loop that measures the capacity, and its duration.
const MEASURING_CLIENTS: usize = 192;
const MEASURED: Duration = Duration::from_secs(4);
/// The target load as a multiple of the capacity.
const LOAD_FACTOR: usize = 10;
/// The number of leases that a holder keeps during the load.
const HELD: usize = 300;
const TTL: Duration = Duration::from_secs(6);

/// The metadata bytes of an acquire with slow followers. Sixteen acquires fill one entry.
const LARGE: usize = 4_000;

/// The limit for every answer.
const ANSWERED: Duration = Duration::from_secs(5);
/// The limit for 95 % of the refusals if the processors are free.
const REFUSED: Duration = Duration::from_millis(1_000);
/// The limit for 99 % of the renewals.
const RENEWED: Duration = Duration::from_millis(2_000);
/// The limits for the resident memory of a node and for its growth.
const MEMORY: u64 = 400 << 20;
const GROWTH: u64 = 250 << 20;
/// The limit for the recovery: single acquires are as fast as before the load.
const RECOVERED: Duration = Duration::from_secs(5);

async fn tenfold_load_on_slow_followers_costs_no_lease() {
    let cluster = Cluster::start(TIMINGS).await;
    let leader = cluster.leader().await;
    let followers = cluster.nodes.iter().filter(|(id, _)| **id != leader).map(|(_, node)| node);
    let _slow = Slow::begin(followers);
    let asked = vec![addresses(&cluster)[place(leader)].clone()];
    let (capacity, results) = flood(&cluster, asked, Clients::Count(3_000), LARGE).await;
    needs!(
        results.offered() >= LOAD_FACTOR * 9 / 10 * capacity * time().as_secs() as usize,
        "the load is at least nine times the capacity"
    );
    assert!(percentile(&results.refused, 95) <= REFUSED, "{:?}", percentile(&results.refused, 95));
}

async fn processor_overload_costs_no_lease() {
    let cluster = start_on_one_processor().await;
    let (capacity, results) = flood(&cluster, addresses(&cluster), Clients::ForCapacity, 0).await;
    // Refusals use the same processor, so their cost limits the load.
    needs!(results.offered() > capacity * time().as_secs() as usize, "the load is above the capacity");
}

/// The number of clients of the load.
enum Clients {
    Count(usize),
    /// As many clients as the processor answers in a fraction of a second. A renewal waits while the processor answers
    /// one request per client, so a machine of half the speed gets half as many clients.
    ForCapacity,
}

impl Clients {
    const FOR_EACH_PAIR_PER_SECOND: usize = 2;
    /// Above the request limit of all three nodes, so that every machine refuses some requests.
    const MIN: usize = 1_000;
    /// With more clients, a fast machine measures the time that refusals take from served claims.
    const MAX: usize = 1_500;

    fn count(self, capacity: usize) -> usize {
        match self {
            Clients::Count(count) => count,
            Clients::ForCapacity => (Self::FOR_EACH_PAIR_PER_SECOND * capacity).clamp(Self::MIN, Self::MAX),
        }
    }
}

/// Sends the load to these nodes and checks all limits. Returns the capacity in acquires per second, and the results of
/// the load.
async fn flood(cluster: &Cluster, asked: Vec<String>, clients: Clients, metadata: usize) -> (usize, FloodResults) {
    let measuring =
        Flood { nodes: asked.clone(), clients: MEASURING_CLIENTS, per_second: None, metadata, time: MEASURED };
    let capacity = capacity(measuring.clone()).await;
    let normal = single_claims(&asked[0], "before").await;
    let holder = LeaseManager::connect_lazy(&cluster.client.endpoints()).expect("the addresses are valid");
    let held = hold(&holder).await;
    let (leader, term, before) = (cluster.leader().await, cluster.term(1).await, memory(cluster));

    let clients = clients.count(capacity);
    println!("{clients} clients");
    let flood = Flood { clients, per_second: Some(LOAD_FACTOR * capacity), time: time(), ..measuring };
    let flooded = tokio::spawn(flood.run());
    let mut seen = watch(cluster, &held, &asked, time()).await;
    let mut results = flooded.await.expect("the flood does not panic");
    results.sort();
    let recovered = recover(&asked[0], normal).await;
    print(&results, &mut seen, capacity, &before, normal, recovered);

    assert_eq!((results.unanswered, results.without_retry_after), (0, 0));
    assert!(results.other.is_empty(), "expected only grants and refusals as too busy: {:?}", results.other);
    assert!(!results.served.is_empty() && !results.refused.is_empty(), "the load has grants and refusals");
    let slowest = [&results.served, &results.refused, &results.released]
        .map(|times| *times.last().expect("each list has a sample"));
    assert!(slowest.iter().all(|slowest| *slowest <= ANSWERED), "{slowest:?}");
    assert_eq!((seen.lost, seen.not_renewed), (0, 0), "lost leases and refused renewals");
    assert!(percentile(&seen.renewals, 99) <= RENEWED, "{:?}", percentile(&seen.renewals, 99));
    assert_eq!((cluster.leader().await, cluster.term(leader).await), (leader, term), "the leader or its term changed");
    for (id, (before, most)) in NODES.into_iter().zip(before.iter().zip(seen.memory)) {
        assert!(most <= MEMORY && most <= before + GROWTH, "node {id}: {before} bytes before, {most} at most");
    }
    assert!(recovered <= RECOVERED, "{recovered:?}");
    assert!(holder.shutdown().await.is_empty(), "the holder releases all leases");
    (capacity, results)
}

fn time() -> Duration {
    let asked = std::env::var("TENURE_OVERLOAD").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(asked.unwrap_or(20))
}

fn addresses(cluster: &Cluster) -> Vec<String> {
    cluster.client.endpoints().split(',').map(|url| url.replace("http://", "")).collect()
}

/// Starts the nodes on the first processor that this test may use, and moves this thread to the others.
async fn start_on_one_processor() -> Cluster {
    let all = sched_getaffinity(None).expect("a thread can read its affinity");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("a thread has a processor");
    let (mut one, mut rest) = (CpuSet::new(), all);
    one.set(first);
    if all.count() > 1 {
        rest.unset(first);
    }
    // New processes and threads inherit the affinity of the thread that starts them.
    sched_setaffinity(None, &one).expect("the set is a part of the affinity");
    let cluster = Cluster::start(&format!("{TIMINGS}[http]\nmax_requests = 256\n")).await;
    sched_setaffinity(None, &rest).expect("the set is a part of the affinity");
    cluster
}

/// Measures how many acquires with their releases the cluster can serve per second.
async fn capacity(flood: Flood) -> usize {
    let results = flood.run().await;
    assert_eq!((results.unanswered, results.other.len()), (0, 0), "the closed loop does not overload the cluster");
    results.released.len() / MEASURED.as_secs() as usize
}

async fn hold(holder: &LeaseManager) -> Vec<Lease> {
    let options = LeaseOptions::new().ttl(TTL);
    let lease = |n| holder.lease_with(format!("held-{n}"), options.clone()).expect("the name is valid");
    let held: Vec<Lease> = (0..HELD).map(lease).collect();
    let acquired = futures_util::future::join_all(held.iter().map(|lease| lease.acquire(Wait::No))).await;
    assert!(acquired.iter().all(Result::is_ok), "the leases are free: {acquired:?}");
    held
}

/// The observations during the load.
struct Observed {
    /// The latencies of single renewals, sent to each node at short intervals.
    renewals: Vec<Duration>,
    not_renewed: usize,
    /// The number of lost leases of the holder, and the shortest remaining time of a lease.
    lost: usize,
    least_left: Duration,
    /// The largest memory use of each node.
    memory: Vec<u64>,
}

async fn watch(cluster: &Cluster, held: &[Lease], nodes: &[String], time: Duration) -> Observed {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    let until = Instant::now() + time;
    let renewers: Vec<_> = nodes.iter().map(|node| tokio::spawn(renew(node.clone(), until))).collect();
    let mut seen =
        Observed { renewals: Vec::new(), not_renewed: 0, lost: 0, least_left: TTL, memory: vec![0; NODES.len()] };
    let mut lost = vec![false; held.len()];
    while Instant::now() < until {
        tokio::time::sleep(POLL_INTERVAL).await;
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

/// Renews a separate lease through one node repeatedly.
async fn renew(node: String, until: Instant) -> (Vec<Duration>, usize) {
    const PAUSE: Duration = Duration::from_millis(20);
    let mut connection = Connection::open(&node).await.expect("the node accepts connections");
    let name = format!("renewed-{}", node.replace(':', "-"));
    let began = Instant::now();
    let token = loop {
        let body = format!(r#"{{"holder":"renewer","ttl_ms":{}}}"#, TTL.as_millis());
        let answer = connection.post(&format!("leases/{name}/acquire"), &body).await.expect("the node answers");
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
        let answer = connection.post(&format!("leases/{name}/renew"), &body).await.expect("the node answers");
        times.push(sent.elapsed());
        not_renewed += usize::from(answer.status != 200);
        tokio::time::sleep(PAUSE).await;
    }
    (times, not_renewed)
}

/// The longest latency of several single acquires.
async fn single_claims(node: &str, name: &str) -> Duration {
    const CLAIMS: usize = 20;
    let mut connection = Connection::open(node).await.expect("the node accepts connections");
    let mut longest = Duration::ZERO;
    for claim in 0..CLAIMS {
        let sent = Instant::now();
        let body = r#"{"holder":"single","ttl_ms":1000}"#;
        let answer = connection.post(&format!("leases/{name}-{claim}/acquire"), body).await.expect("the node answers");
        longest = longest.max(if answer.status == 200 { sent.elapsed() } else { SOON });
    }
    longest
}

/// The time after the load until single acquires are about as fast as before it.
async fn recover(node: &str, normal: Duration) -> Duration {
    let began = Instant::now();
    let allowed = 2 * normal + Duration::from_millis(20);
    for turn in 0.. {
        let started = began.elapsed();
        if single_claims(node, &format!("after-{turn}")).await <= allowed {
            return started;
        }
        assert!(began.elapsed() < SOON, "single claims take longer than {allowed:?}, {SOON:?} after the flood");
    }
    unreachable!("turns go on")
}

/// The resident memory of each node in bytes.
fn memory(cluster: &Cluster) -> Vec<u64> {
    NODES.iter().map(|id| figures::memory(cluster.nodes[id].id())).collect()
}

fn print(
    results: &FloodResults,
    seen: &mut Observed,
    capacity: usize,
    before: &[u64],
    normal: Duration,
    recovered: Duration,
) {
    let time = time().as_secs();
    let rate = |count: usize| count / time as usize;
    let (offered, served, refused) =
        (rate(results.offered()), rate(results.released.len()), rate(results.refused.len()));
    println!(
        "capacity {capacity} pairs/s; target load for {time} s {LOAD_FACTOR} times that, \
         actual load {offered} claims/s ({:.1} times): \
         {served} pairs/s served, {refused} claims/s refused, {} unanswered",
        offered as f64 / capacity as f64,
        results.unanswered
    );
    for (what, samples) in
        [("served claims", &results.served), ("refusals", &results.refused), ("releases", &results.released)]
    {
        if !samples.is_empty() {
            figures::print(what, &mut samples.clone());
        }
    }
    figures::print("single renewals", &mut seen.renewals);
    let mib = |bytes: &[u64]| bytes.iter().map(|bytes| (bytes >> 20).to_string()).collect::<Vec<_>>().join(", ");
    println!(
        "{HELD} leases held with a ttl of {TTL:?}: {} lost, least time left {:?}; memory {} MiB before, {} MiB at most; \
         single claims, {normal:?} at most before, as before after {recovered:?}",
        seen.lost,
        seen.least_left,
        mib(before),
        mib(&seen.memory)
    );
}
