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

strict!(no_stale_leader_reads_around_stopped_processes,);

/// The number of answered reads, unless `TENURE_READS` sets it.
const READS: usize = 10_000;
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
struct Learned {
    from: Instant,
    until: Instant,
    version: u64,
    is_read: bool,
}

type History = Arc<Mutex<Vec<Learned>>>;

/// The reads that returned a lower version than a client knew before the read began.
fn stale(history: &[Learned]) -> Vec<(Learned, u64)> {
    let mut ended = history.to_vec();
    ended.sort_by_key(|learned| learned.until);
    let mut begun = history.to_vec();
    begun.sort_by_key(|learned| learned.from);
    let (mut known, mut next, mut stale) = (0, 0, Vec::new());
    for learned in begun.into_iter().filter(|learned| learned.is_read) {
        while ended.get(next).is_some_and(|earlier| earlier.until < learned.from) {
            known = known.max(ended[next].version);
            next += 1;
        }
        if learned.version < known {
            stale.push((learned, known));
        }
    }
    stale
}

#[test]
fn the_check_finds_a_stale_read_and_allows_concurrent_ones() {
    let zero = Instant::now();
    let learned = |from: u64, until: u64, version: u64, is_read: bool| Learned {
        from: zero + Duration::from_millis(from),
        until: zero + Duration::from_millis(until),
        version,
        is_read,
    };
    let write = learned(10, 20, 5, false);
    assert_eq!(stale(&[write, learned(15, 30, 4, true)]), [], "the read began before the acknowledgement of the write");
    assert_eq!(stale(&[write, learned(15, 16, 5, true)]), [], "the read returned the write before its acknowledgement");
    let after_write = learned(21, 40, 4, true);
    assert_eq!(stale(&[after_write, write]), [(after_write, 5)]);
    let after_read = learned(17, 18, 4, true);
    assert_eq!(
        stale(&[write, after_read, learned(12, 16, 5, true)]),
        [(after_read, 5)],
        "another reader saw a higher version"
    );
}

async fn no_stale_leader_reads_around_stopped_processes() {
    let wanted = std::env::var("TENURE_READS").map_or(READS, |reads| reads.parse().expect("TENURE_READS is a number"));
    let cluster = Cluster::start("").await;
    let (stop, history) = (CancellationToken::new(), History::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(write(cluster.client.clone(), history.clone(), stop.clone()));
    for place in 0..NODES.len() {
        tasks.spawn(read_at_intervals(cluster.client.clone(), place, history.clone(), stop.clone()));
        for _ in 0..READERS {
            tasks.spawn(read_on(cluster.client.clone(), place, history.clone(), stop.clone()));
        }
    }
    let mut rounds = 0;
    let mut leaders_stopped = 0;
    while rounds < 6 || history.lock().iter().filter(|learned| learned.is_read).count() < wanted {
        leaders_stopped += usize::from(stop_some(&cluster, rounds).await);
        rounds += 1;
    }
    stop.cancel();
    tasks.join_all().await;
    let history = history.lock().clone();
    let reads = history.iter().filter(|learned| learned.is_read).count();
    let stale = stale(&history);
    println!(
        "{reads} reads and {} writes around {rounds} pauses, {leaders_stopped} of them of the leader: {} stale",
        history.len() - reads,
        stale.len()
    );
    assert!(leaders_stopped >= 3, "the leader must be stopped at least three times");
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
            cluster.go_on(follower);
        }
        1 => {
            cluster.stop(leader);
            tokio::time::sleep(PAUSE).await;
            new_leader = cluster.leader().await != leader;
            tokio::time::sleep(PAUSE).await;
            cluster.go_on(leader);
        }
        // The old leader resumes at the moment when the new one stops.
        _ => {
            cluster.stop(leader);
            let next = cluster.leader().await;
            tokio::time::sleep(PAUSE).await;
            cluster.stop(next);
            cluster.go_on(leader);
            tokio::time::sleep(PAUSE).await;
            cluster.go_on(next);
            new_leader = next != leader;
        }
    }
    tokio::time::sleep(HEALTHY).await;
    new_leader
}

/// Acquires and releases one lease repeatedly. It is the only writer.
async fn write(client: Client, history: History, stop: CancellationToken) {
    let learn = |from, version| {
        let learned = Learned { from, until: Instant::now(), version, is_read: false };
        history.lock().push(learned);
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
        learn(began, version(&lease));
        let began = Instant::now();
        let release = Call { timeout: Duration::from_millis(700), ..Call::release(NAME, "writer", highest) };
        client.done(place, &release).await;
        learn(began, highest * 2 + 1);
    }
}

/// Twice the token, plus one after the end of the grant.
fn version(lease: &Value) -> u64 {
    token(lease) * 2 + u64::from(lease["state"] != "active")
}

async fn read_on(client: Client, place: usize, history: History, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if !read(&client, place, &history).await {
            tokio::time::sleep(READ_INTERVAL).await;
        }
    }
}

async fn read_at_intervals(client: Client, place: usize, history: History, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(MAX_PENDING_READS));
    let mut interval = tokio::time::interval(READ_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut reads = JoinSet::new();
    while !stop.is_cancelled() {
        interval.tick().await;
        while reads.try_join_next().is_some() {}
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let (client, history) = (client.clone(), history.clone());
        reads.spawn(async move {
            read(&client, place, &history).await;
            drop(permit);
        });
    }
    reads.join_all().await;
}

/// Sends a read. Returns whether it was answered.
async fn read(client: &Client, place: usize, history: &History) -> bool {
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
    history.lock().push(Learned { from, until: Instant::now(), version, is_read: true });
    true
}
