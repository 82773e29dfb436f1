//! Processes that stop for longer than a leadership lease and resume with their old state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::{Call, Client, Outcome, token};
use crate::cluster::{Cluster, NODES};
use crate::steady::strict;

strict!(stopped_processes_cause_no_stale_read_and_no_wrong_age,);

/// The number of answered reads, unless `TENURE_READS` sets it.
const READS: usize = 2_000;
/// Longer than every leadership lease of the profile: 325 ms plus drift.
const PAUSE: Duration = Duration::from_millis(900);
const HEALTHY: Duration = Duration::from_millis(700);
/// The readers per node that send a read as soon as the last one was answered.
const READERS: usize = 2;
/// The interval of additional reads to each node. They do not wait for answers, so a resumed node finds reads from
/// every moment of its pause.
const READ_INTERVAL: Duration = Duration::from_millis(15);
const MAX_PENDING_READS: usize = 600;
const NAME: &str = "register";

/// A version of the lease that a client learned, with the time of its request. Each write increases the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Observation {
    from: Instant,
    until: Instant,
    version: u64,
    is_read: bool,
}

type Observations = Arc<Mutex<Vec<Observation>>>;

/// The reads that returned a lower version than a client knew before the read began.
fn stale(observations: &[Observation]) -> Vec<(Observation, u64)> {
    let mut ended = observations.to_vec();
    ended.sort_by_key(|observation| observation.until);
    let mut begun = observations.to_vec();
    begun.sort_by_key(|observation| observation.from);
    let (mut known, mut next, mut stale) = (0, 0, Vec::new());
    for observation in begun.into_iter().filter(|observation| observation.is_read) {
        while ended.get(next).is_some_and(|earlier| earlier.until < observation.from) {
            known = known.max(ended[next].version);
            next += 1;
        }
        if observation.version < known {
            stale.push((observation, known));
        }
    }
    stale
}

#[test]
fn check_finds_stale_reads_and_allows_concurrent_ones() {
    let zero = Instant::now();
    let observation = |from: u64, until: u64, version: u64, is_read: bool| Observation {
        from: zero + Duration::from_millis(from),
        until: zero + Duration::from_millis(until),
        version,
        is_read,
    };
    let write = observation(10, 20, 5, false);
    assert_eq!(
        stale(&[write, observation(15, 30, 4, true)]),
        [],
        "the read began before the acknowledgement of the write"
    );
    assert_eq!(
        stale(&[write, observation(15, 16, 5, true)]),
        [],
        "the read returned the write before its acknowledgement"
    );
    let after_write = observation(21, 40, 4, true);
    assert_eq!(stale(&[after_write, write]), [(after_write, 5)]);
    let after_read = observation(17, 18, 4, true);
    assert_eq!(
        stale(&[write, after_read, observation(12, 16, 5, true)]),
        [(after_read, 5)],
        "another reader saw a higher version"
    );
}

async fn stopped_processes_cause_no_stale_read_and_no_wrong_age() {
    let wanted = std::env::var("TENURE_READS").map_or(READS, |reads| reads.parse().expect("TENURE_READS is a number"));
    let cluster = Cluster::start("").await;
    let (stop, observations) = (CancellationToken::new(), Observations::default());
    let ages = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    tasks.spawn(write(cluster.client.clone(), observations.clone(), stop.clone()));
    for place in 0..NODES.len() {
        tasks.spawn(read_stale_states(cluster.client.clone(), place, observations.clone(), ages.clone(), stop.clone()));
        tasks.spawn(read_at_intervals(cluster.client.clone(), place, observations.clone(), stop.clone()));
        for _ in 0..READERS {
            tasks.spawn(read_on(cluster.client.clone(), place, observations.clone(), stop.clone()));
        }
    }
    let mut rounds = 0;
    let mut leaders_stopped = 0;
    let leader_reads = || {
        let reads = observations.lock().iter().filter(|observation| observation.is_read).count();
        reads.saturating_sub(ages.lock().len())
    };
    while rounds < 6 || leader_reads() < wanted {
        leaders_stopped += usize::from(stop_some(&cluster, rounds).await);
        rounds += 1;
    }
    stop.cancel();
    tasks.join_all().await;
    let observations = observations.lock().clone();
    let reads = observations.iter().filter(|observation| observation.is_read).count();
    let stale = stale(&observations);
    println!(
        "{reads} reads and {} writes around {rounds} pauses, {leaders_stopped} of them of the leader: {} stale",
        observations.len() - reads,
        stale.len()
    );
    let (ages, old) = (ages.lock().clone(), PAUSE / 2);
    let old_states = ages.iter().filter(|age| **age >= old).count();
    println!("{} stale reads, {old_states} of them of a state of {old:?} or more", ages.len());
    assert!(leaders_stopped >= 3, "the leader must be stopped at least three times");
    assert!(old_states > 0, "no stale read reached a node with an old state");
    assert_eq!(stale, []);
}

/// Stops some nodes once. Returns whether the leader was stopped and another node led meanwhile.
async fn stop_some(cluster: &Cluster, round: usize) -> bool {
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    let mut new_leader = false;
    match round % 3 {
        0 => {
            cluster.stop(follower);
            tokio::time::sleep(PAUSE).await;
            cluster.resume(follower);
        }
        1 => {
            cluster.stop(leader);
            tokio::time::sleep(PAUSE).await;
            new_leader = cluster.leader().await != leader;
            tokio::time::sleep(PAUSE).await;
            cluster.resume(leader);
        }
        // The old leader resumes at the moment when the new one stops.
        _ => {
            cluster.stop(leader);
            let next = cluster.leader().await;
            tokio::time::sleep(PAUSE).await;
            cluster.stop(next);
            cluster.resume(leader);
            tokio::time::sleep(PAUSE).await;
            cluster.resume(next);
            new_leader = next != leader;
        }
    }
    tokio::time::sleep(HEALTHY).await;
    new_leader
}

/// Acquires and releases one lease repeatedly. It is the only writer.
async fn write(client: Client, observations: Observations, stop: CancellationToken) {
    let record = |from, version| {
        let observation = Observation { from, until: Instant::now(), version, is_read: false };
        observations.lock().push(observation);
    };
    let mut highest = 0;
    for place in 0.. {
        if stop.is_cancelled() {
            return;
        }
        let began = Instant::now();
        let acquire = Call { timeout: Duration::from_millis(700), ..Call::acquire(NAME, "writer", 600_000) };
        let lease = client.done(place, &acquire).await;
        assert!(token(&lease) > highest, "token {} after {highest}", token(&lease));
        highest = token(&lease);
        record(began, version(&lease));
        let began = Instant::now();
        let release = Call { timeout: Duration::from_millis(700), ..Call::release(NAME, "writer", highest) };
        client.done(place, &release).await;
        record(began, highest * 2 + 1);
    }
}

/// Twice the token, plus one after the end of the grant.
fn version(lease: &Value) -> u64 {
    token(lease) * 2 + u64::from(lease["state"] != "active")
}

async fn read_on(client: Client, place: usize, observations: Observations, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if !read(&client, place, &observations).await {
            tokio::time::sleep(READ_INTERVAL).await;
        }
    }
}

async fn read_at_intervals(client: Client, place: usize, observations: Observations, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(MAX_PENDING_READS));
    let mut interval = tokio::time::interval(READ_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut reads = JoinSet::new();
    while !stop.is_cancelled() {
        interval.tick().await;
        while reads.try_join_next().is_some() {}
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let (client, observations) = (client.clone(), observations.clone());
        reads.spawn(async move {
            read(&client, place, &observations).await;
            drop(permit);
        });
    }
    reads.join_all().await;
}

/// A stale read has all changes that were acknowledged before its age. So it counts as a read that began then.
async fn read_stale_states(
    client: Client,
    place: usize,
    observations: Observations,
    ages: Arc<Mutex<Vec<Duration>>>,
    stop: CancellationToken,
) {
    let call = Call { timeout: PAUSE * 4, ..Call::get(format!("/v1/leases/{NAME}?consistency=stale")) };
    while !stop.is_cancelled() {
        let began = Instant::now();
        let (outcome, age) = client.attempt_stale(place, &call).await;
        let until = Instant::now();
        let version = match outcome {
            Outcome::Done(lease) => Some(version(&lease)),
            Outcome::Refused(problem) if problem["code"] == "not_found" => Some(0),
            Outcome::Refused(problem) => panic!("a read was refused: {problem}"),
            _ => None,
        };
        if let (Some(version), Some(age)) = (version, age) {
            ages.lock().push(age);
            // The header has whole milliseconds.
            let from = began - age - Duration::from_millis(1);
            observations.lock().push(Observation { from, until, version, is_read: true });
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Sends a read. Returns whether it was answered.
async fn read(client: &Client, place: usize, observations: &Observations) -> bool {
    let call = Call {
        // Longer than any pause: a stopped node answers its reads after it resumes.
        timeout: PAUSE * 4,
        ..Call::get(format!("/v1/leases/{NAME}?consistency=leader"))
    };
    let from = Instant::now();
    let version = match client.attempt(place, &call).await {
        Outcome::Done(lease) => version(&lease),
        Outcome::Refused(problem) if problem["code"] == "not_found" => 0,
        Outcome::Refused(problem) => panic!("a read was refused: {problem}"),
        _ => return false,
    };
    observations.lock().push(Observation { from, until: Instant::now(), version, is_read: true });
    true
}
